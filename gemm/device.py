"""Products of device arrays: call -> problem -> plan -> launches on the caller's stream.

A call's shapes, steps, types and alignments are its signature; what was decided for a signature
(plans, grids, argument tables) is kept, so that a repeated call only fills in addresses.

    operands reach the kernel        when
    boxes of the copy engine         aligned to 16 bytes, one index adjacent, machine has it
    sixteen bytes a lane             the same, on machines without it
    packed copies in a workspace     the unit wants adjacent k, or boxes, and they are not so
    element by element               whatever remains
"""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gemm.microkernels.dtypes import (
    DTYPES,
    DType,
    float32,
    float64,
    int32,
    int64,
)

from .epilogues.program import Program
from .team import PackPlan, TeamPlan, build, walk
from .team import choice as plans

LARGEST_GRID = 2**31 - 1
TABLE_ROWS = 4
KEPT_SIGNATURES = 512
# Stages (of 128 k) of 8-bit floats that the matrix unit sums before they join the float32 total.
FLOAT8_CHAIN = 4
# Stages fetched element by element that cost as much time as packing one operand ahead.
HELD_STAGES = 5
# Elements of a float32 result from which packing both operands pays.
LANES_PACK = 1 << 25
PRECISIONS = (None, "tf32", "tf32x3")


@dataclass(frozen=True)
class Matrix:
    """One operand as the kernels see it: `rows` x `depth` at steps in bytes (rows of A, columns
    of B; depth is k); `aligned`: its address is a multiple of 16."""

    rows: int
    depth: int
    row_step: int
    k_step: int
    dtype: DType
    aligned: bool

    def along(self) -> str:
        """The adjacent index: 'k', 'rows' or ''; an index of extent 1 is adjacent to all."""
        size = self.dtype.size
        if self.k_step == size and not (self.depth == 1 and self.row_step == size):
            return "k"
        if self.row_step == size or self.rows == 1:
            return "rows"
        return "k" if self.depth == 1 else ""

    def near(self) -> str:
        """The index with the smaller step."""
        return "k" if abs(self.k_step) <= abs(self.row_step) else "rows"

    def even(self, batch_steps) -> bool:
        """Whether every line starts at a multiple of 16 bytes, at positive steps."""
        along = self.along()
        if not along or not self.aligned:
            return False
        extent, step = (self.rows, self.row_step) if along == "k" else (self.depth, self.k_step)
        steps = [step] if extent > 1 else []
        return all(0 <= s < 2**40 and s % 16 == 0 for s in [*steps, *batch_steps]) and all(
            s > 0 for s in steps
        )


@dataclass(frozen=True)
class Signature:
    """A problem without addresses. batch: rows (extent, a, b, c step in bytes), innermost first;
    program: the write-back's; `out` is then the type it accumulates in."""

    a: Matrix
    b: Matrix
    out: DType
    c_row: int
    c_aligned: bool
    batch: tuple[tuple[int, int, int, int], ...]
    precision: str | None = None
    fast: bool = False
    scaled: bool = False
    program: Program | None = None

    @property
    def partials(self) -> set[str]:
        """'row', 'column': which kinds of partials its program has."""
        outputs = self.program.outputs if self.program else ()
        return {output.kind for output in outputs} - {"tile"}

    @property
    def exponential(self) -> bool:
        """Whether its program has a log-sum-exp, which takes the registers of half a block."""
        outputs = self.program.outputs if self.program else ()
        return any(output.combine == "log_sum_exp" for output in outputs)

    @property
    def count(self) -> int:
        return math.prod(row[0] for row in self.batch)


def accumulator(a: DType, out: DType) -> DType:
    """The type in which a product of `a` into `out` is accumulated (docs/numerics.md)."""
    if a.kind == "c":
        return DTYPES["complex128"] if out.name == "complex128" else a
    if a.kind == "f":
        return float64 if "float64" in (a.name, out.name) else float32
    return int64 if max(a.bits, out.bits) == 64 else int32


# -- which unit ----------------------------------------------------------------------------------


def unit_of(facts, s: Signature) -> tuple[str, str]:
    """(unit, kind) that computes this signature: a pure function of types, never of sizes."""
    a, b, acc = s.a.dtype, s.b.dtype, accumulator(s.a.dtype, s.out)
    kind = "tf32" if s.precision else a.name
    if a != b or (a.name == "float32" and not s.precision):
        return "lanes", ""
    if a.name == "float64" and acc.name == "float64":
        return ("matrix", kind) if facts.capability >= 80 else ("lanes", "")
    if kind not in plans.MATRIX_KINDS or acc.size != 4:
        return "lanes", ""
    if facts.wide:
        return "wide", kind
    least = 89 if kind.startswith("float8") else 80
    return ("matrix", kind) if facts.capability >= least else ("lanes", "")


# Blocks of the group-wide unit, with the share of its rate that each can reach.
WIDE_BLOCKS = (
    ((128, 256), 1.0),
    ((128, 128), 0.86),
    ((64, 256), 0.8),
    ((64, 128), 0.7),
    ((64, 64), 0.5),
    ((64, 32), 0.3),
)


# Cycles that a stage of a small block takes at least, and bytes a cycle that reach a
# multiprocessor, and all of them together from memory.
STAGE_CYCLES, UNIT_BYTES, MEMORY_BYTES = 130, 48, 2200


