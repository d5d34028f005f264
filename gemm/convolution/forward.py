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
from dataclasses import replace
from typing import Any

import numpy as np

from gemm import engine
from gemm.convolution import gather, im2col
from gemm.convolution.geometry import Axis, pointwise
from gemm.convolution.write_back import WriteBack

ALGORITHMS = ("auto", "im2col", "implicit", "indirect", "direct")


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
    write_back: WriteBack,
    threads: int | None = None,
) -> None:
    """Convolve ``source`` with ``matrix`` into ``out``; the three are views of the forms named
    above.
    """
    if out.size == 0:
        return
    target = np.moveaxis(out.swapaxes(0, 1), 2, -1)  # (groups, N, *outputs, filters)
    if write_back.program is not None and write_back.has_zeros:
        source, matrix, dtype = _without_zeros(source, matrix, write_back)
        write_back = replace(write_back, x_zero=0, w_zero=None)
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
        _multiply(rows, matrix, target, write_back, threads)
        return
    if algorithm == "im2col":
        rows = im2col.rows(source, axes, dtype, write_back.x_zero)
        _multiply(_joined(rows, len(axes)), matrix, target, write_back, threads)
        return
    find = gather.by_table if algorithm == "indirect" else gather.by_arithmetic
    counts = (source.shape[0], *(a.count for a in axes))
    row_bytes = matrix.shape[0] * matrix.shape[1] * dtype.itemsize
    for block in gather.blocks(counts, row_bytes):
        rows = _joined(find(source, axes, block, dtype, write_back.x_zero), len(axes))
        _multiply(rows, matrix, target[(slice(None), *block)], write_back.at(block), threads)


def _without_zeros(
    source: np.ndarray, matrix: np.ndarray, write_back: WriteBack
) -> tuple[np.ndarray, np.ndarray, np.dtype]:
    """Operands with their zero points subtracted, in int16, for an epilogue of the whole sum."""
    source = source.astype(np.int16) - np.int16(write_back.x_zero)
    matrix = matrix.astype(np.int16)
    if write_back.w_zero is not None:
        matrix -= write_back.w_zero[:, None].astype(np.int16)
    return source, matrix, source.dtype


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
    write_back: WriteBack,
    threads: int | None,
) -> None:
    """target (groups, *pixels, filters) = rows (groups, *pixels, K) @ matrix (groups, K, filters),
    through the write-back.

    As many trailing pixel axes as the arrays allow become M; the others are batch axes.
    """
    options: dict[str, Any] = {"threads": threads}
    pixels = target.shape[1:-1]
    arrays = (rows, target, *write_back.tiles.values())
    first = 0
    while not all(_mergeable(pixels, a.strides[1:-1], first) for a in arrays):
        first += 1
    if write_back.has_zeros:
        write_back.fill(rows, matrix, target)
        options["beta"] = 1
    else:
        tiles = {name: _merged(tile, first) for name, tile in write_back.tiles.items()}
        options["epilogue"] = write_back.bound(first + 1, tiles)
        if options["epilogue"] is not None and rows.dtype.kind in "iu":
            options["accumulate"] = np.int32 if rows.dtype.itemsize < 4 else None
    batch = (matrix.shape[0], *pixels[:first])
    b = matrix.reshape(batch[0], *(1,) * first, *matrix.shape[1:])
    b = np.broadcast_to(b, (*batch, *matrix.shape[1:]))
    engine.product(_merged(rows, first), b, _merged(target, first), **options)


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
