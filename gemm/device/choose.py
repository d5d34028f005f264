"""What to launch for a signature.

operands reach the kernel        when
boxes of the copy engine         aligned to 16 bytes, one index adjacent, machine has it
sixteen bytes a lane             the same, on machines without it
packed copies in a workspace     the unit wants adjacent k, or boxes, and they are not so
element by element               whatever remains
"""

from __future__ import annotations

from gemm.microkernels.dtypes import float32, float64

from ..team import TeamPlan
from ..team import choice as plans
from .blocks import wide_block
from .launches import Launch, after_packs, launch_ring, launch_team, pack_operand
from .signature import Signature, accumulator, unit_of

# Stages (of 128 k) of 8-bit floats that the matrix unit sums before they join the float32 total.
FLOAT8_CHAIN = 4


# Elements of a float32 result from which packing both operands pays.
LANES_PACK = 1 << 25


# Stages fetched element by element that cost as much time as packing one operand ahead.
HELD_STAGES = 5


def boxable(s: Signature) -> tuple[bool, bool, bool]:
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
        return launch_team(backend, device, plan, s)
    a_fits, b_fits, c_fits = boxable(s)
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
        return launch_ring(backend, device, plan, s, "float64")
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
    plan = team_plan(facts, unit, kind, s, acc, along, route, near, large)
    return launch_team(backend, device, plan, s)


def team_plan(facts, unit, kind, s, acc, along, route, near, large) -> TeamPlan:
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
    fits, along = boxable(s), (s.a.along(), s.b.along())
    if s.a.rows * s.b.rows > LANES_PACK or not (all(fits) and along == ("k", "k")):
        for which in (0, 1):
            if not fits[which] or along[which] != "rows":
                s, nbytes, run, _ = pack_operand(backend, device, s, which, "rows")
                packs.append((which, nbytes, run))
    store = "box" if boxable(s)[2] else "rows"
    # A program and 128 accumulators a lane do not fit the registers together.
    tile, lane = ((128, 128), (8, 16)) if s.program is None else ((128, 64), (8, 8))
    plan = plans.ring_plan(device.target, "lanes", float32, s.out, (s.a.along(), s.b.along()),
                           tile, lane, 2, 1, store, s.count > 1, program=s.program)  # fmt: skip
    return after_packs(device, packs, launch_ring(backend, device, plan, s, "float32"))


def _briefly(units: int, s: Signature, kind: str) -> bool:
    """Whether operands that are no boxes are fetched element by element: where all of it takes
    less time than the launches that pack them."""
    if kind not in ("float16", "bfloat16", "int8", "uint8") or s.scaled or s.program is not None:
        return False
    a_fits, b_fits, _ = boxable(s)
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
        return launch_team(backend, device, plan, s)
    packs, part_k = [], 0
    for which in (0, 1):
        matrix = s.b if which else s.a
        fits = boxable(s)[which] and (any_order or matrix.along() == "k")
        if parts > 1 or not fits:
            s, nbytes, run, part_k = pack_operand(backend, device, s, which, "k", parts)
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
    # A program with several results needs registers that a larger tile has not.
    narrow = bool(chain) or s.exponential or flat or s.results > 1
    block, peers, teams = wide_block(
        device.units,
        m,
        n,
        k,
        size,
        s.count,
        narrow,
        least,
        flat,
        s.program is None and not chain,
        flat and "row" in s.partials,
    )
    c_fits = boxable(s)[2] and block[1] * s.out.size >= 128
    plan = plans.wide_plan(
        facts, kind, s.a.dtype, s.b.dtype, s.out, block, (s.a.along(), s.b.along()), peers, chain,
        parts, "box" if c_fits else "rows", s.count > 1, s.scaled, program=s.program, teams=teams,
    )  # fmt: skip
    name = "tf32" if kind == "tf32" and parts == 1 else s.a.dtype.name
    launch = launch_ring(backend, device, plan, s, name, part_k if parts > 1 else 0)
    return after_packs(device, packs, launch)
