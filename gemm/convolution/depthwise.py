"""Depthwise convolutions made ready: filters tap by tap, and the kernels of depthwise_loops.py.

Extra memory a worker: for channels first the planes of a band of one channel and its results, about
`BAND` bytes or one output row where that is more; for channels last one tile.
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
from gemm.convolution.product import Launch, Refused, aligned, merged_step
from gemm.convolution.specs import DepthwiseSpec
from gemm.microkernels.dtypes import TileShape
from gemm.planner import workers_for
from gemm.targets import element_type

BAND = 24 << 10  # bytes of a channel's planes: with their results they fit a first-level cache
TALL = 12  # pixels or vectors of a tile: they cover the latency of the multiply-adds
_FIRST, _LAST = struct.Struct("=32q"), struct.Struct("=22q")


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
        self.level, self.zero = taps.level, zero
        tile = replace(taps.tile, rows=TALL, vectors=1)
        channels, images = target.shape[:2]
        size = source.itemsize
        outputs, steps = target.shape[2:-1], target.strides[2:-1]
        c_row = merged_step(outputs[:-1], steps[:-1])
        if c_row is None or any(s % size for s in source.strides[3:]):
            raise Refused
        self.spec = DepthwiseSpec(
            tile, element_type(source.dtype), element_type(target.dtype), last, program
        )
        rule = Gather(axes, tuple(s // size for s in source.strides[3:]), 1, 1)
        work = images * rule.pixels * rule.taps * channels
        # A tap of a vector takes twice the time of a panel's: its operand is loaded.
        workers = workers_for(self.level, tile.dtype, 2 * work, threads)
        width, height = outputs[-1], math.prod(outputs[:-1])
        if last:
            self._prepare_last(source, rule, target, workers, height, width, c_row)
        else:
            self._prepare_first(source, axes, target, workers, c_row)
        self._load()

    def _prepare_last(self, source, rule, target, workers, height, width, c_row) -> None:
        tile, last = self.spec.tile, rule.axes[-1]
        if rule.span > np.iinfo(np.int32).max:
            raise ValueError(
                f"convolution: an image of {rule.span} elements needs offsets above 31 bits"
            )
        self.origin = rule.origin * source.itemsize
        self.find = rule.arithmetic()
        self.workers = max(1, min(workers, target.shape[1] * height))
        room = planning.round_up((tile.rows + 3) * tile.lanes * tile.dtype.size, 4096)
        self.space = room * self.workers
        inner_taps = len(last.offsets)
        below = 0
        if all(axis.count == 1 for axis in rule.axes[:-2]) and len(rule.axes) > 1:
            below = rule.axes[-2].step * rule.strides[-2] * source.itemsize
        self.fixed = (
            target.shape[0], height, rule.taps // inner_taps, width, inner_taps, target.shape[1],
            source.strides[0], target.strides[1], c_row, target.strides[-2], target.strides[0],
            last.step * rule.strides[-1] * source.itemsize, below, room, self.workers,
        )  # fmt: skip
        self.layout = _LAST

    def _prepare_first(self, source, axes, target, workers, c_row) -> None:
        if len(axes) > 2:
            raise Refused
        tile, size = self.spec.tile, source.itemsize
        channels, images = target.shape[:2]
        rows = axes[0] if len(axes) == 2 else Axis(1, 1, 1, (0,))
        line = axes[-1]
        x_row = source.strides[-2] if len(axes) == 2 else 0
        before = [max(0, -min(axis.offsets)) for axis in (rows, line)]
        reach = [
            (max(axis.offsets) + b) // axis.step
            for axis, b in zip((rows, line), before, strict=True)
        ]
        columns = line.count + reach[1]
        phases = rows.step * line.step
        acc_size = tile.dtype.size
        band = BAND // (phases * columns * acc_size) - reach[0]
        band = max(1, min(band, rows.count))
        plane_rows = band + reach[0]
        plane = plane_rows * columns
        distances = [
            ((u + before[0]) % rows.step * line.step + (v + before[1]) % line.step) * plane
            + (u + before[0]) // rows.step * columns + (v + before[1]) // line.step
            for u in rows.offsets for v in line.offsets
        ]  # fmt: skip
        self.find = np.array(distances, np.int32)
        self.origin = 0
        slack = tile.rows * tile.lanes
        flat_room = planning.round_up((phases * plane + slack) * acc_size, 64)
        room = planning.round_up(flat_room + (band * columns + 2 * slack) * acc_size, 4096)
        self.workers = max(1, min(workers, channels * images))
        self.space = room * self.workers
        self.fixed = (
            channels, rows.count, line.count, len(distances), images, rows.extent, line.extent,
            *before, rows.step, line.step, source.strides[0], source.strides[1], x_row,
            source.strides[-1] // size, target.strides[1], target.strides[0], c_row,
            target.strides[-2], band, plane_rows, columns, flat_room, room, self.workers,
        )  # fmt: skip
        self.layout = _FIRST

    def run(self, source: np.ndarray, taps: Taps, target: np.ndarray, extra: Any = None) -> None:
        """Convolve arrays like those this was made for; extra: an epilogue's table."""
        self._launch(source, taps.data, target, self.find, (self.zero,), 0, extra)
