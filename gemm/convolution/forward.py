"""The one driver of every convolution: gather rows of A, multiply by the filters, write back.

It knows arrays of one form only: input (N, groups, channels, *spatial), filters (groups, taps *
channels, filters), output (N, groups, filters, *outputs), all of them views. Each output element is
one chain over (taps, channels), channels innermost, whatever the algorithm: a block of rows changes
which elements are computed together, never how.

Extra memory: `gather.BLOCK_BYTES` of gathered rows and as much again while they are looked up, for
'implicit' and 'indirect' (one row if a row is larger); none for 'direct'; the whole im2col matrix
for 'im2col'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm import engine
from gemm.convolution import gather, im2col
from gemm.convolution.geometry import Axis, pointwise

ALGORITHMS = ("auto", "im2col", "implicit", "indirect", "direct")


@dataclass(frozen=True)
class Addend:
    """What is added to the product before it is rounded to the output: bias and zero points.

    With zero points the product wanted is the sum of (x - x_zero) * (w - w_zero); it is written as
    four sums, the first of which is the plain integer product. ``bias`` and ``w_zero`` are (groups,
    filters).
    """

    bias: np.ndarray | None = None
    x_zero: int = 0
    w_zero: np.ndarray | None = None

    def __bool__(self) -> bool:
        return self.bias is not None or self.x_zero != 0 or self.w_zero is not None

    def store(self, rows: np.ndarray, matrix: np.ndarray, out: np.ndarray) -> None:
        """Fill ``out`` (groups, *pixels, filters) with the addend of ``rows`` (groups, *pixels,
        K).
        """
        groups, filters = matrix.shape[0], matrix.shape[2]
        middle = (1,) * (out.ndim - 2)

        def spread(values: np.ndarray) -> np.ndarray:
            return values.reshape(groups, *middle, filters)

        out[...] = 0 if self.bias is None else spread(self.bias)
        if self.x_zero:
            out -= spread(self.x_zero * matrix.sum(1, dtype=np.int32))
        if self.w_zero is not None:
            sums = rows.sum(-1, dtype=np.int32) - np.int32(self.x_zero * rows.shape[-1])
            out -= sums[..., None] * spread(self.w_zero)


def check_algorithm(name: str, algorithm: str, direct: bool) -> None:
    """Refuse an unknown algorithm, and 'direct' where a pixel does not read exactly one input
    pixel.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{name}: algorithm must be one of {ALGORITHMS}, got {algorithm!r}")
    if algorithm == "direct" and not direct:
        raise ValueError(f"{name}: algorithm 'direct' needs a 1x1 kernel without padding")


def convolve(
    source: np.ndarray,
    matrix: np.ndarray,
    axes: tuple[Axis, ...],
    out: np.ndarray,
    *,
    algorithm: str,
    dtype: np.dtype,
    addend: Addend,
    epilogue: Any = None,
    threads: int | None = None,
) -> None:
    """Convolve ``source`` with ``matrix`` into ``out``; the three are views of the forms named
    above.
    """
    if out.size == 0:
        return
    target = np.moveaxis(out.swapaxes(0, 1), 2, -1)  # (groups, N, *outputs, filters)
    options: dict[str, Any] = {"epilogue": epilogue, "threads": threads}
    if algorithm == "auto":
        algorithm = choose(source, axes, dtype)
    if algorithm == "direct" and pointwise(axes):
        picked = source[
            (slice(None),) * 3
            + tuple(
                slice(a.offsets[0], a.offsets[0] + (a.count - 1) * a.step + 1, a.step) for a in axes
            )
        ]
        rows = np.moveaxis(picked.swapaxes(0, 1), 2, -1).astype(dtype, copy=False)
        _multiply(rows, matrix, target, addend, options)
        return
    if algorithm == "im2col":
        rows = im2col.rows(source, axes, dtype, addend.x_zero)
        _multiply(_joined(rows, len(axes)), matrix, target, addend, options)
        return
    find = gather.by_table if algorithm == "indirect" else gather.by_arithmetic
    counts = (source.shape[0], *(a.count for a in axes))
    row_bytes = matrix.shape[0] * matrix.shape[1] * dtype.itemsize
    for block in gather.blocks(counts, row_bytes):
        rows = find(source, axes, block, dtype, addend.x_zero)
        _multiply(_joined(rows, len(axes)), matrix, target[(slice(None), *block)], addend, options)


def choose(source: np.ndarray, axes: tuple[Axis, ...], dtype: np.dtype) -> str:
    """The stated rule: 'direct' where the pixels of an image are one strided axis already, else
    'implicit'.
    """
    if source.dtype == dtype and pointwise(axes):
        steps = [a.step * s for a, s in zip(axes, source.strides[3:], strict=True)]
        if _mergeable([a.count for a in axes], steps, 0):
            return "direct"
    return "implicit"


def _joined(rows: np.ndarray, rank: int) -> np.ndarray:
    """(groups, images, *outputs, *taps, channels) with the taps and channels as one axis, a
    view.
    """
    lead = rows.shape[: 2 + rank]
    return rows.reshape(*lead, math.prod(rows.shape[2 + rank :]))


def _multiply(
    rows: np.ndarray,
    matrix: np.ndarray,
    target: np.ndarray,
    addend: Addend,
    options: dict[str, Any],
) -> None:
    """target (groups, *pixels, filters) = rows (groups, *pixels, K) @ matrix (groups, K, filters) +
    addend.

    As many trailing pixel axes as both arrays allow become M; the others are batch axes of the
    product.
    """
    if addend:
        addend.store(rows, matrix, target)
    pixels = target.shape[1:-1]
    first = 0
    while not all(_mergeable(pixels, a.strides[1:-1], first) for a in (rows, target)):
        first += 1
    batch = (matrix.shape[0], *pixels[:first])
    b = matrix.reshape(batch[0], *(1,) * first, *matrix.shape[1:])
    b = np.broadcast_to(b, (*batch, *matrix.shape[1:]))
    engine.product(
        _merged(rows, first), b, _merged(target, first), beta=1 if addend else 0, **options
    )


def _mergeable(shape: Sequence[int], strides: Sequence[int], first: int) -> bool:
    """True when the axes ``first ..`` are one strided axis."""
    step = None
    for extent, stride in zip(reversed(shape[first:]), reversed(strides[first:]), strict=True):
        if extent != 1:
            if step is not None and stride != step:
                return False
            step = stride * extent
    return True


def _merged(array: np.ndarray, first: int) -> np.ndarray:
    """(groups, *pixels, last) with the pixel axes ``first ..`` as one: a view, the axes being
    mergeable.
    """
    head, pixels = array.shape[: 1 + first], array.shape[1 + first : -1]
    steps = array.strides[1 + first : -1]
    step = next((s for n, s in zip(pixels[::-1], steps[::-1], strict=True) if n != 1), 0)
    return np.lib.stride_tricks.as_strided(
        array,
        (*head, math.prod(pixels), array.shape[-1]),
        (*array.strides[: 1 + first], step, array.strides[-1]),
    )
