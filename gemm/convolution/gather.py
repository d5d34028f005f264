"""The gather rule: convolution is GEMM whose operand A is read through a table of offsets.

Element (i, p) of the virtual im2col matrix belongs to output pixel ``i`` (n, then the spatial axes,
last axis fastest) and to ``p = tap * channels + c``: taps in row-major order, channels innermost.
Its value is channel ``c`` of one input pixel, or zero:

A[i, tap * C + c] = image[table[i, tap] + c * channel_stride]        (0 where table[i, tap] == -1)

The rule is data, a few integers an axis, so a packing routine on any target can evaluate it, by
arithmetic (`Axis.position`) or through the int32 table of Dukhan's indirect convolution (arXiv
1907.02129): one entry an output pixel and tap, shared by all images of a batch and by all channels,
with -1 for the zero row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gemm.convolution.geometry import Axis

# Scratch for gathered rows: about a per-core L2 cache, and far below the documented 8 MB.
BLOCK_BYTES = 1 << 20

Block = tuple[slice, ...]


@dataclass(frozen=True)
class Gather:
    """How the rows of A are found in one image of shape (channels, *spatial).

    ``strides`` and ``channel_stride`` count elements. Offsets are relative to the lowest address
    that channel 0 of any pixel has, so they are never negative, whatever the signs of the strides.
    """

    axes: tuple[Axis, ...]
    strides: tuple[int, ...]
    channels: int
    channel_stride: int

    @classmethod
    def of(cls, image: np.ndarray, axes: tuple[Axis, ...]) -> Gather:
        """The rule for an image whose strides are whole elements; ValueError where they are not."""
        size = image.itemsize
        if any(s % size for s in image.strides):
            raise ValueError(
                f"gather: strides {image.strides} are not multiples of the item size {size}"
            )
        channel_stride, *strides = (s // size for s in image.strides)
        return cls(axes, tuple(strides), image.shape[0], channel_stride)

    @property
    def pixels(self) -> int:
        """Output pixels of one image: the rows of A."""
        return math.prod(a.count for a in self.axes)

    @property
    def taps(self) -> int:
        """Kernel positions; A has ``taps * channels`` columns."""
        return math.prod(len(a.offsets) for a in self.axes)

    @property
    def origin(self) -> int:
        """Offset of the first pixel: positive when a spatial stride is negative."""
        return sum(
            -s * (a.extent - 1) for a, s in zip(self.axes, self.strides, strict=True) if s < 0
        )

    @property
    def span(self) -> int:
        """Offsets lie in ``0 .. span - 1``."""
        if any(a.extent == 0 for a in self.axes):
            return 0
        return 1 + sum(
            abs(s) * (a.extent - 1) for a, s in zip(self.axes, self.strides, strict=True)
        )

    def offset(self, pixel: int, tap: int) -> int:
        """The definition: element offset of the input pixel, or -1 where the tap reads a zero."""
        offset = self.origin
        for axis, stride in zip(reversed(self.axes), reversed(self.strides), strict=True):
            pixel, output = divmod(pixel, axis.count)
            tap, k = divmod(tap, len(axis.offsets))
            position = axis.position(output, k)
            if position < 0:
                return -1
            offset += position * stride
        return offset

    def _parts(self) -> tuple[np.ndarray, np.ndarray]:
        """Offsets by the outer axes (output rows, outer taps) and by the last (width, inner taps).

        int64, -1 outside; where neither is, the sum of both is the offset.
        """
        if self.span > np.iinfo(np.int32).max:
            raise ValueError(
                f"gather: an image of {self.span} elements needs offsets above 31 bits"
            )
        parts = []
        for axis, stride in zip(self.axes, self.strides, strict=True):
            outputs = np.arange(axis.count, dtype=np.int64)[:, None]
            position = outputs * axis.step + np.array(axis.offsets, np.int64)
            start = -stride * (axis.extent - 1) if stride < 0 else 0
            outside = (position < 0) | (position >= axis.extent)
            parts.append(np.where(outside, -1, start + position * stride))
        outer = np.zeros((1, 1), np.int64)
        for part in parts[:-1]:
            a, b = outer[:, None, :, None], part[None, :, None, :]
            outer = np.where((a < 0) | (b < 0), -1, a + b)
            outer = outer.reshape(outer.shape[0] * outer.shape[1], -1)
        return outer, parts[-1]

    def arithmetic(self) -> np.ndarray:
        """The rule as a kernel's arithmetic reads it, int32 (packing.py): the offsets of the outer
        axes, those of the last axis, how many of its taps from each one on lie one behind the other
        in memory or are all outside, and for each of its taps the outputs inside the image.
        """
        outer, inner = self._parts()
        runs = np.ones_like(inner)
        for tap in range(inner.shape[1] - 2, -1, -1):
            here, after = inner[:, tap], inner[:, tap + 1]
            joined = np.where(here < 0, after < 0, after == here + self.channels)
            joined &= (here < 0) | (self.channel_stride == 1) | (self.channels == 1)
            runs[:, tap] += np.where(joined, runs[:, tap + 1], 0)
        last = self.axes[-1]
        bounds = np.array([last.inside(t, 0, last.count) for t in range(len(last.offsets))])
        parts = (outer, inner, runs, bounds)
        return np.concatenate([part.ravel() for part in parts]).astype(np.int32)

    def table(self, begin: int = 0, end: int | None = None) -> np.ndarray:
        """The offsets of the output pixels begin .. end - 1 (all by default), whole rows of them:
        int32, shape (pixels, taps). Raises ValueError when an offset would not fit 31 bits.
        """
        outer, inner = self._parts()
        width = len(inner)
        if width:
            outer = outer[begin // width : None if end is None else end // width]
        a, b = outer[:, None, :, None], inner[None, :, None, :]
        return np.where((a < 0) | (b < 0), -1, a + b).astype(np.int32).reshape(-1, self.taps)


def blocks(counts: tuple[int, ...], row_bytes: int, limit: int = BLOCK_BYTES) -> Iterator[Block]:
    """Cut (images, *output extents) into boxes of whole trailing axes whose rows fit in ``limit``
    bytes.
    """
    if 0 in counts:
        return
    axis = 0
    inner = row_bytes * math.prod(counts[1:])
    while axis < len(counts) - 1 and inner > limit:
        axis += 1
        inner //= counts[axis]
    step = max(1, limit // max(inner, 1))
    for outer in itertools.product(*(range(c) for c in counts[:axis])):
        head = tuple(slice(i, i + 1) for i in outer)
        tail = tuple(slice(0, c) for c in counts[axis + 1 :])
        for start in range(0, counts[axis], step):
            yield head + (slice(start, min(start + step, counts[axis])),) + tail


def by_arithmetic(
    source: np.ndarray, axes: tuple[Axis, ...], block: Block, dtype: np.dtype
) -> np.ndarray:
    """The rows of one block, read tap by tap through strided slices.

    ``source`` is (images, groups, channels, *spatial). Returns (groups, images, *outputs, *taps,
    channels) in whatever memory order copies the longest runs; taps outside hold zeros.
    """
    images, *parts = block
    source = source[images]
    rank = len(axes)
    n, groups, channels = source.shape[:3]
    counts = [p.stop - p.start for p in parts]
    taps = [len(a.offsets) for a in axes]
    # Logical order of the result, and the order of the same axes in memory.
    shape = [groups, n, *counts, *taps, channels]
    if abs(source.strides[2]) <= abs(source.strides[-1]):
        memory = list(range(len(shape)))
    else:
        memory = [0, *range(2 + rank, 2 + 2 * rank), 2 + 2 * rank, *range(1, 2 + rank)]
    rows = np.empty([shape[i] for i in memory], dtype).transpose(np.argsort(memory))
    for tap in itertools.product(*(range(t) for t in taps)):
        target = rows[(slice(None),) * (2 + rank) + tap]
        here, there, whole = [], [], True
        for axis, k, part in zip(axes, tap, parts, strict=True):
            first, last = axis.inside(k, part.start, part.stop)
            whole = whole and (first, last) == (part.start, part.stop)
            here.append(slice(first - part.start, last - part.start))
            start = first * axis.step + axis.offsets[k]
            there.append(slice(start, start + (last - first - 1) * axis.step + 1, axis.step))
            if first == last:
                there[-1] = slice(0, 0)
        if not whole:
            target[...] = 0
        pixels = source[(slice(None),) * 3 + tuple(there)]
        target[(slice(None),) * 2 + tuple(here)] = np.moveaxis(pixels.swapaxes(0, 1), 2, -1)
    return rows
