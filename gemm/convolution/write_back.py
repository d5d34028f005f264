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
from gemm.execution import address


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

    def lives_at(self, key: str, found: int) -> bool:
        """Whether a kernel that reads an operand at address ``found`` reads what was given, and no
        converted copy of it.
        """
        given = {**self.numbers, **self.filters, **self.tiles}
        if self.bias is not None:
            given["bias"] = self.bias
        return address(given[key]) == found

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

    @property
    def is_plain(self) -> bool:
        """True when the product is stored as it is."""
        return self.bias is None and self.program is None and not self.has_zeros

    @property
    def may_turn(self) -> bool:
        """True when the program does not see which axis of the product is which."""
        if self.program is None:
            return True
        if self.program.pairs:
            return False
        given = dict.fromkeys((*self.numbers, *self.filters, *self.tiles), 1)
        return not {"row_index", "column_index"} & {op for op, *_ in self.program.trace(given)[0]}

    def without_zeros(self) -> WriteBack:
        """The same for operands whose zero points have been subtracted."""
        return replace(self, x_zero=0, w_zero=None)

    def flat(self, pixels: int, merged: bool, turned: bool) -> Any:
        """The epilogue bound for a kernel: over (groups, N, pixels, filters), or where groups are
        merged over (N, pixels, groups); the last two axes exchanged when `turned`.
        """
        program, filters = self.program, self.filters
        if program is None and self.bias is not None:
            program, filters = stock.bias, {"bias": self.bias}

        def fitted(values: np.ndarray) -> np.ndarray:
            if merged:
                values = np.moveaxis(values, 0, 2)[..., 0]
            return values.swapaxes(-1, -2) if turned else values

        rows = {name: fitted(v[:, None, None, :]) for name, v in filters.items()}
        tiles = {
            name: fitted(v.reshape(*v.shape[:2], pixels, v.shape[-1]))
            for name, v in self.tiles.items()
        }
        return program(**self.numbers, **rows, **tiles)

    def at(self, index: tuple[Any, ...]) -> WriteBack:
        """The same for a part of the output: ``index`` selects from (N, *outputs)."""
        part = (slice(None), *index)
        return replace(self, tiles={name: tile[part] for name, tile in self.tiles.items()})

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
    return WriteBack(
        program=bound.epilogue,
        numbers=numbers,
        filters=filters,
        tiles=tiles,
    )
