"""A convolution as one call of compiled code: the kernel, its rule and its team, made ready once.

`Ready` holds what depends on shapes, strides and dtypes alone; running it costs three addresses and
a call.

Extra memory: one block of packed pixels a worker, at most `block_bytes` or one panel (MR pixels of
all their taps and channels) where that is more, and the rule: a few integers an output row and
column, or for 'indirect' one an output pixel and tap, made and used in parts of at most `TABLE`
bytes.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemm import execution
from gemm import plan as planning
from gemm.convolution.gather import Gather
from gemm.convolution.geometry import Axis, pointwise
from gemm.convolution.loops import NOTE
from gemm.convolution.packing import CHUNK
from gemm.convolution.routine import Routine
from gemm.convolution.specs import ConvolutionSpec, FilterSpec
from gemm.grouping import flips
from gemm.microkernels.dtypes import DType, TileShape, int8, uint8
from gemm.planner import block_units, workers_for
from gemm.targets import element_type, levels, tile_of_blocks
from gemm.threads import get_num_threads

TABLE = 1 << 20
KEPT_TABLE = 1 << 18  # bytes of a table that a repeated call finds ready
NEAR = 3 << 18  # bytes of filters that a second-level cache keeps beside what passes
FOLDED_ROWS = 1 << 14  # output rows up to which the images of a batch become one

_arguments = struct.Struct("=39q")


@dataclass(frozen=True)
class Panels:
    """Filters of each group in panels of `width`, all of K deep.

    tile: the machine's. form: 'rows', where they are operand B and width its
    columns, or 'columns', where they are operand A and width its rows (loops.py). data: (groups,
    panels, K, width) of the accumulator's type, aligned to cache lines. With units, (groups,
    panels, 1 + K / 4, width) of 32 bits: the sum of each filter, then four k in each, K rounded up
    to whole units. depth: K.
    """

    level: str
    tile: TileShape
    count: int  # filters of one group
    data: np.ndarray
    depth: int
    units: tuple[DType, DType] | None = None
    form: str = "rows"

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.data.shape[0]

    def matrix(self) -> np.ndarray:
        """(groups, K, filters) again, a copy."""
        groups, wide, k, columns = self.data.shape
        rows = self.data.swapaxes(1, 2)
        if self.units is not None:
            quads = rows[:, 1:].reshape(groups, k - 1, wide, columns, 1).view(np.int8)
            rows = np.moveaxis(quads, -1, 2)
        rows = rows.reshape(groups, -1, wide * columns)
        return rows[:, : self.depth, : self.count]


def stays_near(rows: int, step: int) -> bool:
    """Whether the second-level cache holds a piece of two vectors from each of these rows, `step`
    bytes apart, with room to spare: at some steps they share a few of its sets."""
    from gemm.backends.cpu.machine import machine

    second = machine().caches[1]
    sets = max(1, second.size // second.ways // LINE)
    places = sets // math.gcd(max(1, step // LINE), sets)
    return PIECE * rows <= second.ways * min(sets, PIECE * places) // 4


LINE, PIECE = 64, 3  # bytes of a cache line; lines of a piece that does not begin with one


@functools.cache
def block_bytes() -> int:
    """Bytes of packed pixels that a worker keeps: a good half of its second-level cache, 1.5 MiB
    at most.
    """
    from gemm.backends.cpu.machine import machine

    _, second, _ = machine().caches
    share = second.size // max(1, second.shared_by)
    return min(share * 5 // 8, 3 << 19)


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An uninitialised array whose memory begins on a cache line, with one vector of slack."""
    size = math.prod(shape) * dtype.itemsize
    raw = np.empty(size + 128, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.ctypes.data % 64)