def wide_block(units: int, m: int, n: int, k: int, size: int, count: int, narrow: bool,
               least: int = 32, flat: bool = False, plain: bool = True):  # fmt: skip
    """(block, peers, teams of a multiprocessor) with the least estimated time.

    Waves of blocks, each a chain of stages; a stage costs its products or its bytes, whichever is
    more. narrow: two accumulators an element, or a program with many registers, leave room for
    128 x 128 at most; least: columns in a panel's box; flat: one group down only; plain: small
    blocks may share a multiprocessor.
    """
    steps = max(1, -(-k * size // 128))
    memory = (m + n) * k * size * count / MEMORY_BYTES
    best = None
    for (bm, bn), share in WIDE_BLOCKS:
        if bn < least or (narrow and bm * bn > 128 * 128) or (flat and bm > 64):
            continue
        columns = -(-n // bn)
        small = plain and bm * bn <= 64 * 64
        for peers, teams in ((1, 1), (2, 1), (1, 2)):
            if (peers > 1 and (flat or m <= bm)) or (teams > 1 and not small):
                continue
            blocks = -(-m // (bm * peers)) * peers * columns * count
            if teams > 1 and blocks <= units:
                continue
            waves = -(-blocks // (units * teams))
            beside = min(teams, -(-blocks // units))
            products = bm * bn / 64 / share
            moved = (min(m, bm) + min(n, bn)) * 128 / UNIT_BYTES
            # Peers wait for each other: worth it for long chains of large blocks.
            alone = 1.02 if bm == 128 and steps > 8 else 0.9
            step = max(max(products, moved) * beside, STAGE_CYCLES) * (1 if peers > 1 else alone)
            cost = waves * (steps * step + bm * bn / 24 + 700)
            cost = max(cost, memory) + cost / 16
            if best is None or cost < best[0]:
                best = (cost, ((bm, bn), peers, teams))
    assert best is not None
    return best[1]


# -- launches ------------------------------------------------------------------------------------

# run(address of a, of b, of c, stream, address of scale a, of scale b, table of a program)
Launch = Callable[..., None]
RECENT_BOXES = 256


class Boxes(dict):
    """Tensor maps of one operand by its address, made when they are first asked for."""

    def __init__(self, device, described):
        super().__init__()
        self.device, self.described = device, described

    def __missing__(self, address: int) -> bytes:
        if len(self) >= RECENT_BOXES:
            self.clear()
        self[address] = found = self.device.box_map(address, *self.described)
        return found


class NoBoxes(dict):
    """For a result that leaves by pointer."""

    def __missing__(self, address: int) -> bytes:
        return bytes(128)


def _spread(blocks: int, units: int, peers: int = 1) -> int:
    """Teams for so many blocks: as few as finish in the same number of waves."""
    waves = -(-blocks // units)
    teams = -(-blocks // waves)
    return -(-teams // peers) * peers


def _axes(s: Signature):
    """The batch as two axes (extent, a, b, c), inner first."""
    rows = [*s.batch, (1, 0, 0, 0), (1, 0, 0, 0)]
    return rows[0], rows[1]


def _box(backend, name: str, matrix: Matrix, panel, share, inner, outer, operand: int,
         batched: bool, parts: int = 1, part_extent: int = 0):  # fmt: skip
    """(arguments of `box_map` for an operand, without its address; bytes of a share that arrive).

    share: rows and k of the panel that one team fetches. Rows along k beyond the operand are not
    asked for: zeros, too, cost the copy engine time.
    """
    size = matrix.dtype.size
    rows, depth = share
    if panel.along == "k":
        rows = min(rows, _round(matrix.rows, 8))
    if panel.along == "k":
        k = part_extent * parts if parts > 1 else matrix.depth
        extents, lines = [k, matrix.rows], matrix.row_step if matrix.rows > 1 else 0
        box = [depth, rows]
    else:
        extents, lines = [matrix.rows, matrix.depth], matrix.k_step if matrix.depth > 1 else 0
        box = [128 // size if panel.swizzled else rows, depth]
    steps = [lines or _round(extents[0] * size, 16)]
    if batched:
        for extent, *axis in (inner, outer):
            step = axis[operand]
            extents.append(extent if step else 1)
            steps.append(step or _round(extents[0] * size, 16))
            box.append(1)
    described = (backend.box_kind(name), tuple(extents), tuple(steps), tuple(box), panel.swizzled)
    return described, rows * depth * size


def _round(x: int, step: int) -> int:
    return -(-x // step) * step


def _kernel(backend, device, plan: TeamPlan):
    reason = plan.illegal()
    if reason:
        raise ValueError(f"{plan.label}: {reason}")
    return backend.kernel(device, plan, build)


def _ring(backend, device, plan: TeamPlan, s: Signature, name: str, parts_k: int = 0,
          steps: int = 0) -> Launch:  # fmt: skip
    """A launch of `make_ring_kernel`; steps: of a slice of K, where slices are summed."""
    kernel = _kernel(backend, device, plan)
    m, n, k = s.a.rows, s.b.rows, s.a.depth
    bm, bn, bk = plan.block
    inner, outer = _axes(s)
    batched = plan.batched
    a_box, a_bytes = _box(backend, name, s.a, plan.tile.a, (bm, bk), inner, outer, 0, batched,
                          plan.parts, parts_k)  # fmt: skip
    b_box, b_bytes = _box(backend, name, s.b, plan.tile.b, plan.share, inner, outer, 1, batched,
                          plan.parts, parts_k)  # fmt: skip
    expected = plan.parts * (a_bytes + plan.peers * b_bytes)
    c_box = None
    if plan.store == "box" and plan.program is None:
        size = s.out.size
        extents, lines = [n, m], [s.c_row if m > 1 else _round(n * size, 16)]
        box = [min(128 // size, plan.tile.columns), plan.tile.box_rows]
        if batched:
            for extent, *axis in (inner, outer):
                extents.append(extent)
                lines.append(axis[2] or _round(n * size, 16))
                box.append(1)
        c_box = (backend.box_kind(s.out.name), tuple(extents), tuple(lines), tuple(box), True)
    down, across, rows, columns = walk(plan, m, n)
    spans = rows * columns * s.count
    grid = _spread(spans * plan.peers, device.units * plan.teams_per_unit, plan.peers)
    flags = [int(bool(axis[i])) for i in (1, 2) for axis in (inner, outer)]
    tail = (m, n, steps or -(-k // bk), expected, parts_k, rows, columns, spans, inner[0], *flags,
            s.c_row, inner[3], outer[3], down, across)  # fmt: skip
    launch = kernel.bind(grid, *tail, together=True) if plan.joined else kernel.bind(grid, *tail)
    a_map, b_map = Boxes(device, a_box), Boxes(device, b_box)
    c_map = Boxes(device, c_box) if c_box else NoBoxes()

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        launch(stream, a_map[a], b_map[b], c_map[c], c, scale_a, scale_b, extra)

    return run


def _table(batch) -> bytes:
    rows = [*batch, *[(1, 0, 0, 0)] * (TABLE_ROWS - len(batch))]
    return struct.pack("16q", *itertools.chain(*rows))


def _team(backend, device, plan: TeamPlan, s: Signature) -> Launch:
    """A launch of `make_team_kernel`."""
    kernel = _kernel(backend, device, plan)
    m, n, k = s.a.rows, s.b.rows, s.a.depth
    down, across, rows, columns = walk(plan, m, n)
    spans = rows * columns * s.count
    grid = min(spans, device.units * 16)
    tail = (_table(s.batch), m, n, k, s.a.row_step, s.a.k_step, s.b.k_step, s.b.row_step, s.c_row,
            rows, columns, spans, down, across)  # fmt: skip
    launch = kernel.bind(grid, *tail)

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        launch(stream, a, b, c, extra)

    return run


def _pack(backend, device, plan: PackPlan, m: Matrix, batch, dst_row: int, part_step: int,
          rule: bytes = b""):  # fmt: skip
    """run(src, dst, stream) of `make_pack_kernel`; batch: (extent, src step, dst step); rule: of a
    plan that has one."""
    kernel = backend.kernel(device, plan, build)
    across = -(-m.depth // plan.stage.depth)
    spans = -(-m.rows // plan.stage.rows) * across * math.prod(row[0] for row in batch)
    dims = _table([(*row, 0) for row in batch]) + rule
    tail = (dims, m.rows, m.depth, m.row_step, m.k_step, dst_row, part_step, across, spans)
    launch = kernel.bind(min(spans, device.units * 8), *tail)

    def run(src, dst, stream):
        launch(stream, dst, src)

    return run


def _packed(backend, device, s: Signature, which: int, along: str = "k", parts: int = 1):
    """(signature with operand `which` packed, bytes, run, k of a part).

    along: the index made adjacent; lines start at multiples of 16 bytes.
    """
    old = s.b if which else s.a
    size = old.dtype.size
    # Packing is symmetric in the two indices: `turned` calls the adjacent one its depth.
    turned = old if along == "k" else replace(
        old, rows=old.depth, depth=old.rows, row_step=old.k_step, k_step=old.row_step
    )  # fmt: skip
    part = _round(turned.depth, 128 // size)
    line = part * size * parts
    plan = plans.pack_plan(old.dtype, turned.near(), None, parts)
    steps, total, source = [], line * turned.rows, []
    for extent, *axis in s.batch:
        step = axis[which]
        if step == 0 or extent == 1:
            steps.append(0)
            continue
        source.append((extent, step, total))
        steps.append(total)
        total *= extent
    run = _pack(backend, device, plan, turned, source, line, part * size)
    row_step, k_step = (line, size) if along == "k" else (size, line)
    new = Matrix(old.rows, old.depth, row_step, k_step, old.dtype, True)
    batch = []
    for (extent, *axis), step in zip(s.batch, steps, strict=True):
        axis[which] = step
        batch.append((extent, *axis))
    changed: dict[str, Any] = {"batch": tuple(batch), "b" if which else "a": new}
    s = replace(s, **changed)
    return s, total, run, part


def _after_packs(device, packs, launch: Launch) -> Launch:
    """`launch` on operands packed before it; packs: (which, bytes, run)."""
    if not packs:
        return launch

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        room = [a, b]
        taken = []
        try:
            for which, nbytes, pack in packs:
                space = device.allocate(nbytes, stream)
                taken.append(space)
                pack(room[which], space, stream)
                room[which] = space
            launch(room[0], room[1], c, stream, scale_a, scale_b, extra)
        finally:
            for space in taken:
                device.free(space, stream)

    return run


def _boxable(s: Signature) -> tuple[bool, bool, bool]:
    """Whether a, b and the result may pass as boxes."""
    a = s.a.even([row[1] for row in s.batch])
    b = s.b.even([row[2] for row in s.batch])
    c_steps = [row[3] for row in s.batch] + ([s.c_row] if s.a.rows > 1 else [])
    c = s.c_aligned and all(0 < x < 2**40 and x % 16 == 0 for x in c_steps)
    return a, b, c


def _blocks(s: Signature, bm: int, bn: int) -> int:
    """Blocks of this size in the result, 0 where more than half of their area would be empty."""
    m, n = s.a.rows, s.b.rows
    down, across = -(-m // bm), -(-n // bn)
    return down * across * s.count if 2 * m * n > down * bm * across * bn else 0


def prepare(backend, device, s: Signature) -> Launch:
    """What to launch for a signature with M, N, K >= 1 and at most two batch rows."""
    facts = device.target
    unit, kind = unit_of(facts, s)
    if s.a.depth == 0:
        # Nothing to multiply: the program on zeros, by the kernel that serves anything.
        acc, near = accumulator(s.a.dtype, s.out), ("k", "rows")
        tile, lane = plans.lanes_shape(acc)
        plan = plans.team_plan(facts, "lanes", "", s.a.dtype, s.b.dtype, s.out, acc, near, "held",
                               tile, lane, near=near, program=s.program)  # fmt: skip
        return _team(backend, device, plan, s)
    a_fits, b_fits, c_fits = _boxable(s)
    batched = s.count > 1
    if unit == "wide":
        return _prepare_wide(backend, device, s, kind)
    acc = accumulator(s.a.dtype, s.out)
    boxes = facts.boxes and facts.wide and a_fits and b_fits and s.out == acc == s.a.dtype
    along = (s.a.along(), s.b.along())
    large = _blocks(s, 128, 128) >= device.units // 2
    if unit == "matrix" and kind == "float64" and boxes:
        tile, across = ((128, 64), 2) if large and "row" not in s.partials else ((64, 64), 1)
        store = "box" if c_fits else "rows"
        plan = plans.ring_plan(facts, "matrix", float64, s.out, along, tile, (8, 8), 1, across,
                               store, batched, program=s.program)  # fmt: skip
        return _ring(backend, device, plan, s, "float64")
    wanted = facts.boxes and facts.wide and s.out == acc == s.a.dtype == s.b.dtype
    if (
        unit == "lanes"
        and acc.name == "float32"
        and wanted
        and "column" not in s.partials
        and _blocks(s, 256, 128) >= device.units * 0.8
    ):
        return _prepare_lanes(backend, device, s)
    same = s.a.dtype == s.b.dtype == acc or unit == "matrix"
    along_ok = unit == "lanes" or kind in ("float16", "bfloat16", "float64") or along == ("k", "k")
    steady = a_fits and b_fits and same and facts.async_copies and along_ok
    route = "async" if steady else "held"
    if route == "held":
        near = (s.a.near(), s.b.near())
        # The unit of narrow types reads adjacent k only; lanes write the stage in either order.
        along = ("k", "k") if unit == "matrix" else near
    else:
        near = along
    plan = _team_plan(facts, unit, kind, s, acc, along, route, near, large)
    return _team(backend, device, plan, s)


def _team_plan(facts, unit, kind, s, acc, along, route, near, large) -> TeamPlan:
    out, a, b = s.out, s.a.dtype, s.b.dtype
    # A chain of partials along a row passes through one group at a time.
    large = large and "row" not in s.partials
    one = 1 if "row" in s.partials else 2
    if unit == "matrix":
        tile, down, across = ((128, 64), 1, 2) if large else ((64, 64), 1, 1)
        if kind == "float64":
            tile, down, across = (128, 64) if large else (64, 64), 1, 1
        if route == "held":
            tile, down, across = (64, 32), 1, one
        stages = 3 if route == "async" else 2
        return plans.team_plan(facts, unit, kind, a, b, out, acc, along, route, tile, (8, 8), down,
                               across, stages, near, s.program)  # fmt: skip
    if large and route == "async" and acc.name == "float32":
        return plans.team_plan(facts, unit, kind, a, b, out, acc, along, route, (128, 64), (8, 8),
                               1, 2, 2, near, s.program)  # fmt: skip
    tile, lane = plans.lanes_shape(acc)
    return plans.team_plan(facts, unit, kind, a, b, out, acc, along, route, tile, lane, near=near,
                           program=s.program)  # fmt: skip


def _prepare_lanes(backend, device, s: Signature) -> Launch:
    """The large float32 chain. Lanes read fastest where rows are adjacent in both panels; k in
    both costs them 4 %, as much as packing two operands of 4096 x 4096 does."""
    packs = []
    fits, along = _boxable(s), (s.a.along(), s.b.along())
    if s.a.rows * s.b.rows > LANES_PACK or not (all(fits) and along == ("k", "k")):
        for which in (0, 1):
            if not fits[which] or along[which] != "rows":
                s, nbytes, run, _ = _packed(backend, device, s, which, "rows")
                packs.append((which, nbytes, run))
    store = "box" if _boxable(s)[2] else "rows"
    # A program and 128 accumulators a lane do not fit the registers together.
    tile, lane = ((128, 128), (8, 16)) if s.program is None else ((128, 64), (8, 8))
    plan = plans.ring_plan(device.target, "lanes", float32, s.out, (s.a.along(), s.b.along()),
                           tile, lane, 2, 1, store, s.count > 1, program=s.program)  # fmt: skip
    return _after_packs(device, packs, _ring(backend, device, plan, s, "float32"))


def _briefly(units: int, s: Signature, kind: str) -> bool:
    """Whether operands that are no boxes are fetched element by element: where all of it takes
    less time than the launches that pack them."""
    if kind not in ("float16", "bfloat16", "int8", "uint8") or s.scaled or s.program is not None:
        return False
    a_fits, b_fits, _ = _boxable(s)
    if kind.endswith("int8"):
        a_fits, b_fits = a_fits and s.a.along() == "k", b_fits and s.b.along() == "k"
    if a_fits and b_fits:
        return False
    waves = -(-(-(-s.a.rows // 64) * -(-s.b.rows // 64) * s.count) // units)
    return waves * -(-s.a.depth * s.a.dtype.size // 128) <= HELD_STAGES * (2 - a_fits - b_fits)


def _prepare_wide(backend, device, s: Signature, kind: str) -> Launch:
    """Boxes for the group-wide unit; operands that cannot pass so are packed first."""
    facts = device.target
    parts = 2 if s.precision == "tf32x3" else 1
    any_order = kind in ("float16", "bfloat16")
    if _briefly(device.units, s, kind):
        acc, near = accumulator(s.a.dtype, s.out), (s.a.near(), s.b.near())
        plan = plans.team_plan(facts, "wide", kind, s.a.dtype, s.b.dtype, s.out, acc, ("k", "k"),
                               "held", (64, 32), across=2, near=near)  # fmt: skip
        return _team(backend, device, plan, s)
    packs, part_k = [], 0
    for which in (0, 1):
        matrix = s.b if which else s.a
        fits = _boxable(s)[which] and (any_order or matrix.along() == "k")
        if parts > 1 or not fits:
            s, nbytes, run, part_k = _packed(backend, device, s, which, "k", parts)
            packs.append((which, nbytes, run))
    m, n, k = s.a.rows, s.b.rows, s.a.depth
    chain = 0
    if parts > 1:
        chain = 1
    elif kind.startswith("float8") and not s.fast:
        chain = FLOAT8_CHAIN
    size = s.a.dtype.size
    least = 128 // size if s.b.along() == "rows" else 32
    flat = "column" in s.partials
    narrow = bool(chain) or s.exponential
    block, peers, teams = wide_block(
        device.units, m, n, k, size, s.count, narrow, least, flat, s.program is None and not chain
    )
    c_fits = _boxable(s)[2] and block[1] * s.out.size >= 128
    plan = plans.wide_plan(
        facts, kind, s.a.dtype, s.b.dtype, s.out, block, (s.a.along(), s.b.along()), peers, chain,
        parts, "box" if c_fits else "rows", s.count > 1, s.scaled, program=s.program, teams=teams,
    )  # fmt: skip
    name = "tf32" if kind == "tf32" and parts == 1 else s.a.dtype.name
    launch = _ring(backend, device, plan, s, name, part_k if parts > 1 else 0)
    return _after_packs(device, packs, launch)


# -- the call ------------------------------------------------------------------------------------


def merged(shape, *steps) -> tuple[tuple[int, ...], ...]:
    """Batch rows (extent, step of each operand), innermost first, merged where they can be."""
    rows: list[tuple[int, ...]] = []
    for axis in reversed(range(len(shape))):
        extent = shape[axis]
        now = tuple(s[axis] for s in steps)
        if extent == 1:
            continue
        if rows and all(s == t * rows[-1][0] for s, t in zip(now, rows[-1][1:], strict=True)):
            rows[-1] = (rows[-1][0] * extent, *rows[-1][1:])
        else:
            rows.append((extent, *now))
    return tuple(rows)


def _broadcast(shape, view):
    """The batch steps of an operand as seen by a batch of this shape."""
    own, steps = view.shape[:-2], view.strides[:-2]
    skip = len(shape) - len(own)
    out = [0] * skip
    for want, extent, step in zip(shape[skip:], own, steps, strict=True):
        out.append(step if extent == want and extent != 1 else 0)
    return out


def batch_shape(a, b) -> tuple[int, ...]:
    """NumPy's broadcast of two batch shapes; ValueError where they do not fit."""
    out = []
    for x, y in itertools.zip_longest(reversed(a), reversed(b), fillvalue=1):
        if x != y and 1 not in (x, y):
            raise ValueError(
                f"batch dimensions {tuple(a)} and {tuple(b)} do not broadcast together"
            )
        out.append(y if x == 1 else x)
    return tuple(reversed(out))


def result_type(a: DType, b: DType) -> DType:
    """NumPy's promotion, by NumPy; 16- and 8-bit floats of other libraries mix with none."""
    if a == b:
        return a
    if {a.name, b.name} & NARROW_FLOATS:
        raise TypeError(f"no product of {a} and {b}: convert one operand first")
    import numpy as np

    return DTYPES[np.result_type(a.name, b.name).name]


NARROW_FLOATS = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
_prepared: dict[tuple, tuple] = {}


def matmul(backend, a, b, out=None, *, dtype=None, precision=None, split_k=None, scale_a=None,
           scale_b=None, fast=False):  # fmt: skip
    """a @ b of device arrays, NumPy's shapes and broadcasting, on the caller's current stream.

    out: device array of the result's shape, any strides, not overlapping a or b; dtype: name of
    the result's element type (default: a's, bfloat16 for 8-bit floats). precision: None (float32
    means float32), 'tf32' or 'tf32x3'. split_k: number of slices of K, summed in order. scale_a,
    scale_b: one-element float32 device arrays that multiply the result; fast: 8-bit floats
    accumulate in the matrix unit alone. TypeError, ValueError: before anything is launched.
    """
    address_a, address_b, key, producers = backend.glance(a, b)
    if dtype or precision or split_k or fast or scale_a is not None:
        key = (key, dtype, precision, split_k, fast, scale_a is None)
    address_c = 0
    if out is not None:
        address_c, _, key_c, more = backend.glance(out, out)
        key, producers = (key, key_c), producers + more
    found = _prepared.get(key)
    if found is None:
        found = _decide(
            backend, backend.view(a), backend.view(b), None if out is None else backend.view(out),
            dtype, precision, split_k, scale_a, scale_b, fast,
        )  # fmt: skip
        found = (*found, None if out is not None else backend.maker(a, found[0], found[1]))
        if len(_prepared) >= KEPT_SIGNATURES:
            _prepared.clear()
        _prepared[key] = found
    shape, result, run, device, make = found
    if result.kind == "c":
        backend.refuse_conjugates(a, b)
    if out is None:
        out, address_c = make() if make is not None else backend.empty(a, shape, result)
    stream = backend.enter(a, device)
    for producer in producers:
        if producer != stream:
            device.wait(stream, producer)
    if run is None:
        return out
    if scale_a is None:
        run(address_a, address_b, address_c, stream, 0, 0)
    else:
        run(address_a, address_b, address_c, stream, *backend.glance(scale_a, scale_b)[:2])
    return out


def matmul_of_host(backend, a, b, out=None, **options):
    """a @ b of host arrays on the default device: copied in, multiplied, copied out.

    out: ndarray of the result's shape and type; options as in `matmul`.
    """
    import numpy as np

    found = matmul(backend, backend.upload(a), backend.upload(b), **options).copy_to_host()
    if out is None:
        return found
    if out.shape != found.shape or out.dtype != found.dtype:
        raise ValueError(
            f"out is {out.dtype} {out.shape}, the result is {found.dtype} {found.shape}"
        )
    np.copyto(out, found)
    return out


def _decide(backend, va, vb, vo, dtype, precision, split_k, scale_a, scale_b, fast):
    """(shape, element type, run or None, device) of a call; every refusal is here."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision={precision!r}: expected one of {PRECISIONS}")
    if not va.shape or not vb.shape:
        raise ValueError("matmul takes no scalars: operands need one dimension at least")
    promoted = result_type(va.dtype, vb.dtype)
    if precision and promoted.name != "float32":
        raise TypeError(f"precision={precision!r} is for float32 operands, not {promoted}")
    if (scale_a is None) != (scale_b is None):
        raise ValueError("give scale_a and scale_b together")
    if dtype is not None:
        result = DTYPES.get(str(dtype))
        if result is None:
            raise TypeError(f"dtype={dtype!r}: expected one of {', '.join(DTYPES)}")
    elif vo is not None:
        result = vo.dtype
    else:
        result = DTYPES["bfloat16"] if promoted.name.startswith("float8") else promoted
    if (result.kind in "fc") != (promoted.kind in "fc") or (promoted.kind == "c") > (
        result.kind == "c"
    ):
        raise TypeError(f"a product of {promoted} cannot be stored as {result}")
    a2 = va if len(va.shape) > 1 else va._replace(shape=(1, *va.shape), strides=(0, *va.strides))
    b2 = vb if len(vb.shape) > 1 else vb._replace(shape=(*vb.shape, 1), strides=(*vb.strides, 0))
    (m, k), (kb, n) = a2.shape[-2:], b2.shape[-2:]
    if k != kb:
        raise ValueError(f"inner dimensions differ: {va.shape} @ {vb.shape} ({k} != {kb})")
    batch = batch_shape(a2.shape[:-2], b2.shape[:-2])
    shape = batch + ((m,) if len(va.shape) > 1 else ()) + ((n,) if len(vb.shape) > 1 else ())
    if vo is not None and vo.shape != shape:
        raise ValueError(f"out has shape {vo.shape}, the result has {shape}")
    if vo is not None and vo.dtype != result:
        raise TypeError(f"out has element type {vo.dtype}, the result has {result}")
    if va.device != vb.device or (vo is not None and vo.device != va.device):
        raise ValueError("operands and out must be on one device")
    device = backend.device(va.device)
    if scale_a is not None and unit_name(device.target, va.dtype, precision) != "wide":
        raise ValueError("scales need 8- or 16-bit floats on a machine with the wide matrix unit")
    size = result.size
    if vo is None:
        c_steps, step = [], size
        for extent in reversed(batch + (m, n)):
            c_steps.append(step)
            step *= max(extent, 1)
        c_steps.reverse()
        c_address = 0
    else:
        c_steps = list(vo.strides)
        if len(va.shape) == 1:
            c_steps.insert(len(batch), size)
        if len(vb.shape) == 1:
            c_steps.append(size)
        c_address = vo.address
    for v, name in ((va, "a"), (vb, "b"), (vo, "out")):
        if v is not None and (
            v.address % v.dtype.real.size or any(s % v.dtype.real.size for s in v.strides)
        ):
            raise ValueError(f"{name} is not aligned to its {v.dtype.real.size}-byte elements")
    if 0 in shape:
        return shape, result, None, device
    rows = merged(batch, _broadcast(batch, a2), _broadcast(batch, b2), c_steps[:-2])
    a = Matrix(m, k, a2.strides[-2], a2.strides[-1], va.dtype, va.address % 16 == 0)
    b = Matrix(n, k, b2.strides[-1], b2.strides[-2], vb.dtype, vb.address % 16 == 0)
    s = Signature(a, b, result, c_steps[-2], c_address % 16 == 0, rows, precision, fast,
                  scale_a is not None)  # fmt: skip
    run = _any_result(backend, device, s, c_steps[-1], split_k)
    return shape, result, run, device


def unit_name(facts, dtype: DType, precision: str | None) -> str:
    one = Matrix(1, 1, dtype.size, dtype.size, dtype, True)
    out = float32 if dtype.kind == "f" else dtype
    return unit_of(facts, Signature(one, one, out, 4, True, (), precision))[0]


def _any_result(backend, device, s: Signature, c_column: int, split_k) -> Launch:
    """As `_any_batch`, for any column step of the result."""
    m, n = s.a.rows, s.b.rows
    size = s.out.size
    if c_column == size or n == 1:
        return _any_batch(backend, device, s, split_k)
    if s.c_row == size or m == 1:
        # Columns of the result are adjacent: compute its transpose; a chain does not see it.
        batch = tuple((e, y, x, z) for e, x, y, z in s.batch)
        run = _any_batch(
            backend, device, replace(s, a=s.b, b=s.a, c_row=c_column, batch=batch), split_k
        )
        return lambda a, b, c, stream, x=0, y=0: run(b, a, c, stream, y, x)  # type: ignore[misc]
    # Neither is: a contiguous result first, then element by element.
    steps, total, copies = [], m * n * size, []
    for extent, x, y, z in s.batch:
        steps.append((extent, x, y, total))
        copies.append((extent, total, z))
        total *= extent
    run = _any_batch(
        backend, device, replace(s, c_row=n * size, c_aligned=True, batch=tuple(steps)), split_k
    )
    plan = plans.pack_plan(s.out, "k")
    row = Matrix(n, 1, size, size, s.out, True)
    copies = [(m, n * size, s.c_row), *copies]
    if len(copies) > TABLE_ROWS:
        raise ValueError(f"out has {len(copies)} irregular axes; gemm stores into {TABLE_ROWS}")
    copy = _pack(backend, device, plan, row, copies, c_column, 0)

    def run_and_copy(a, b, c, stream, scale_a=0, scale_b=0):
        space = device.allocate(total, stream)
        try:
            run(a, b, space, stream, scale_a, scale_b)
            copy(space, c, stream)
        finally:
            device.free(space, stream)

    return run_and_copy


def _any_batch(backend, device, s: Signature, split_k) -> Launch:
    """As `prepare`, for any batch and K >= 0, with K in slices where named."""
    if s.a.depth == 0 and s.program is None:
        return _zeros(device, s)
    if split_k is not None and split_k != 1:
        return _split(backend, device, s, int(split_k))
    unit, _ = unit_of(device.target, s)
    most = 2 if unit in ("wide", "matrix") else TABLE_ROWS
    outer = list(s.batch[most:])
    inner = list(s.batch[:most])
    # A grid counts blocks of at least 32 x 32 in 31 bits.
    blocks = -(-s.a.rows // 32) * -(-s.b.rows // 32)
    if blocks > LARGEST_GRID:
        raise ValueError(f"a result of {s.a.rows} x {s.b.rows} is beyond one launch")
    while inner and blocks * math.prod(r[0] for r in inner) > LARGEST_GRID:
        extent, *steps = inner.pop()
        most_of = max(1, LARGEST_GRID // (blocks * math.prod(r[0] for r in inner)))
        whole, rest = divmod(extent, most_of)
        part = prepare_parts(backend, device, s, inner, (most_of, *steps))
        pieces = [(i * most_of, part) for i in range(whole)]
        if rest:
            pieces.append(
                (whole * most_of, prepare_parts(backend, device, s, inner, (rest, *steps)))
            )
        return _each(outer, [(tuple(at * x for x in steps), run) for at, run in pieces])
    run = prepare(backend, device, _uneven(replace(s, batch=tuple(inner)), outer))
    return _each(outer, [((0, 0, 0), run)])


def prepare_parts(backend, device, s, inner, row) -> Launch:
    return prepare(backend, device, replace(s, batch=(*inner, row)))


def _uneven(s: Signature, outer) -> Signature:
    """s without its alignments where the outer steps break them."""
    a, b, c = (any(row[i] % 16 for row in outer) for i in (1, 2, 3))
    return replace(
        s,
        a=replace(s.a, aligned=s.a.aligned and not a),
        b=replace(s.b, aligned=s.b.aligned and not b),
        c_aligned=s.c_aligned and not c,
    )


def _each(outer, pieces) -> Launch:
    """Runs pieces ((a, b, c offset), run) for every index of the outer batch rows."""
    if not outer and len(pieces) == 1 and not any(pieces[0][0]):
        return pieces[0][1]

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        for index in itertools.product(*(range(row[0]) for row in outer)):
            x, y, z = (
                sum(i * row[j] for i, row in zip(index, outer, strict=True)) for j in (1, 2, 3)
            )
            for (p, q, r), piece in pieces:
                piece(a + x + p, b + y + q, c + z + r, stream, scale_a, scale_b, extra)

    return run


def _zeros(device, s: Signature) -> Launch:
    """The empty sum: +0 everywhere."""
    width, rows = s.b.rows * s.out.size, s.a.rows

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        for index in itertools.product(*(range(row[0]) for row in s.batch)):
            at = c + sum(i * row[3] for i, row in zip(index, s.batch, strict=True))
            # Rows may run backwards: clear each run of the 2-D memset upwards.
            step = s.c_row if rows > 1 else width
            low = min(0, step * (rows - 1))
            device.clear(at + low, max(abs(step), width), width, rows, stream)

    return run


def _joined(backend, device, s: Signature, steps: int, slices: int, acc: DType) -> Launch | None:
    """Slices of K that one launch computes and sums (team/join.py); None where not all of its
    teams would be on the machine at once, or operands are no boxes of the group-wide unit."""
    unit, kind = unit_of(device.target, s)
    a_fits, b_fits, _ = _boxable(s)
    both_k = (s.a.along(), s.b.along()) == ("k", "k")
    if unit != "wide" or not (a_fits and b_fits) or s.precision == "tf32x3":
        return None
    if kind.startswith("float8") or not (kind in ("float16", "bfloat16") or both_k):
        return None
    m, n = s.a.rows, s.b.rows
    least = 128 // s.b.dtype.size if s.b.along() == "rows" else 32
    for block in ((64, 32), (64, 64), (64, 128), (64, 256), (128, 256)):
        if block[1] >= least and -(-m // block[0]) * -(-n // block[1]) * slices <= device.units:
            break
    else:
        return None
    plan = plans.wide_plan(device.target, kind, s.a.dtype, s.b.dtype, acc, block,
                           (s.a.along(), s.b.along()), store="rows", sum_of=s.out)  # fmt: skip
    partial = m * n * acc.size
    # Slices take the place of a batch; k starts where they do.
    sliced = replace(s, out=acc, c_row=n * acc.size, batch=((slices, 0, 0, partial),))
    name = "tf32" if kind == "tf32" else s.a.dtype.name
    launch = _ring(backend, device, plan, sliced, name, steps=steps)

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        space, flags, value = device.meeting(slices * partial, stream)
        try:
            table = struct.pack("5q", c, s.c_row, flags, value, slices)
            launch(a, b, space, stream, 0, 0, table)
        finally:
            device.part(space, stream)

    return run


def _split(backend, device, s: Signature, slices: int) -> Launch:
    """K in `slices` equal parts (the last may be shorter), summed in ascending order.

    The partial products are matrices of a batch; their sum is the chain of 1 * p for each slice.
    """
    m, n, k = s.a.rows, s.b.rows, s.a.depth
    if slices < 1:
        raise ValueError(f"split_k={slices}: expected a positive number of slices")
    if s.batch or s.scaled:
        raise ValueError("split_k is for one product without scales, not for a batch")
    acc = accumulator(s.a.dtype, s.out)
    unit = 128 // s.a.dtype.size
    length = min(_round(-(-k // slices), unit), k)
    whole, rest = divmod(k, length)
    count = whole + bool(rest)
    partial = m * n * acc.size
    steps = [(length * x.k_step) for x in (s.a, s.b)]

    def of(depth, batch):
        part = replace(s, a=replace(s.a, depth=depth), b=replace(s.b, depth=depth), out=acc,
                       c_row=n * acc.size, c_aligned=True, batch=batch, scaled=False)  # fmt: skip
        return prepare(backend, device, part)

    joined = _joined(backend, device, s, length // unit, count, acc)
    if joined is not None:
        return joined
    main = of(length, ((whole, *steps, partial),) if whole > 1 else ())
    tail = of(rest, ()) if rest else None
    ones = Matrix(1, count, acc.size, 0, acc, True)
    flat = s.c_row == n * s.out.size or m == 1
    row_count, width = (1, m * n) if flat else (m, n)
    values = Matrix(width, count, acc.size, partial, acc, True)
    batch = () if row_count == 1 else ((row_count, 0, n * acc.size, s.c_row),)
    total = Signature(ones, values, s.out, s.c_row, s.c_aligned, batch)
    near = ("k", "rows")
    tile, lane = plans.lanes_shape(acc)
    plan = plans.team_plan(
        device.target, "lanes", "", acc, acc, s.out, acc, near, "held", tile, lane, near=near
    )
    add = _team(backend, device, plan, total)
    code = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}[acc.name]
    one = device.constant(struct.pack(code, 1))

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        space = device.allocate(count * partial, stream)
        try:
            main(a, b, space, stream, 0, 0)
            if tail is not None:
                tail(
                    a + whole * steps[0],
                    b + whole * steps[1],
                    space + whole * partial,
                    stream,
                    0,
                    0,
                )
            add(one, space, c, stream)
        finally:
            device.free(space, stream)

    return run
