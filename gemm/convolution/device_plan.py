"""How a convolution of device arrays is launched: which kernel gathers, what is packed ahead.

    operand       reaches the kernel                      where
    image         gathered by the copy engine             the group-wide unit, channels adjacent
                  packed to that, then so                 the same unit, any other image
                  gathered by lanes, one by one           the other units
    image, 1x1    as a matrix                             step 1, pixels one step apart
    filters       as they lie, or packed                  channels adjacent, lines of 16 bytes
    result        as it lies, or copied from rows         filters adjacent, pixels one step apart

The unit follows from the element types, the channels of a group and the kernel's reach alone:
never from sizes, strides or alignment.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from typing import Any

from gemm import device as products
from gemm.device import Boxes, Launch, Matrix, NoBoxes, Signature
from gemm.microkernels.dtypes import DType
from gemm.microkernels.pixels import AXES
from gemm.team import choice, walk

from .geometry import Axis, pointwise

MOST_STEP = 8  # between outputs, as the copy engine counts
ALIGNED = 16


@dataclass(frozen=True)
class Images:
    """Operand A: `images` of `channels` each, and the rule by which its rows are found.

    steps in bytes; pitches: of the spatial axes; aligned: the address is a multiple of 16.
    """

    dtype: DType
    images: int
    channels: int
    image_step: int
    channel_step: int
    axes: tuple[Axis, ...]
    pitches: tuple[int, ...]
    aligned: bool

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def rows(self) -> int:
        """Output pixels."""
        return self.images * math.prod(a.count for a in self.axes)

    @property
    def taps(self) -> int:
        return math.prod(len(a.offsets) for a in self.axes)

    def rule(self) -> bytes:
        """The integers of microkernels/pixels.py."""
        numbers = [self.channels, self.channel_step, self.image_step, self.images]
        numbers += [1, 1, 1, 0, 1, 0, 0, 0] * (AXES - self.rank)
        for axis, pitch in zip(self.axes, self.pitches, strict=True):
            offsets = axis.offsets
            advance = offsets[1] - offsets[0] if len(offsets) > 1 else 0
            numbers += [axis.count, axis.step, axis.extent, pitch, len(offsets), offsets[0],
                        min(offsets), advance]  # fmt: skip
        return struct.pack(f"{len(numbers)}q", *numbers)

    def corners(self) -> list[tuple[int, int]]:
        """(lower, upper) of each axis: where first positions begin, and where they end, counted
        from the image's last position."""
        return [
            (min(a.offsets), min(a.offsets) + (a.count - 1) * a.step - (a.extent - 1))
            for a in self.axes
        ]

    def reachable(self) -> bool:
        """Whether the copy engine's numbers can say this rule."""
        bits = 16 // self.rank
        low, high = -(1 << bits - 1), (1 << bits - 1) - 1
        return all(low <= corner <= high for pair in self.corners() for corner in pair) and all(
            a.step <= MOST_STEP and max(a.offsets) - min(a.offsets) < 1 << bits for a in self.axes
        )

    def even(self) -> bool:
        """Whether the copy engine can read the image as it lies."""
        size = self.dtype.size
        extents = [self.images, *(a.extent for a in self.axes)]
        steps = [self.image_step, *self.pitches]
        used = [s for e, s in zip(extents, steps, strict=True) if e > 1]
        adjacent = self.channels == 1 or self.channel_step == size
        return adjacent and self.aligned and all(0 < s < 2**40 and s % ALIGNED == 0 for s in used)

    def described(self, backend, name: str, channels: int, pixels: int):
        """Arguments of `image_map`, without the address; channels, pixels: of a box."""
        extents = [self.channels, *(a.extent for a in reversed(self.axes)), self.images]
        steps, least = [], products.round_up(self.channels * self.dtype.size, ALIGNED)
        for extent, step in zip(
            extents[1:], [*reversed(self.pitches), self.image_step], strict=True
        ):
            steps.append(step if extent > 1 else least)
            least = steps[-1] * extent
        lower, upper = zip(*reversed(self.corners()), strict=True)
        between = (1, *(a.step for a in reversed(self.axes)), 1)
        return (backend.box_kind(name), tuple(extents), tuple(steps), lower, upper, channels,
                pixels, between)  # fmt: skip


