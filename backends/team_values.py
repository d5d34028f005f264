"""Numba types of a team's values, and the typing rule of every team word (see values.py)."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models, register_default

from gemm.microkernels import cooperative as team
from gemm.microkernels import pixels
from gemm.microkernels.cooperative import StageShape, TeamTile
from gemm.microkernels.dtypes import int64

from . import values

GROUP_LANES = 128


class Box(types.Type):
    """A tensor map of the copy engine with `rank` axes, passed by value."""

    def __init__(self, rank: int):
        self.rank = rank
        super().__init__(f"Box({rank})")


class Image(types.Type):
    """A tensor map that gathers over `rank` spatial axes, with its rule, passed by value."""

    def __init__(self, rank: int):
        self.rank = rank
        super().__init__(f"Image({rank})")


class TeamTileType(types.Type):
    """A lane's share of a group's tile."""

    def __init__(self, tile: TeamTile):
        self.tile = tile
        super().__init__(f"TeamTile({tile!r})")

    @property
    def scalar(self):
        return values.LLVM_SCALARS[self.tile.dtype.real.compute]

    @property
    def count(self) -> int:
        """Accumulators a lane."""
        tile = self.tile
        return tile.rows * tile.columns * tile.dtype.components // GROUP_LANES

    @property
    def llvm(self):
        return ir.ArrayType(self.scalar, self.count)


class Held(types.Type):
    """A lane's share of a panel on its way to a stage; nothing when the hardware carries it."""

    def __init__(self, stage: StageShape):
        self.stage = stage
        super().__init__(f"Held({stage!r})")

    @property
    def count(self) -> int:
        if self.stage.route != "held":
            return 0
        return self.stage.rows * self.stage.depth // self.stage.lanes

    @property
    def llvm(self):
        real = self.stage.dtype.real
        raw = values.LLVM_SCALARS.get(real.name, ir.IntType(real.bits))
        return ir.ArrayType(raw, self.count * self.stage.dtype.components)


@register_default(Box)
@register_default(Image)
class _BoxModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, values.BYTE_POINTER)


@register_default(TeamTileType)
@register_default(Held)
class _ArrayModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


values.RULES.update(
    {
        team.worker: lambda: types.intp,
        team.workers: lambda: types.intp,
        team.peer: lambda: types.intp,
        team.group: lambda: types.intp,
        team.leader: lambda: types.boolean,
        team.claim_registers: lambda n: types.none,
        team.yield_registers: lambda n: types.none,
        team.team_raise: lambda p, value: types.none,
        team.team_await: lambda p, count, value: types.none,
        team.quotient: lambda a, b: types.intp,
        team.team_memory: lambda d: values.Pointer(values.constant(d), 3),
        team.team_sync: lambda: types.none,
        team.peers_sync: lambda: types.none,
        team.gate_open: lambda p, n: types.none,
        team.gates_opened: lambda: types.none,
        team.gate_wait: lambda p, phase: types.none,
        team.gate_expect: lambda p, n: types.none,
        team.gate_arrive: lambda p, peers, arrivals, when: types.none,
        team.box_fetch: lambda dst, box, gate, x, y, u, v, peers: types.none,
        pixels.image_rule: lambda image: values.Pointer(int64),
        pixels.pixels_fetch: lambda dst, image, gate, c, x, y, z, n, dx, dy, dz: types.none,
        pixels.pixels_begin: lambda s, dst, p, rule, row, k, rows, depth, turned: Held(
            values.constant(s)
        ),
        team.memory_ahead: lambda p, nbytes: types.none,
        team.panel_begin: lambda s, dst, p, rs, ks, rows, depth: Held(values.constant(s)),
        team.panel_end: lambda s, dst, held: types.none,
        team.panel_write: lambda s, p, rs, src, rows, depth, part: types.none,
        team.panels_seen: lambda: types.none,
        team.panels_commit: lambda: types.none,
        team.panels_wait: lambda n: types.none,
        team.team_zeros: lambda t: TeamTileType(values.constant(t)),
        team.team_tile: lambda t: TeamTileType(values.constant(t)),
        team.team_accumulate: lambda tile, t, a, b, step, keep: t,
        team.team_settle: lambda t, n: t,
        team.team_add: lambda total, t: t,
        team.team_scale: lambda t, x: t,
        team.team_send: lambda box, room, t, x, y, u, v, out: types.none,
        team.team_drain: lambda: types.none,
        team.team_write: lambda p, rs, room, t, m, n: types.none,
        team.lane: lambda: types.intp,
        team.lanes: lambda: types.intp,
        team.lanes_sync: lambda: types.none,
        team.lane_value: lambda x, other: x,
        team.elements_of: lambda words, d: values.Lanes(
            values.constant(d).computed, 4 * words.lanes // values.constant(d).size
        ),
        team.misalignment: lambda p, n: types.intp,
        team.aligned: lambda p, n: values.Pointer(p.dtype, p.space, values.constant(n)),
        team.group_lane: lambda: types.intp,
        team.group_lanes: lambda: types.intp,
        team.group_sync: lambda: types.none,
        team.rows_held: lambda tile: types.intp,
        team.row_of: lambda tile, h: types.intp,
        team.team_spill: lambda tile, t, room, chunk: types.none,
        team.spilled: lambda tile, room, h, c: values.Pointer(values.constant(tile).dtype, 3),
    }
)
