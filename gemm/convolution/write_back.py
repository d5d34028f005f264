"""What happens to a product before it is stored: bias, zero points, or a user's epilogue.

The operands of an epilogue are given in the shape of the result: one number, one number a filter
(O,), or a whole array in the layout's order of axes. Here they become what a product of pixels by
filters takes, block by block.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gemm import epilogues
from gemm.convolution import layouts
from gemm.epilogues import stock


@dataclass(frozen=True)
class WriteBack:
    """A bound epilogue over an output seen as (groups, N, *outputs, filters).

    ``program`` is the epilogue or None. ``numbers`` go to it as they are, ``filters`` are (groups,
    filters), ``tiles`` have the form of the output. With zero points the product wanted is the sum
    of (x - x_zero) * (w - w_zero); it is written as four sums, the first of which is the plain
    product of 8-bit integers. ``bias`` and ``w_zero`` are (groups, filters).
    """

    bias: np.ndarray | None = None
    x_zero: int = 0
    w_zero: np.ndarray | None = None
    program: Any = None
    numbers: dict[str, Any] = field(default_factory=dict)
    filters: dict[str, np.ndarray] = field(default_factory=dict)
    tiles: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def dtype(self) -> np.dtype | None:
        """The dtype that the epilogue names for its main output, None where it names none."""
        if self.program is None:
            return None
        given = dict.fromkeys((*self.numbers, *self.filters, *self.tiles), "any")
        return next(iter(self.program.trace(given)[1].values())).dtype

    @property
    def has_zeros(self) -> bool:
        """True when a zero point is not zero."""
        return self.x_zero != 0 or self.w_zero is not None

    def at(self, index: tuple[Any, ...]) -> WriteBack:
        """The same for a part of the output: ``index`` selects from (N, *outputs)."""
        part = (slice(None), *index)
        return replace(self, tiles={name: tile[part] for name, tile in self.tiles.items()})

    def fill(self, rows: np.ndarray, matrix: np.ndarray, out: np.ndarray) -> None:
        """Store what zero points and bias add to the product of ``rows`` and ``matrix`` in ``out``.

        rows: (groups, *pixels, K). matrix: (groups, K, filters). out: (groups, *pixels, filters).
        """
        pixels = out.ndim - 2
        out[...] = 0 if self.bias is None else _spread(self.bias, pixels)
        if self.x_zero:
            out -= _spread(self.x_zero * matrix.sum(1, dtype=np.int32), pixels)
        if self.w_zero is not None:
            sums = rows.sum(-1, dtype=np.int32) - np.int32(self.x_zero * rows.shape[-1])
            out -= sums[..., None] * _spread(self.w_zero, pixels)

    def bound(self, pixels: int, tiles: dict[str, np.ndarray]) -> Any:
        """The epilogue with its operands, for a product with ``pixels`` axes between the groups and
        the filters; None where there is nothing to do. ``tiles`` have that form already.
        """
        if self.program is None:
            return None if self.bias is None else stock.bias(bias=_spread(self.bias, pixels))
        rows = {name: _spread(values, pixels) for name, values in self.filters.items()}
        return self.program(**self.numbers, **rows, **tiles)


def _spread(values: np.ndarray, pixels: int) -> np.ndarray:
    """(groups, filters) with ``pixels`` axes of extent 1 in between."""
    return values.reshape(values.shape[0], *(1,) * pixels, values.shape[1])


def of_epilogue(
    name: str,
    epilogue: Any,
    bias: np.ndarray | None,
    shape: tuple[int, ...],
    order: tuple[int, ...],
    groups: int,
) -> WriteBack:
    """The write-back of a user's epilogue over a result that is ``shape`` = (N, O, *outputs) when
    its axes are taken in ``order``; ``bias`` (groups, filters) goes to its operand of that name.

    Raises ValueError for an operand of another shape, TypeError for a bias that has no operand.
    """
    bound = epilogues.bind(epilogue)
    numbers, filters, tiles = {}, {}, {}
    for key, value in bound.operands.items():
        values = np.asarray(value)
        if values.size == 1:
            numbers[key] = values.reshape(())
        elif values.shape == shape[1:2]:
            filters[key] = values.reshape(groups, -1)
        elif values.shape == layouts.stored(shape, order):
            tile = layouts.view(values, order)
            tile = tile.reshape(shape[0], groups, shape[1] // groups, *shape[2:])
            tiles[key] = np.moveaxis(tile.swapaxes(0, 1), 2, -1)
        else:
            raise ValueError(
                f"{name}: operand {key} of the epilogue must be one number, one a filter "
                f"({shape[1]},) or of the result's shape {layouts.stored(shape, order)}, got "
                f"{values.shape}"
            )
    if bias is not None:
        if "bias" not in bound.epilogue.operands or "bias" in bound.operands:
            raise TypeError(f"{name}: the epilogue takes no operand 'bias' for the bias given")
        filters["bias"] = bias
    return WriteBack(program=bound.epilogue, numbers=numbers, filters=filters, tiles=tiles)