def panels_of(
    matrix: np.ndarray,
    level: str,
    tile: TileShape,
    units: tuple[DType, DType] | None = None,
    form: str = "rows",
) -> Panels:
    """The panels of (groups, K, filters); places beyond the last filter repeat it.

    tile: the machine's. units: int8 filters in the units of a dot-product instruction.
    """
    groups, k, count = matrix.shape
    width = tile.columns if form == "rows" else filter_rows(tile.rows, count)
    if units is None:
        data = in_panels(matrix, width, np.dtype(tile.dtype.name))
        return Panels(level, tile, count, data, k, None, form)
    wide = -(-count // width)
    quads = -(-k // units[0].group) * units[0].group // 4
    data = aligned((groups, wide, 1 + quads, width), np.dtype(np.int32))
    data[...] = 0
    for p in range(wide):
        part = matrix[:, :, p * width : (p + 1) * width]
        some = part.shape[2]
        data[:, p, 0, :some] = part.sum(1, dtype=np.int32)
        quads = data[:, p, 1:, :some].reshape(groups, -1, some, 1).view(np.int8)
        whole = np.zeros((groups, quads.shape[1] * 4, some), np.int8)
        whole[:, :k] = part
        quads[...] = whole.reshape(groups, -1, 4, some).swapaxes(2, 3)
        data[:, p, 1:, :some] = quads.view(np.int32)[..., 0]
        data[:, p, :, some:] = data[:, p, :, some - 1 : some]
    return Panels(level, tile, count, data, k, units, form)


def in_panels(matrix: np.ndarray, width: int, dtype: np.dtype) -> np.ndarray:
    """(groups, panels, K, width) of (groups, K, filters), the last filter repeated."""
    groups, k, count = matrix.shape
    data = aligned((groups, -(-count // width), k, width), dtype)
    for p in range(data.shape[1]):
        part = matrix[:, :, p * width : (p + 1) * width]
        data[:, p, :, : part.shape[2]] = part
        data[:, p, :, part.shape[2] :] = part[..., -1:]
    return data


def panels_of_array(w: np.ndarray, groups: int, level: str, tile: TileShape, form: str) -> Panels:
    """The same from filters (O, I, *kernel) of the accumulator's storage or a narrower one, by the
    engine's own routine; their kernel axes must be one strided axis."""
    routine, shape = packing(w, groups, level, tile, form)
    data = aligned(shape, np.dtype(tile.dtype.name))
    routine.run(w, data)
    return Panels(level, tile, w.shape[0] // groups, data, shape[2], None, form)


def packing(w: np.ndarray, groups: int, level: str, tile: TileShape, form: str):
    """(what fills the panels of filters like these, the panels' shape)."""
    count, channels, taps = w.shape[0] // groups, w.shape[1], math.prod(w.shape[2:])
    width = tile.columns if form == "rows" else filter_rows(tile.rows, count)
    shape = groups, -(-count // width), taps * channels, width
    spec = FilterSpec(width, tile.lanes, element_type(w.dtype), tile.dtype)
    step = merged_step(w.shape[2:], w.strides[2:])
    integers = groups, count, channels, taps, count * w.strides[0], *w.strides[:2], step
    workers = workers_for(level, tile.dtype, w.size * 4, get_num_threads())
    return Routine(level, spec, integers, workers), shape


def filter_rows(most: int, count: int) -> int:
    """Rows of the tile of the columns form for so many filters, of a few heights that a kernel may
    have: the least time for all panels, a row costing one and a panel one more."""
    heights = sorted({most, most - 1, most - 2, most // 2 + 1} & set(range(1, most + 1)))
    return min(reversed(heights), key=lambda rows: -(-count // rows) * (rows + 1))


class Refused(Exception):
    """The arrays do not have the steps that the kernel walks."""


class Launch:
    """What every convolution kernel's call shares.

    A subclass sets spec, level, workers, space (bytes), origin (bytes from the lowest pixel to the
    first), fixed (the integers that end the argument table) and layout (its struct).
    """

    spec: Any
    level: str
    workers: int
    space: int
    origin: int
    fixed: tuple[int, ...]
    layout: struct.Struct

    def _load(self) -> None:
        self.team_of_threads: Any = None
        if self.level != "reference":
            from gemm.backends.cpu import kernels
            from gemm.backends.cpu.team import team

            level = levels()[self.level]
            self.entry = kernels.entry(level, self.spec)
            if self.workers > 1:
                self.team_of_threads = team(level)

    def _launch(self, source, filters, target, find, lead: tuple[int, ...], at: int, extra,
                room: int = 0) -> None:  # fmt: skip
        """lead: the integers before `fixed`; at: bytes from the target's first element; room:
        address of scratch, 0 where it is to be taken."""
        if self.level == "reference":
            self._launch_reference(source, filters, target, find, lead, at, extra)
            return
        address = execution.address
        table = bytearray(self.layout.size)
        space = None if room else execution.take_space(self.space)
        scratch = room if space is None else space[1]
        try:
            self.layout.pack_into(
                table, 0, address(source) - self.origin, address(filters), address(target) + at,
                address(find), scratch, 0 if extra is None else address(extra), *lead, *self.fixed,
            )  # fmt: skip
            held = ctypes.c_char.from_buffer(table)
            arguments = ctypes.addressof(held)
            if self.team_of_threads is None:
                self.entry(arguments, 0)
            else:
                self.team_of_threads.run(self.entry.address, arguments, self.workers)
        finally:
            if space is not None:
                execution.give_space(space)

    def _launch_reference(self, source, filters, target, find, lead, at, extra) -> None:
        from gemm.backends.reference.run import pointer, run

        function, kinds = self.spec.build()
        space = np.full(self.space, 0xFF, np.uint8)  # NaN: nothing may read what was not packed
        pointers = [
            pointer(source, kinds[0], -self.origin),
            pointer(filters, kinds[1]),
            pointer(target, kinds[2], at),
            pointer(find, uint8),
            pointer(space, uint8),
            pointer(np.zeros(0, np.uint8), uint8) if extra is None else extra,
        ]
        run(function, (*pointers, *lead, *self.fixed), self.workers)


class Ready(Launch):
    """A convolution of arrays of these shapes and strides with panels of these shapes.

    source: (N, groups, channels, *spatial). target: (groups, N, *outputs, filters). Both only show
    their shapes, strides and dtypes. program: an epilogue's, whose main output is the target seen
    as (groups, N, pixels, filters), filters first when `turned`. zero: the zero point of 8-bit
    pixels, which panels of units take off and which stands outside the image.
    """

    merges_groups = False
    layout = _arguments

    @staticmethod
    def is_turned(source, target) -> bool:
        """Whether filters are the rows of what an epilogue sees."""
        return is_turned(target)

    def __init__(self, source, axes: tuple[Axis, ...], panels: Panels, target, by_table: bool,
                 threads: int, program: Any = None, turned: bool | None = None,
                 zero: int = 0):  # fmt: skip
        if turned is None:
            turned = is_turned(target)
        tile, size, form = panels.tile, source.itemsize, panels.form
        if form == "columns":
            tile = replace(tile, rows=panels.data.shape[-1])
        groups, images = target.shape[:2]
        pixel_shape, filters = target.shape[2:-1], target.shape[-1]
        pixel_steps = target.strides[2:-1]
        strides = source.strides[3:]
        x_image, c_image = source.strides[0], target.strides[1]
        fold = merged_step((images, *pixel_shape), (c_image, *pixel_steps))
        outer_rows = images * math.prod(pixel_shape[:-1])
        if turned and fold != target.itemsize:
            fold = None  # one pixel an image: the images' pixels need not be adjacent
        if images > 1 and program is None and fold is not None and outer_rows <= FOLDED_ROWS:
            axes = (Axis(images, images, 1, (0,)), *axes)
            strides, pixel_shape = (x_image, *strides), (images, *pixel_shape)
            pixel_steps = (c_image, *pixel_steps)
            images = 1
        rs = merged_step(pixel_shape, pixel_steps)
        pixels = math.prod(pixel_shape)
        segments, c_segment = 1, 0
        if rs is None:
            lines = merged_step(pixel_shape[:-1], pixel_steps[:-1])
            if lines is None or program is not None:
                raise Refused
            segments, c_segment, rs = math.prod(pixel_shape[:-1]), lines, pixel_steps[-1]
        channels, channel_stride = source.shape[2], source.strides[2]
        if any(s % size for s in (*strides, channel_stride)):
            raise Refused
        rule = Gather(axes, tuple(s // size for s in strides), channels, channel_stride // size)
        self.rule, self.by_table, self.itemsize = rule, by_table, size
        if rule.span > np.iinfo(np.int32).max:
            raise ValueError(
                f"convolution: an image of {rule.span} elements needs offsets above 31 bits"
            )
        units = panels.units
        if form == "rows" and rule.channel_stride != 1 and channels != 1:
            raise Refused
        kind = element_type(source.dtype)
        blocks = units is not None and units[0].size > 4
        if blocks:
            tile = tile_of_blocks(panels.level, tile.dtype, None)
            units = block_units(panels.level, kind, int8, tile.dtype)
        surplus = 128 if units is not None and flips(kind, units[0]) else 0
        same = kind is tile.dtype and not by_table
        # Bytes are whole units already where those are not of two pixels.
        unit = 64 if blocks else 4
        whole = units is not None and not by_table and not (surplus and not blocks)
        whole = whole and channels * len(rule.axes[-1].offsets) % unit == 0
        shift = self._adjacent(segments) if form == "columns" and not by_table else None
        if shift is not None:
            near = stays_near(channels, rule.channel_stride * size)
            lies = (0, 1) if same and near else (2, 1)
        else:
            lies = self._as_it_lies(form == "rows" and (same or whole))
        self.offset = -(zero + surplus), (zero + surplus & 255) * 0x01010101, *lies
        self.spec = ConvolutionSpec(
            tile, kind, element_type(target.dtype), form, by_table, turned, program, units,
        )  # fmt: skip
        self.level = panels.level
        self.origin = (rule.origin - (shift or 0)) * size
        last = rule.axes[-1]
        pixel_step = rule.strides[-1] * last.step
        width, inner_taps = last.count, len(last.offsets)
        outer_taps = rule.taps // inner_taps
        height = rule.pixels // width
        k = rule.taps * channels
        work = images * pixels * filters * k * groups
        workers = workers_for(self.level, tile.dtype, work, threads)
        panel = tile.rows if form == "rows" else tile.columns  # pixels
        each = segments * -(-(pixels // segments) // panel)
        wide = panels.data.shape[1]
        self.team = _team(groups, images * each, wide, workers)
        self.workers = math.prod(self.team)
        group = 1 if units is None else units[0].group
        unit = tile.dtype.size if units is None else units[0].size
        room = planning.round_up(-(-k // group), 1 if blocks else CHUNK) * tile.rows * unit
        share = -(-images * each // self.team[1])
        if form == "columns":
            room = k * tile.columns * tile.dtype.size
        # Few filters stay in the second-level cache while pixels pass, panel by panel; many are
        # worth a block of panels each time they come.
        far = k // group * filters * unit > NEAR
        most = max(1, block_bytes() // max(room, 1))
        block = planning.balanced(share, most, 1) if far or form == "columns" else 1
        if lies == (0, 1) and not far:
            block = 1
        rest = (tile.rows + 1) * tile.columns * tile.dtype.size + 64
        notes = block * NOTE
        worker_room = planning.round_up(rest + notes + block * room + 256, 4096)
        self.space = worker_room * self.workers
        b_panel = panels.data.strides[1]
        self.fixed = (
            filters, channels, height, outer_taps, width, inner_taps, rule.channel_stride,
            pixel_step, c_segment, images, groups, x_image, source.strides[1],
            b_panel * wide, b_panel, c_image, target.strides[0], rs, target.strides[-1], block,
            room, notes, worker_room, *self.team,
        )  # fmt: skip
        if by_table:
            self.part = max(1, TABLE // (4 * rule.taps)) // width * width or width
            self.find = None
            if pixels <= self.part and 4 * rule.taps * pixels <= KEPT_TABLE:
                self.find = rule.table()
        else:
            self.part = max(pixels, 1)
            self.find = rule.arithmetic() if shift is None else np.zeros(1, np.int32)
        self.pixels, self.width = pixels, width
        self.segmented, self.step = segments > 1, c_segment if segments > 1 else rs
        self._load()

    def _adjacent(self, segments: int) -> int | None:
        """Elements from the first pixel to the one that the first output reads, where each output
        reads one pixel and the next the next in memory; None elsewhere."""
        rule = self.rule
        if segments != 1 or not pointwise(rule.axes):
            return None
        step = merged_step(
            [a.count for a in rule.axes],
            [a.step * s for a, s in zip(rule.axes, rule.strides, strict=True)],
        )
        return rule.offset(0, 0) if step == 1 or rule.pixels == 1 else None

    def _as_it_lies(self, possible: bool) -> tuple[int, int]:
        """The output columns low .. high - 1 whose panels need no packing; (1, 0): none do.

        All their taps lie inside, those of the last axis one behind the other. Where one pixel is
        read for each and all are one step apart, panels may run over the ends of rows: high is then
        without bound. Pixels a page apart would share a few sets of a cache: those are packed.
        """
        rule, last = self.rule, self.rule.axes[-1]
        step = rule.strides[-1] * last.step
        if not possible or step * self.itemsize % 4096 == 0 or not last.offsets:
            return 1, 0
        apart = [b - a for a, b in zip(last.offsets, last.offsets[1:], strict=False)]
        if any(d * rule.strides[-1] != rule.channels for d in apart):
            return 1, 0
        spans = [last.inside(tap, 0, last.count) for tap in range(len(last.offsets))]
        low, high = max(b for b, _ in spans), min(e for _, e in spans)
        if rule.taps == 1 and (low, high) == (0, last.count):
            offsets = rule.table()[:, 0] if rule.pixels <= 1 << 16 else np.array([0, -1])
            if (np.diff(offsets) == step).all() and offsets[0] >= 0:
                return 0, 1 << 40
        return (low, high) if low < high else (1, 0)

    def run(self, source: np.ndarray, panels: Panels, target: np.ndarray, extra: Any = None,
            after: int = 0, space: int = 0):  # fmt: skip
        """Convolve arrays like those this was made for; extra: an epilogue's table; after: bytes
        from the first image of `target` to the first that is meant; space: address of scratch,
        where the caller has some."""
        for begin in range(0, self.pixels, self.part):
            count = min(self.part, self.pixels - begin)
            find = self.find
            if find is None:
                find = self.rule.table(begin, begin + count)
            segments, at = self._segments(begin, count)
            lead = begin, count, segments, *self.offset
            self._launch(source, panels.data, target, find, lead, at + after, extra, space)

    def _segments(self, begin: int, count: int) -> tuple[int, int]:
        """(segments of a part, bytes from the first pixel of the target to the part's)."""
        if self.segmented:
            return count // self.width, begin // self.width * self.step
        return 1, begin * self.step


def form_of(source: np.ndarray, target: np.ndarray) -> str:
    """The form of the panels of pixels of a source (N, groups, channels, *spatial) as it lies."""
    if source.shape[2] == 1:
        along = source.strides[-1] == source.itemsize and is_turned(target)
        return "columns" if along else "rows"
    return "rows" if source.strides[2] == source.itemsize else "columns"


def is_turned(target: np.ndarray) -> bool:
    """Whether pixels of the target (groups, N, *outputs, filters), not filters, are adjacent."""
    axes = zip(target.shape[2:-1], target.strides[2:-1], strict=True)
    steps = [step for extent, step in axes if extent > 1]
    adjacent = not steps or steps[-1] == target.itemsize
    return adjacent and target.strides[-1] != target.itemsize


def merged_step(shape, steps) -> int | None:
    """The step of these axes as one, None where they are not one; 0 for a single position."""
    step, one = None, 0
    for extent, stride in zip(reversed(shape), reversed(steps), strict=True):
        if extent != 1:
            if step is not None and stride != step:
                return None
            if step is None:
                one = stride
            step = stride * extent
    return one


def _team(groups: int, panels: int, wide: int, workers: int) -> tuple[int, int, int]:
    """(over groups, over panels of pixels, over panels of filters): the least time of a share."""
    best = None
    for over_groups in range(1, workers + 1):
        for over_panels in range(1, workers // over_groups + 1):
            over_filters = workers // over_groups // over_panels
            g, p, f = -(-groups // over_groups), -(-panels // over_panels), -(-wide // over_filters)
            # Packing costs a fifth of a panel's product with one of filters; filters stream in.
            cost = g * (p * (f + 0.2) + 0.5 * f)
            if best is None or cost < best[0]:
                best = cost, (over_groups, over_panels, over_filters)
    return best[1] if best else (1, 1, 1)
