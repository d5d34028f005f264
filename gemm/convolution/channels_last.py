"""Small images channels first, convolved as channels last on a copy.

A tile of the columns form wastes lanes where an image has few pixels, and gathers pixel by pixel
where its rows are short. Turning the image first (turning.py) costs one pass over it; the rest is
the rows form, which reads the copy as it lies.

Extra memory: the copy, of as many images at a time as fit `COPY` bytes.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gemm import execution
from gemm import plan as planning
from gemm.convolution.geometry import Axis
from gemm.convolution.product import Panels, Ready, Refused, is_turned, merged_step
from gemm.convolution.routine import Routine
from gemm.convolution.specs import TurnSpec
from gemm.planner import workers_for
from gemm.targets import element_type, tile_for

COPY = 4 << 20  # bytes


def fits(source: np.ndarray) -> bool:
    """Whether images (N, groups, channels, *spatial) can be turned: adjacent pixels, few enough."""
    pixels = math.prod(source.shape[3:])
    image = math.prod(source.shape[1:]) * source.itemsize
    return (
        0 < image <= COPY
        and merged_step(source.shape[3:], source.strides[3:]) in (source.itemsize, 0)
        and pixels > 1
        and merged_step(source.shape[1:3], source.strides[1:3]) is not None
    )


class Turn:
    """Turning of images of this shape and these strides into channels last."""

    def __init__(self, source: np.ndarray, level: str, threads: int):
        images, groups, channels = source.shape[:3]
        kind, size = element_type(source.dtype), source.itemsize
        pixels, count = math.prod(source.shape[3:]), groups * channels
        spec = TurnSpec(tile_for(level, kind.computed, None).lanes, kind)
        # Moved elements against multiply-adds of a grain: both take about as long.
        workers = workers_for(level, kind.computed, images * pixels * count, threads)
        step = merged_step(source.shape[1:3], source.strides[1:3])
        assert step is not None
        row = count * size
        integers = images, pixels, count, source.strides[0], step, pixels * row, row
        self.routine = Routine(level, spec, integers, workers)
        self.nbytes = images * pixels * row
        self.shape, self.dtype = (images, *source.shape[3:], groups, channels), source.dtype

    def view(self, memory: np.ndarray) -> np.ndarray:
        """The copy (N, groups, channels, *spatial) in this memory."""
        turned = np.ndarray(self.shape, self.dtype, memory)
        return np.moveaxis(turned, (-2, -1), (1, 2))


class Turned:
    """A convolution like `product.Ready`, of turned copies of its images."""

    merges_groups = False

    @staticmethod
    def is_turned(source, target) -> bool:
        """Whether filters are the rows of what an epilogue sees."""
        return is_turned(target)

    def __init__(self, source, axes: tuple[Axis, ...], panels: Panels, target, by_table: bool,
                 threads: int, program: Any = None, turned: bool | None = None,
                 zero: int = 0):  # fmt: skip
        images = source.shape[0]
        if not fits(source):
            raise Refused
        self.level = panels.level
        self.each = min(images, max(1, COPY // (source[0].size * source.itemsize)))
        if program is not None and self.each < images:
            raise Refused
        self.steps = source.strides[0], target.strides[1]
        self.parts: list[tuple[int, Turn, Ready]] = []
        for start in range(0, images, self.each):
            part = slice(start, min(start + self.each, images))
            if self.parts and part.stop - part.start == self.each:
                self.parts.append((start, *self.parts[0][1:]))
                continue
            turn = Turn(source[part], self.level, threads)
            model = turn.view(np.empty(turn.nbytes, np.uint8))
            ready = Ready(model, axes, panels, target[:, part], by_table, threads, program, turned,
                          zero)  # fmt: skip
            self.parts.append((start, turn, ready))

    def run(self, source: np.ndarray, panels: Panels, target: np.ndarray, extra: Any = None):
        """Convolve arrays like those this was made for; extra: an epilogue's table."""
        _, turn, ready = self.parts[0]
        after = planning.round_up(turn.nbytes, 4096)
        space = execution.take_space(after + ready.space)
        x_step, y_step = self.steps
        try:
            # The address of scratch is aligned, its owner's is not.
            at = space[1] - execution.address(space[2])
            for start, turn, ready in self.parts:
                copy = turn.view(space[2][at : at + turn.nbytes])
                turn.routine.run(source, copy, at=start * x_step)
                ready.run(copy, panels, target, extra, start * y_step, space[1] + after)
        finally:
            execution.give_space(space)


def waste(extent: int, unit: int) -> float:
    """How much more than `extent` whole units hold, as a factor."""
    return -(-extent // unit) * unit / extent


def pays(inputs: int, pixels: int, channels: int, filters: int, taps: int, lies: bool, tile,
         rows: int) -> bool:  # fmt: skip
    """Whether the rows form on a copy takes fewer cycles than the columns form.

    inputs, pixels: of an image and of its result; lies: the columns form reads pixels where they
    lie; tile: the machine's; rows: of the tile of the columns form. Counted in multiply-adds of a
    vector, two a cycle; the costs below are fitted to the layers of docs/facts.md.
    """
    lanes, K = tile.lanes, taps * channels
    vectors = pixels * waste(pixels, lanes) / lanes
    each = filters * waste(filters, rows) * (rows + 1) / rows
    columns = K * vectors * (each + (0 if lies else PACK))
    half = max(1, tile.rows // 2)
    last = K * pixels * waste(pixels, half) * -(-filters // lanes)
    turn = TURN_NEAR if channels * inputs * tile.dtype.size <= NEAR else TURN_FAR
    last += turn * channels * inputs / lanes**2
    last += STORE * -(-pixels // tile.rows) * -(-filters // tile.columns)
    return last + CALL < columns


# A square of an image turned (below `NEAR` bytes and above), a tile stored transposed, a vector of
# pixels packed, and the second call.
TURN_NEAR, TURN_FAR, NEAR = 500, 1000, 1 << 19
STORE, PACK, CALL = 800, 8, 100_000