@dataclass(frozen=True)
class Filters:
    """Operand B: `count` filters of `taps` x `channels`; steps in bytes."""

    dtype: DType
    count: int
    taps: int
    channels: int
    filter_step: int
    tap_steps: tuple[tuple[int, int], ...]
    channel_step: int
    aligned: bool

    def tap_step(self) -> int | None:
        """Bytes from a tap to the next, where that is one number."""
        rows = [row for row in self.tap_steps if row[0] > 1]
        for outer, inner in zip(rows, rows[1:], strict=False):
            if outer[1] != inner[0] * inner[1]:
                return None
        return rows[-1][1] if rows else products.round_up(self.channels * self.dtype.size, ALIGNED)


class ImageMaps(dict):
    """As `Boxes`, for an image: its map and, behind it, the rule."""

    def __init__(self, device, described, rule: bytes):
        super().__init__()
        self.device, self.described, self.rule = device, described, rule

    def __missing__(self, address: int) -> bytes:
        if len(self) >= products.RECENT_BOXES:
            self.clear()
        self[address] = found = self.device.image_map(address, *self.described) + self.rule
        return found


# -- copies --------------------------------------------------------------------------------------


def contiguous(shape, size: int) -> tuple[int, ...]:
    """C-order steps in bytes."""
    steps = []
    for extent in reversed(shape):
        steps.append(size)
        size *= max(extent, 1)
    return tuple(reversed(steps))


def copier(backend, device, dtype: DType, shape, source, target):
    """run(src, dst, stream): copies an array of this shape between two sets of steps."""
    size = dtype.size
    axes = [list(row) for row in products.merged(shape, source, target)]
    near = next((i for i, row in enumerate(axes) if row[2] == size), None)
    extent, from_k, _ = axes.pop(near) if near is not None else (1, size, size)
    axes.sort(key=lambda row: (abs(row[1]) != size, -row[0]))
    rows, from_row, to_row = axes.pop(0) if axes else (1, size, size)
    if len(axes) > products.TABLE_ROWS:
        raise ValueError(f"an array of shape {tuple(shape)} has too many irregular axes to copy")
    matrix = Matrix(rows, extent, from_row, from_k, dtype, True)
    plan = choice.pack_plan(dtype, matrix.near())
    return products.launch_pack(backend, device, plan, matrix, axes, to_row, 0)


