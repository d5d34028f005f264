"""The plan space of the team kernels, and which plan serves a problem on a machine.

`facts` is a machine's description: boxes (it has the copy engine), wide (and the group-wide
matrix unit), async_copies, capability, shared (bytes a team may use). Plans hold no sizes of a
problem, so a process compiles few of them.

Every plan that may serve one element type and precision gives the same bits: tiles, staging
and raster change nothing in an element's chain.
"""

from __future__ import annotations

import functools
from dataclasses import replace

from gemm.microkernels.cooperative import StageShape, TeamTile
from gemm.microkernels.dtypes import DType, float32, int32

from .packing import PackPlan
from .plan import TeamPlan

GATE_ROOM = 256

# What the matrix unit multiplies, by element type; 'tf32' is float32 by name only.
MATRIX_KINDS = ("float16", "bfloat16", "int8", "uint8", "float8_e4m3fn", "float8_e5m2", "tf32")


# Of a multiprocessor's shared memory each team beyond the first leaves this unused.
TEAM_ROOM = 1024


def _stages(facts, plan_bytes: int, stage_bytes: int, most: int = 8, teams: int = 1) -> int:
    room = (facts.shared - (teams - 1) * TEAM_ROOM) // teams - plan_bytes - GATE_ROOM
    return max(2, min(most, room // stage_bytes))


def wide_plan(facts, kind: str, a: DType, b: DType, out: DType, block=(128, 256), along=("k", "k"),
              peers=1, chain=0, parts=1, store="box", batched=False, scaled=False,
              band=8, program=None, teams=1, sum_of=None) -> TeamPlan:  # fmt: skip
    """A ring whose groups feed the group-wide matrix unit; block: BM, BN; teams: of a
    multiprocessor, which share its memory and registers."""
    bm, bn = block
    depth = 128 // a.size
    # A chain down a column passes through one group at a time.
    flat = program is not None and any(x.kind == "column" for x in program.outputs)
    groups = 2 if bm >= 128 else 1
    down, across = (1, groups) if flat else (groups, 1)
    acc = int32 if a.kind in "iu" else float32
    panel_a = StageShape(bm, depth, a, along[0], "box")
    panel_b = StageShape(bn, depth, b, along[1], "box")
    tile = TeamTile("wide", bm // down, bn // across, acc, panel_a, panel_b, kind)
    accumulators = tile.rows * tile.columns // 128 * (2 if chain else 1)
    heavy = accumulators > (64 if program is None else 32)
    registers = (0, 0)
    if heavy and groups == 2:
        registers = (40, 232)
    plan = TeamPlan(tile, a, b, out, down, across, 2, 128, peers, band, parts, chain, store, scaled,
                    batched, registers, teams_per_unit=teams, program=program,
                    sum_of=sum_of)  # fmt: skip
    # A small block needs more stages on their way to fill the memory's latency.
    rest = groups * (plan.room_bytes + plan.partial_bytes())
    stages = _stages(facts, rest, plan.stage_bytes, 16, teams)
    return replace(plan, stages=stages)


def ring_plan(facts, unit: str, a: DType, out: DType, along, tile_shape, lane_shape, down, across,
              store="box", batched=False, band=8, most=8, program=None) -> TeamPlan:  # fmt: skip
    """A ring for a chain of fused multiply-adds: unit 'lanes', or 'matrix' for float64."""
    depth = 128 // a.size
    rows, columns = tile_shape
    # Lanes read a panel along rows without a bank conflict as it is; the matrix unit does not.
    swizzled = unit == "matrix"
    panel_a = StageShape(rows * down, depth, a, along[0], "box", swizzled or along[0] == "k")
    panel_b = StageShape(columns * across, depth, a, along[1], "box", swizzled or along[1] == "k")
    kind = a.name if unit == "matrix" else ""
    tile = TeamTile(unit, rows, columns, a, panel_a, panel_b, kind, *lane_shape)
    registers = (0, 0)
    if down * across == 2:
        registers = (40, 232) if unit == "matrix" else (56, 224)
    elif down * across == 4:
        registers = (32, 112)
    plan = TeamPlan(tile, a, a, out, down, across, 2, 128, 1, band, store=store, batched=batched,
                    registers=registers, program=program)  # fmt: skip
    each = plan.room_bytes + plan.partial_bytes()
    room = facts.shared - plan.groups * each - GATE_ROOM
    stages = max(2, min(most, room // plan.stage_bytes))
    return replace(plan, stages=stages)


def team_plan(facts, unit: str, kind: str, a: DType, b: DType, out: DType, acc: DType, along,
              route: str, tile_shape, lane_shape=(8, 4), down=1, across=1, stages=2,
              near=("k", "k"), program=None) -> TeamPlan:  # fmt: skip
    """A team in which every lane fills: route 'async' (aligned operands) or 'held' (any)."""
    stage_a, stage_b = (acc, acc) if unit == "lanes" and route == "held" else (a, b)
    depth = 128 // stage_a.size
    rows, columns = tile_shape
    lanes = 128 * down * across
    swizzled = unit != "lanes"
    panel_a = StageShape(rows * down, depth, stage_a, along[0], route,
                         swizzled or along[0] == "k", near[0], lanes)  # fmt: skip
    panel_b = StageShape(columns * across, depth, stage_b, along[1], route,
                         swizzled or along[1] == "k", near[1], lanes)  # fmt: skip
    tile = TeamTile(unit, rows, columns, acc, panel_a, panel_b, kind, *lane_shape)
    return TeamPlan(tile, a, b, out, down, across, stages, program=program)


@functools.lru_cache(maxsize=256)
def pack_plan(source: DType, near: str, out: DType | None = None, parts: int = 1) -> PackPlan:
    """Any strides to adjacent k, as `out` (default: as it is); parts 2: high and low part."""
    out = out or source
    depth = 128 // out.size
    rows = {(1, "k"): 16, (1, "rows"): 32}.get((out.size, near), 32 if near == "k" else 64)
    stage = StageShape(rows, depth, out, "k", "held", True, near, 256)
    return PackPlan(stage, source, out, parts)


def lanes_shape(acc: DType) -> tuple[tuple[int, int], tuple[int, int]]:
    """(tile, lane tile) of the kernel that serves anything: 32 accumulators of 4 bytes a lane."""
    if acc.size * acc.components == 4:
        return (64, 64), (4, 8)
    if acc.size == 8:
        return (64, 64), (4, 8)
    return (32, 32), (2, 4)


def plan_space(facts) -> list:
    """One plan of each kind that `gemm.device` asks for on a machine, over types and layouts."""
    from gemm.microkernels.dtypes import DTYPES, float64

    t = DTYPES
    half = t["float16"]
    orders = (("k", "k"), ("k", "rows"), ("rows", "rows"))
    space: list = []
    if facts.wide:
        for kind, a, out in (
            ("bfloat16", t["bfloat16"], t["bfloat16"]), ("float16", half, float32),
            ("tf32", float32, float32), ("int8", t["int8"], int32),
            ("float8_e4m3fn", t["float8_e4m3fn"], t["bfloat16"]),
        ):  # fmt: skip
            for along in orders if a.size == 2 else orders[:1]:
                space.append(wide_plan(facts, kind, a, a, out, (128, 256), along, 2))
            space.append(wide_plan(facts, kind, a, a, out, (64, 64), store="rows", batched=True))
            space.append(wide_plan(facts, kind, a, a, int32 if a.kind == "i" else float32, (64, 64),
                                   store="rows", sum_of=out))  # fmt: skip
            if a.size == 2:
                space.append(wide_plan(facts, kind, a, a, out, (64, 64), orders[1], 2))
                space.append(wide_plan(facts, kind, a, a, out, (64, 64), orders[1], teams=2))
                space.append(team_plan(facts, "wide", kind, a, a, out, float32, orders[0], "held",
                                       (64, 32), across=2, near=orders[1]))  # fmt: skip
        f8 = t["float8_e4m3fn"]
        promoted = wide_plan(facts, f8.name, f8, f8, half, (128, 128), chain=4, scaled=True)
        space.append(promoted)
        f32 = float32
        space.append(wide_plan(facts, "tf32", f32, f32, f32, peers=2, block=(128, 128),
                               chain=1, parts=2))  # fmt: skip
        for along in (orders[0], orders[2]):
            space.append(
                ring_plan(facts, "lanes", float32, float32, along, (128, 128), (8, 16), 2, 1)
            )
        for along in orders:
            space.append(
                ring_plan(facts, "matrix", float64, float64, along, (128, 64), (8, 8), 1, 2)
            )
            space.append(
                ring_plan(facts, "matrix", float64, float64, along, (64, 64), (8, 8), 1, 1)
            )
    if facts.async_copies:
        for along in orders:
            space.append(team_plan(facts, "lanes", "", float32, float32, float32, float32, along,
                                   "async", (128, 64), (8, 8), 1, 2))  # fmt: skip
            for dtype in (half, float64):
                acc = float64 if dtype == float64 else float32
                space.append(team_plan(facts, "matrix", dtype.name, dtype, dtype, dtype, acc, along,
                                       "async", (64, 64), (8, 8), 1, 1, 3))  # fmt: skip
    if facts.async_copies and not facts.wide:
        space.append(
            team_plan(facts, "matrix", "float16", half, half, half, float32, ("k", "k"), "held",
                      (64, 32), (8, 8), 1, 2, near=("k", "rows"))
        )  # fmt: skip
    for name in (
        "float32",
        "float64",
        "bfloat16",
        "int8",
        "uint64",
        "complex64",
        "complex128",
        "bool",
    ):
        a = t[name]
        acc = t[a.compute]
        tile, lane = lanes_shape(acc)
        for near in (("k", "rows"), ("rows", "k")) if name == "float32" else (("k", "rows"),):
            space.append(team_plan(facts, "lanes", "", a, a, a, acc, near, "held", tile, lane,
                                   near=near))  # fmt: skip
    for name, side in (("bfloat16", "k"), ("int8", "rows"), ("float64", "rows")):
        space.append(pack_plan(t[name], side))
    if facts.capability >= 80:
        space.append(pack_plan(float32, "rows", None, 2))
    return space
