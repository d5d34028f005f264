"""Depthwise convolutions made ready: filters tap by tap, and the kernels of depthwise_loops.py.

Extra memory a worker: one tile and a row of zeros.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemm import plan as planning
from gemm.convolution.gather import Gather
from gemm.convolution.geometry import Axis
from gemm.convolution.product import Launch, Refused, aligned, block_bytes, merged_step
from gemm.convolution.specs import DepthwiseSpec, reach_of
from gemm.microkernels.dtypes import TileShape
from gemm.planner import workers_for
from gemm.targets import element_type

HEIGHTS = 14, 12, 10, 8, 7, 6, 4, 2, 1  # rows that a tile may have
FAR = 6  # blocks of the second-level cache from which on rows are asked for ahead
UNROLLED = 7  # taps along an axis that are
_FIRST, _LAST = struct.Struct("=27q"), struct.Struct("=28q")


@dataclass(frozen=True)
class Taps:
    """One filter a channel, tap by tap. tile: the general kernel's; data: (taps, channels), for
    integers with one more row, the sums over the taps.
    """

    level: str
    tile: TileShape
    data: np.ndarray
    count = 1  # filters of one group

    @property
    def groups(self) -> int:
        """Number of groups, which is that of the channels."""
        return self.data.shape[1]

    def matrix(self) -> np.ndarray:
        """(groups, taps, 1), a view."""
        taps = self.data[:-1] if self.tile.dtype.kind == "i" else self.data
        return taps.T[:, :, None]


def taps_of(matrix: np.ndarray, level: str, tile: TileShape) -> Taps:
    """The filters (channels, taps, 1) of a depthwise convolution."""
    channels, taps, _ = matrix.shape
    integer = tile.dtype.kind == "i"
    data = aligned((taps + integer, channels), np.dtype(tile.dtype.name))
    data[:taps] = matrix[:, :, 0].T
    if integer:
        data[taps] = data[:taps].sum(0)
    return Taps(level, tile, data)


def is_last(source: np.ndarray) -> bool:
    """Whether channels (groups) are adjacent in memory."""
    return source.strides[1] == source.itemsize and source.shape[1] > 1


def _height(tile: TileShape, count: int) -> int:
    """Rows of the tile for so many outputs: the least time for all of them, a tile costing two
    rows more. A quarter of the accumulators' registers is left to pixels and factors."""
    most = max(1, tile.rows * tile.vectors * 3 // 4)
    heights = [rows for rows in HEIGHTS if rows <= most]
    return min(heights, key=lambda rows: -(-count // rows) * (rows + 2))


def _unrolls(axis: Axis) -> bool:
    """Whether the kernel for this axis has its taps one by one."""
    taps = axis.offsets
    neighbours = all(b - a == 1 for a, b in zip(taps, taps[1:], strict=False))
    return neighbours and len(taps) <= UNROLLED and axis.step <= 2


def _parts(axis: Axis, whole: bool) -> np.ndarray:
    """(first position, low, high) of all taps together or of each, as in depthwise_loops.py."""
    if whole:
        begin = axis.offsets[0]
        return np.array([(begin, -begin, axis.extent - begin)], np.int64)
    return np.array([
        (offset, *axis.inside(tap, 0, axis.count)) for tap, offset in enumerate(axis.offsets)
    ], np.int64)  # fmt: skip


class Ready(Launch):
    """A depthwise convolution of arrays of these shapes and strides; see `product.Ready`.

    source: (N, channels, 1, *spatial). target: (channels, N, *outputs, 1). With a program the
    target is seen as (N, pixels, channels), channels first when `turned`.
    """

    merges_groups = True

    @staticmethod
    def is_turned(source, target) -> bool:
        """Whether channels are the rows of what an epilogue sees."""
        return not is_last(source)

    def __init__(self, source, axes: tuple[Axis, ...], taps: Taps, target, by_table: bool,
                 threads: int, program: Any = None, turned: bool = False,
                 zero: int = 0):  # fmt: skip
        last = is_last(source)
        if turned is last and program is not None:
            raise Refused
        size = source.itemsize
        outputs, steps = target.shape[2:-1], target.strides[2:-1]
        c_row = merged_step(outputs[:-1], steps[:-1])
        if c_row is None or any(s % size for s in source.strides[3:]):
            raise Refused
        self.level, self.zero = taps.level, zero
        channels, images = target.shape[:2]
        rule = Gather(axes, tuple(s // size for s in source.strides[3:]), 1, 1)
        work = images * rule.pixels * rule.taps * channels
        # A tap of a vector takes twice the time of a panel's: its operand is loaded.
        workers = workers_for(self.level, taps.tile.dtype, 2 * work, threads)
        prepare = self._prepare_last if last else self._prepare_first
        tile, *constants = prepare(source, rule, target, workers, taps.tile, c_row)
        self.layout = _LAST if last else _FIRST
        kinds = element_type(source.dtype), element_type(target.dtype)
        self.spec = DepthwiseSpec(tile, *kinds, last, program, *constants)
        self._load()

    def _prepare_last(self, source, rule, target, workers, tile, c_row) -> tuple:
        line, size, step = rule.axes[-1], source.itemsize, rule.strides[-1]
        if rule.span > np.iinfo(np.int32).max:
            raise ValueError(
                f"convolution: an image of {rule.span} elements needs offsets above 31 bits"
            )
        width, height = line.count, math.prod(a.count for a in rule.axes[:-1])
        tile = replace(tile, rows=_height(tile, width), vectors=1)
        whole = _unrolls(line)
        start = -step * (line.extent - 1) if step < 0 else 0
        parts = _parts(line, whole)
        parts[:, 0] = start + parts[:, 0] * step
        inside = [line.inside(t, 0, width) for t in range(len(line.offsets))]
        outer_taps = rule.taps // len(line.offsets)
        outer = rule.arithmetic()[: height * outer_taps]
        self.find = np.concatenate([outer, parts.ravel()]).astype(np.int32)
        self.origin = rule.origin * size
        self.workers = max(1, min(workers, target.shape[1] * height))
        room = planning.round_up((tile.rows + 2) * tile.lanes * tile.dtype.size, 4096)
        self.space = room * self.workers
        rows = outer_taps * line.extent * size  # bytes of a channel's
        near = max(2, block_bytes() // (2 * rows * tile.lanes)) * tile.lanes
        to_next = line.step * step * size
        x_row, fresh = 0, 0
        if len(rule.axes) > 1:
            far = source.nbytes + target.nbytes > FAR * block_bytes()
            x_row, fresh = rule.strides[-2] * size, rule.axes[-2].step if far else 0
        self.fixed = (
            target.shape[0], height, outer_taps, width, len(parts), max(b for b, _ in inside),
            min(e for _, e in inside), line.step if whole else 1, target.shape[1],
            source.strides[0], target.strides[1], c_row, target.strides[-2], target.strides[0],
            to_next, step * size if whole else to_next, x_row, fresh, near, room, self.workers,
        )  # fmt: skip
        return tile, (1, len(line.offsets) if whole else 1), (1, line.step if whole else 1)

    def _prepare_first(self, source, rule, target, workers, tile, c_row) -> tuple:
        if len(rule.axes) > 2:
            raise Refused
        two = len(rule.axes) == 2
        rows, line = rule.axes if two else (Axis(1, 1, 1, (0,)), rule.axes[0])
        if line.step > 2 or (line.extent > 1 and rule.strides[-1] != 1):
            raise Refused
        x_row = source.strides[-2] if two else 0
        tile = replace(tile, rows=_height(tile, rows.count), vectors=1)
        whole = _unrolls(rows) and _unrolls(line)
        taps = (len(rows.offsets), len(line.offsets)) if whole else (1, 1)
        steps = rows.step if whole else 1, line.step
        outer, inner = _parts(rows, whole), _parts(line, whole)[:, 0]
        self.find = np.concatenate([outer.ravel(), inner]).astype(np.int32)
        self.origin = 0
        channels, images = target.shape[:2]
        self.workers = max(1, min(workers, channels * images))
        vectors = tile.rows + 1 - -reach_of(tile.lanes, taps, steps) // tile.lanes
        far = source.nbytes + target.nbytes > FAR * block_bytes()
        room = planning.round_up(vectors * tile.lanes * tile.dtype.size, 4096)
        self.space = room * self.workers
        self.fixed = (
            channels, rows.count, line.count, len(outer), len(inner), images, line.extent,
            steps[0], rows.step, source.strides[0], source.strides[1], x_row,
            x_row if whole else rows.step * x_row, source.strides[1] if far else 0,
            target.strides[1], target.strides[0], c_row, target.strides[-2], room, self.workers,
        )  # fmt: skip
        return tile, taps, steps

    def run(self, source: np.ndarray, taps: Taps, target: np.ndarray, extra: Any = None) -> None:
        """Convolve arrays like those this was made for; extra: an epilogue's table."""
        self._launch(source, taps.data, target, self.find, (self.zero,), 0, extra)
