"""The explicit im2col matrix and its inverse sum: the oracle, and what `unfold` and `fold` return.

Written apart from `gather` on purpose: here the input is padded and seen through one strided window
view, so that the two can be held against each other.
"""

from __future__ import annotations

import itertools

import numpy as np

from gemm.convolution.geometry import Axis


def windows(source: np.ndarray, axes: tuple[Axis, ...]) -> np.ndarray:
    """Every window of the padded ``source`` (..., *spatial), as a read-only view (..., *outputs,
    *taps).

    The taps of each axis must be evenly spaced, as those of a convolution are.
    """
    rank = len(axes)
    lead = source.ndim - rank
    pads = [(0, 0)] * lead
    steps = []
    starts = []
    for axis in axes:
        offsets = axis.offsets or (0,)
        lowest, highest = min(offsets), max(offsets)
        end = (axis.count - 1) * axis.step + highest
        pads.append((max(-lowest, 0), max(end - axis.extent + 1, 0)))
        starts.append(slice(offsets[0] + pads[-1][0], None))
        steps.append(offsets[1] - offsets[0] if len(offsets) > 1 else 1)
    if any(p != (0, 0) for p in pads):
        source = np.pad(source, pads)
    source = source[(slice(None),) * lead + tuple(starts)]
    spatial = source.strides[lead:]
    return np.lib.stride_tricks.as_strided(
        source,
        source.shape[:lead] + tuple(a.count for a in axes) + tuple(len(a.offsets) for a in axes),
        source.strides[:lead]
        + tuple(s * a.step for s, a in zip(spatial, axes, strict=True))
        + tuple(s * d for s, d in zip(spatial, steps, strict=True)),
        writeable=False,
    )


def rows(source: np.ndarray, axes: tuple[Axis, ...], dtype: np.dtype) -> np.ndarray:
    """The whole im2col tensor (groups, images, *outputs, *taps, channels) of (images, groups,
    channels, *spatial).
    """
    view = windows(source, axes)
    return np.ascontiguousarray(np.moveaxis(view.swapaxes(0, 1), 2, -1), dtype)


def scatter(columns: np.ndarray, axes: tuple[Axis, ...], out: np.ndarray) -> None:
    """Add ``columns`` (..., *taps, *outputs) into ``out`` (..., *spatial), taps in row-major order.

    The transpose of `windows`: contributions that fall into the padding are dropped.
    """
    rank = len(axes)
    lead = out.ndim - rank
    for tap in itertools.product(*(range(len(a.offsets)) for a in axes)):
        here, there = [], []
        for axis, k in zip(axes, tap, strict=True):
            first, last = axis.inside(k, 0, axis.count)
            if first == last:
                break
            here.append(slice(first, last))
            start = first * axis.step + axis.offsets[k]
            there.append(slice(start, start + (last - first - 1) * axis.step + 1, axis.step))
        else:
            index = (slice(None),) * lead
            out[index + tuple(there)] += columns[index + tap + tuple(here)]