def folds(images: Images, groups: int) -> int:
    """Channels that a pixel is padded to so that the taps of one kernel row pass as channels of one
    tap; 0 where that does not halve the stages. A function of the layer alone, as bits are."""
    size, axis = images.dtype.size, images.axes[-1]
    taps = len(axis.offsets)
    adjacent = axis.offsets == tuple(range(axis.offsets[0], axis.offsets[0] + taps))
    if groups > 1 or images.rank > 2 or taps == 1 or not adjacent:
        return 0
    each = images.channels
    while each * axis.step * size % ALIGNED:
        each += 1
    before, after = taps * -(-images.channels * size // 128), -(-taps * each * size // 128)
    return each if 2 * after <= before else 0


def _padded(backend, device, dtype: DType, outer, inner: Axis, pitch: int, channels: int,
            channel_step: int, each: int, line: int):  # fmt: skip
    """run(src, dst, stream): rows of pixels, `each` channels a pixel, zeros where there are none.

    outer: (extent, step in bytes) of images and of the axis before the last; inner: the last, whose
    taps are the positions wanted; line: bytes of a row.
    """
    (count, step), (rows, row_pitch) = outer
    axes = (Axis(rows, rows, 1, (0,)), inner, Axis(channels, 1, 1, tuple(range(each))))
    seen = Images(dtype, count, 1, step, 0, axes, (row_pitch, pitch, channel_step), True)
    plan = replace(choice.pack_plan(dtype, "k"), image=True)
    matrix = Matrix(count * rows, len(inner.offsets) * each, 0, dtype.size, dtype, True)
    return products.launch_pack(backend, device, plan, matrix, (), line, 0, seen.rule())


def folded(backend, device, images: Images, filters: Filters, each: int):
    """(images, filters, packs) in which a kernel row's taps are channels, `each` a tap.

        pixels   p0 . . p1 . . p2 . . p3 . .       padded to `each` channels, rows to all positions
        output 0 [----------------]                that outputs read; windows of neighbouring
        output 1         [----------------]        outputs overlap

    The order of K stays (kernel axes, channels); zeros join it.
    """
    size, axis = images.dtype.size, images.axes[-1]
    taps, first = len(axis.offsets), axis.offsets[0]
    pitch, positions = each * axis.step * size, (axis.count - 1) * axis.step + taps
    line = products.round_up(positions * each * size, pitch)
    extents = [1, *(a.extent for a in images.axes[:-1])][-1], [0, *images.pitches[:-1]][-1]
    read = Axis(axis.extent, 1, 1, tuple(range(first, first + positions)))
    run_a = _padded(backend, device, images.dtype, ((images.images, images.image_step), extents),
                    read, images.pitches[-1], images.channels, images.channel_step, each,
                    line)  # fmt: skip
    windows = Axis(axis.count, axis.count, 1, (0,))
    bytes_a = images.images * extents[0] * line
    images = replace(
        images, channels=taps * each, image_step=extents[0] * line, channel_step=size,
        axes=(*images.axes[:-1], windows), pitches=(line, pitch)[-images.rank :], aligned=True,
    )  # fmt: skip
    outer = ((1, 0), *filters.tap_steps[:-1])[-1]
    width = products.round_up(taps * each * size, ALIGNED)
    run_b = _padded(backend, device, filters.dtype, ((filters.count, filters.filter_step), outer),
                    Axis(taps, 1, 1, tuple(range(taps))), filters.tap_steps[-1][1],
                    filters.channels, filters.channel_step, each, width)  # fmt: skip
    filters = replace(
        filters, taps=outer[0], channels=taps * each, filter_step=outer[0] * width,
        tap_steps=((outer[0], width),), channel_step=size, aligned=True,
    )  # fmt: skip
    packs = [(0, bytes_a, run_a), (1, filters.count * filters.filter_step, run_b)]
    return images, filters, packs


# -- launches ------------------------------------------------------------------------------------


def _ring(backend, device, plan, s: Signature, images: Images, filters: Filters) -> Launch:
    """A launch of `make_ring_kernel` whose A the copy engine gathers."""
    kernel = products.load_kernel(backend, device, plan)
    m, n, name = s.a.rows, s.b.rows, s.a.dtype.name
    bm, _, bk = plan.block
    groups, x_step, w_step, c_step = (*s.batch, (1, 0, 0, 0))[0]
    # Rows beyond the operands are not asked for, as in `products.box_of`.
    pixels = min(bm, products.round_up(m, 8))
    share = min(plan.share[0], products.round_up(n, 8))
    described = images.described(backend, name, bk, pixels)
    if groups > 1:
        # Each group reads its channels of the one map.
        channels = x_step // s.a.dtype.size * groups
        described = (described[0], (channels, *described[1][1:]), *described[2:])
    extents = (filters.channels, n, filters.taps, groups)
    steps, least = [], products.round_up(filters.channels * s.b.dtype.size, ALIGNED)
    given = (filters.filter_step, filters.tap_step() or 0, w_step)
    for extent, step in zip(extents[1:], given, strict=True):
        steps.append(step if extent > 1 else least)
        least = steps[-1] * extent
    b_box = (backend.box_kind(name), extents, tuple(steps), (bk, share, 1, 1), True)
    c_box: Any = None
    if plan.store == "box" and plan.program is None:
        size = s.out.size
        row = s.c_row if m > 1 else products.round_up(n * size, ALIGNED)
        box = (min(128 // size, plan.tile.columns), plan.tile.box_rows)
        c_box = (backend.box_kind(s.out.name), (n, m), (row,), box, True)
        if plan.batched:
            c_box = (
                c_box[0],
                (n, m, groups, 1),
                (row, c_step, c_step * groups),
                (*box, 1, 1),
                True,
            )
    down, across, rows, columns = walk(plan, m, n)
    spans = rows * columns * groups
    grid = products.spread(spans * plan.peers, device.units * plan.teams_per_unit, plan.peers)
    steps_k = images.taps * -(-images.channels // bk)
    expected = (pixels + plan.peers * share) * bk * s.a.dtype.size
    tail = (m, n, steps_k, expected, 0, rows, columns, spans, groups, images.channels, 0, 1, 0,
            s.c_row, c_step, 0, down, across)  # fmt: skip
    launch = kernel.bind(grid, *tail)
    a_map, b_map = ImageMaps(device, described, images.rule()), Boxes(device, b_box)
    c_map = Boxes(device, c_box) if c_box else NoBoxes()

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        launch(stream, a_map[a], b_map[b], c_map[c], c, scale_a, scale_b, extra)

    return run


def _lanes(backend, device, s: Signature, images: Images, unit: str, kind: str) -> Launch:
    """A launch of `make_team_kernel` whose lanes gather A."""
    acc = products.accumulator(s.a.dtype, s.out)
    last = abs(images.channel_step) <= min(map(abs, images.pitches))
    near = ("k" if last else "rows", s.b.near())
    along = ("k", "k") if unit == "matrix" else near
    plan = products.team_plan(device.target, unit, kind, s, acc, along, "held", near, False)
    plan = replace(plan, image=images.rank)
    kernel = products.load_kernel(backend, device, plan)
    down, across, rows, columns = walk(plan, s.a.rows, s.b.rows)
    spans = rows * columns * s.count
    tail = (products.table_of(s.batch) + images.rule(), s.a.rows, s.b.rows, s.a.depth, 0, 0,
            s.b.k_step, s.b.row_step, s.c_row, rows, columns, spans, down, across)  # fmt: skip
    launch = kernel.bind(min(spans, device.units * 16), *tail)

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        launch(stream, a, b, c, extra)

    return run


def unit_of(facts, s: Signature, images: Images, groups: int) -> tuple[str, str]:
    """(unit, kind): a pure function of types, channels of a group, and the kernel's geometry."""
    unit, kind = products.unit_of(facts, s)
    whole = groups == 1 or images.channels * s.a.dtype.size % 128 == 0
    if unit == "wide" and not (whole and images.reachable()):
        return "lanes", ""
    return unit, kind


# (BM, BN, teams that share panels of B, teams of a multiprocessor) of a kernel that gathers.
IMAGE_BLOCKS = (
    (128, 256, 2, 1), (128, 256, 1, 1), (128, 128, 2, 1), (128, 128, 1, 1), (128, 64, 2, 1),
    (128, 64, 1, 2), (64, 256, 1, 1), (64, 128, 2, 1), (64, 128, 1, 1), (64, 64, 2, 1),
    (64, 64, 1, 2), (64, 32, 1, 2),
)  # fmt: skip
# Of a multiprocessor, a cycle: the matrix unit's products of 128-byte rows, as often reached;
# bytes from the second-level cache while all ask, and while few do; bytes of all from memory.
PRODUCTS, SHARED_BYTES, OWN_BYTES, MEMORY_BYTES = 27, 26, 56, 2200
FILLING = 200  # cycles in which a filling lane asks for a stage


def image_block(units: int, m: int, n: int, steps: int, once: int, count: int, narrow: bool,
                plain: bool) -> tuple[tuple[int, int], int, int]:  # fmt: skip
    """(block, peers, teams of a multiprocessor) with the least estimated time.

    A gathered A crosses the second-level cache once for each tap, unlike a matrix, and memory only
    once: `once` bytes, with filters and result. steps: stages of a block; narrow, plain: as of
    `products.wide_block`.
    """

    def cost(choice) -> float:
        bm, bn, peers, teams = choice
        blocks = -(-m // (bm * peers)) * peers * -(-n // bn) * count
        longest = -(-blocks // units)  # blocks of one multiprocessor
        if teams > 1 and longest == 1:
            teams = 1
        # Filling runs ahead of a write-back, products do not.
        leaving = (bm * bn / 24 + 700) / teams
        return max(
            longest * (steps * bm * bn / PRODUCTS + leaving),
            longest * steps * (bm + bn) * 128 / OWN_BYTES,
            longest * steps * FILLING / teams,
            blocks * steps * (bm + bn / peers) * 128 / (units * SHARED_BYTES),
            once / MEMORY_BYTES,
        ) + bm * bn / 24  # fmt: skip

    fit = [
        (bm, bn, peers, teams) for bm, bn, peers, teams in IMAGE_BLOCKS
        if not (narrow and bm * bn > 128 * 128) and not (teams > 1 and not plain)
        and not (peers > 1 and m <= bm)
    ]  # fmt: skip
    bm, bn, peers, teams = min(fit, key=cost)
    return (bm, bn), peers, teams


def _wide(backend, device, s: Signature, images: Images, filters: Filters, unit, kind) -> Launch:
    """The group-wide matrix unit; what the copy engine cannot read as it lies is packed first."""
    packs: list[tuple] = []
    size, groups = images.dtype.size, s.count
    each = folds(images, groups)
    if each:
        kept = images, filters, packs
        images, filters, packs = folded(backend, device, images, filters, each)
        try:
            # Windows that overlap are beyond what the driver's manual promises.
            device.image_map(1 << 20, *images.described(backend, images.dtype.name, 8, 8))
        except RuntimeError:
            images, filters, packs = kept
    if not images.even():
        # Channels of all groups last, pixels in lines of whole 16 bytes.
        channels = images.channels * groups
        extents = [a.extent for a in images.axes]
        line = products.round_up(channels * size, ALIGNED)
        shape = (images.images, *extents, channels)
        steps = (*contiguous(shape[:-1], line), size)
        source = (images.image_step, *images.pitches, images.channel_step)
        run = copier(backend, device, images.dtype, shape, source, steps)
        packs.append((0, steps[0] * max(images.images, 1), run))
        images = replace(images, image_step=steps[0], pitches=steps[1:-1], channel_step=size)
        s = replace(s, batch=tuple((e, images.channels * size, y, z) for e, _, y, z in s.batch))
    tap_step = filters.tap_step()
    w_step = s.batch[0][2] if s.batch else 0
    lines = [filters.filter_step, tap_step or 1, w_step]
    extents_b = (filters.count, filters.taps, groups)
    even = filters.aligned and all(
        e == 1 or (0 < x < 2**40 and x % ALIGNED == 0)
        for e, x in zip(extents_b, lines, strict=True)
    )
    adjacent = filters.channel_step == size or filters.channels == 1
    if not (even and adjacent and tap_step is not None):
        line = products.round_up(filters.channels * size, ALIGNED)
        taps = [e for e, _ in filters.tap_steps]
        shape = (groups, filters.count, *taps, filters.channels)
        steps = (*contiguous(shape[:-1], line), size)
        source = (w_step, filters.filter_step, *(x for _, x in filters.tap_steps),
                  filters.channel_step)  # fmt: skip
        run = copier(backend, device, filters.dtype, shape, source, steps)
        packs.append((1, steps[0] * groups, run))
        filters = replace(
            filters, filter_step=steps[1], channel_step=size, aligned=True,
            tap_steps=tuple(zip(taps, steps[2:-1], strict=True)),
        )  # fmt: skip
        s = replace(s, batch=tuple((e, x, steps[0], z) for e, x, _, z in s.batch))
    m, n = s.a.rows, s.b.rows
    stages = images.taps * -(-images.channels * size // 128)
    once = images.images * math.prod(a.extent for a in images.axes) * images.channels * size
    once = groups * (once + n * stages * 128 + m * n * s.out.size)
    chain = products.FLOAT8_CHAIN if kind.startswith("float8") else 0
    narrow, plain = bool(chain) or s.exponential, s.program is None and not chain
    block, peers, teams = image_block(device.units, m, n, stages, once, groups, narrow, plain)
    steps_c = [row[3] for row in s.batch] + ([s.c_row] if m > 1 else [])
    c_fits = s.c_aligned and all(0 < x < 2**40 and x % ALIGNED == 0 for x in steps_c)
    store = "box" if c_fits and block[1] * s.out.size >= 128 else "rows"
    plan = choice.wide_plan(device.target, kind, s.a.dtype, s.b.dtype, s.out, block, ("k", "k"),
                            peers, chain, 1, store, groups > 1, program=s.program,
                            teams=teams)  # fmt: skip
    plan = replace(plan, image=images.rank)
    return products.after_packs(device, packs, _ring(backend, device, plan, s, images, filters))


def rows_step(shape, steps) -> int | None:
    """Bytes between the rows of (N, O, *outputs) seen as pixels x filters, None where they are
    not one number; an array of one pixel has the step of a whole row."""
    pixels = products.merged((shape[0], *shape[2:]), (steps[0], *steps[2:]))
    if len(pixels) > 1:
        return None
    return pixels[0][1] if pixels else shape[1] * steps[1]


def prepare(backend, device, x, w, c_row: int, c_aligned: bool, axes: tuple[Axis, ...],
            groups: int, out: DType, program) -> Launch:  # fmt: skip
    """The launch of one convolution, all of whose extents are at least 1.

    x (N, C, *spatial), w (O, C / groups, *kernel): views; the result is rows of adjacent filters,
    c_row bytes apart; axes: how outputs read positions; out: its element type, or what a program
    accumulates in.
    """
    images = Images(x.dtype, x.shape[0], x.shape[1] // groups, x.strides[0], x.strides[1], axes,
                    x.strides[2:], x.address % ALIGNED == 0)  # fmt: skip
    m, n, depth = images.rows, w.shape[0] // groups, images.taps * images.channels
    if m > products.LARGEST_GRID:
        raise ValueError(f"a result of {m} pixels is beyond one launch")
    batch: tuple = ()
    if groups > 1:
        x_step, w_step = images.channels * x.strides[1], n * w.strides[0]
        batch = ((groups, x_step, w_step, n * out.size),)
    filters = Filters(w.dtype, n, images.taps, images.channels, w.strides[0],
                      tuple(zip(w.shape[2:], w.strides[2:], strict=True)), w.strides[1],
                      w.address % ALIGNED == 0)  # fmt: skip
    a = Matrix(m, depth, 0, 0, x.dtype, images.aligned)
    b = Matrix(n, depth, w.strides[0], w.strides[1], w.dtype, filters.aligned)
    s = Signature(a, b, out, c_row, c_aligned, batch, program=program)
    if depth == 0:
        return products.any_batch(backend, device, s, None)
    lines = products.merged((x.shape[0], *(a.extent for a in axes)), (x.strides[0], *x.strides[2:]))
    whole = pointwise(axes) and all(a.count == a.extent for a in axes)
    if groups == 1 and len(lines) < 2 and whole:
        step = lines[0][1] if lines else a.dtype.size
        s = replace(s, a=replace(a, row_step=step, k_step=images.channel_step))
        return products.any_batch(backend, device, s, None)
    unit, kind = unit_of(device.target, s, images, groups)
    route = _wide if unit == "wide" else _one_step
    return route(backend, device, s, images, filters, unit, kind)


def _one_step(backend, device, s, images: Images, filters: Filters, unit, kind) -> Launch:
    """By lanes; filters whose (taps, channels) are not one step apart are packed first."""
    size, tap_step = filters.dtype.size, filters.tap_step()
    if filters.taps == 1:
        step = filters.channel_step
    elif filters.channels == 1 and tap_step is not None:
        step = tap_step
    else:
        step = filters.channel_step
        if tap_step != step * filters.channels:
            shape = (s.count, filters.count, *(e for e, _ in filters.tap_steps), filters.channels)
            steps = contiguous(shape, size)
            w_step = s.batch[0][2] if s.batch else 0
            source = (w_step, filters.filter_step, *(x for _, x in filters.tap_steps),
                      filters.channel_step)  # fmt: skip
            run = copier(backend, device, filters.dtype, shape, source, steps)
            b = replace(s.b, row_step=steps[1], k_step=size)
            s = replace(s, b=b, batch=tuple((e, x, steps[0], z) for e, x, _, z in s.batch))
            launch = _lanes(backend, device, s, images, unit, kind)
            return products.after_packs(device, [(1, steps[0] * s.count, run)], launch)
    s = replace(s, b=replace(s.b, k_step=step))
    return _lanes(backend, device, s, images, unit, kind)
