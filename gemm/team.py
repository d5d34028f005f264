"""The blocked product in its level-mapped form: one block of the output for a team at a time.

Level map, beside gemm/blocked.py

    loops 5, 3   over N in BN, over M in BM   a grid of workers, in bands of `band` block rows
    loop 4       over K in BK                 sequential: the ring's stages, one chain of fma
    loops 2, 1   inside a block               groups of the team, then lanes inside the words

Staging: where the CPU packs a block before it computes, a team passes packed panels through a
ring of stages in shared memory. `make_ring_kernel` gives the packing to a group of its own, which
runs ahead of those that compute; `make_team_kernel` has every lane fetch the next stage before it
computes the current one. Write-back is the same hook in both: the finished tile, narrowed once.

            group P (fills)                        groups 0.. (drain)
            for block, for k-step:                 for block, for k-step:
              wait empty[s]                          wait full[s]
              A, B panels -> stage s  ===========>   tile += A panel x B panel
              (bytes count at full[s])               arrive empty[s]
                                                   write back the tile
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemm.microkernels.cooperative import (
    StageShape,
    TeamTile,
    box_fetch,
    claim_registers,
    gate_arrive,
    gate_expect,
    gate_open,
    gate_wait,
    gates_opened,
    group,
    leader,
    panel_begin,
    panel_end,
    panel_write,
    panels_commit,
    panels_wait,
    peer,
    peers_sync,
    quotient,
    team_accumulate,
    team_add,
    team_drain,
    team_memory,
    team_scale,
    team_send,
    team_settle,
    team_sync,
    team_tile,
    team_write,
    team_zeros,
    worker,
    workers,
    yield_registers,
)
from gemm.microkernels.dtypes import DType, float32, int64, uint8
from gemm.microkernels.vocabulary import load, recast, shift

from .epilogues.program import Program
from .epilogues.team_write_back import illegal, make_team_write_back, room_for

SWIZZLED_ROW = 128
TABLE = "table128"  # four rows of a batch


@dataclass(frozen=True)
class TeamPlan:
    """Everything a team kernel is specialised for; no size of any problem.

    tile: what one group computes; across, down: groups side by side along N and M, so that a
    block is (down * tile.rows) x (across * tile.columns); stages: slots of the ring; peers:
    teams that share each other's B panels; band: block rows walked together in raster order;
    parts: panels an operand is split into (2: high and low part, three products a stage);
    program: the write-back's (gemm/epilogues), None for the plain store;
    chain: k-steps summed by the matrix unit before they are added to the float32 total (0: all);
    store: 'box' (copy engine) or 'rows'; scaled: the result is multiplied by two scalars;
    registers: (filling, draining) a lane, (0, 0) leaves them; batched: boxes have batch axes.
    """

    tile: TeamTile
    a: DType
    b: DType
    out: DType
    down: int
    across: int
    stages: int
    filler_lanes: int = 0
    peers: int = 1
    band: int = 8
    parts: int = 1
    chain: int = 0
    store: str = "rows"
    scaled: bool = False
    batched: bool = False
    registers: tuple[int, int] = (0, 0)
    lanes: int = 128
    teams_per_unit: int = 1
    program: Program | None = None

    @property
    def block(self) -> tuple[int, int, int]:
        """BM, BN, BK."""
        return self.tile.a.rows, self.tile.b.rows, self.tile.a.depth

    @property
    def groups(self) -> int:
        """Groups that compute."""
        return self.down * self.across

    @property
    def stage_bytes(self) -> int:
        return self.parts * (self.tile.a.bytes + self.tile.b.bytes)

    @property
    def room_bytes(self) -> int:
        """Shared memory in which one group reorders its tile for the write-back."""
        return self.room_slots * self.tile.rows * SWIZZLED_ROW

    @property
    def room_slots(self) -> int:
        return 2 if self.tile.rows <= 64 else 1

    @property
    def room_start(self) -> int:
        return self.stages * self.stage_bytes

    @property
    def gates_start(self) -> int:
        # Only a filler that runs ahead needs stages and room at the same time.
        apart = self.room_start if self.filler_lanes else 0
        return max(self.room_start, apart + self.groups * self.room_bytes)

    @property
    def partials_start(self) -> int:
        """Where the program's partials rest: of each group those along rows, then the others."""
        return self.gates_start + 16 * self.stages

    def partial_bytes(self, *kinds: str) -> int:
        """Of one group, for partials along a 'row' or a 'column', or both."""
        if self.program is None:
            return 0
        kinds = kinds or ("row", "column")
        return sum(room_for(self.program, kind, self.tile.rows) for kind in kinds)

    @property
    def shared_bytes(self) -> int:
        return self.partials_start + self.groups * self.partial_bytes()

    @property
    def threads(self) -> int:
        return self.groups * self.lanes + self.filler_lanes

    @property
    def entry_registers(self) -> int:
        """Registers a lane until a group claims or yields; 0: as many as fit."""
        if not self.registers[1]:
            return 0
        return 65536 // self.teams_per_unit // self.threads // 8 * 8

    @property
    def label(self) -> str:
        bm, bn, bk = self.block
        t = self.tile
        return (
            f"{t.unit} {bm}x{bn}x{bk} {self.a}{t.a.along[0]} x {self.b}{t.b.along[0]} -> {self.out}"
            f" {t.a.route} stages {self.stages} peers {self.peers}"
        )

    def illegal(self) -> str:
        """Why the plan makes no kernel, with the numbers; empty when it does."""
        t = self.tile
        if (t.rows * self.down, t.columns * self.across) != (t.a.rows, t.b.rows):
            return (
                f"{self.down} x {self.across} tiles of {t.rows}x{t.columns} are not a block of"
                f" {t.a.rows}x{t.b.rows}"
            )
        for panel in (t.a, t.b):
            if panel.along == "k" and panel.depth * panel.dtype.size != SWIZZLED_ROW:
                return f"a panel along k holds 128 bytes of k, not {panel.depth} x {panel.dtype}"
        if t.a.depth != t.b.depth:
            return f"panels of depth {t.a.depth} and {t.b.depth}"
        if self.stages < 2:
            return f"a ring needs two stages, got {self.stages}"
        if self.peers > 1 and t.b.along == "rows" and not t.b.swizzled:
            return "peers share panels in boxes; an unswizzled panel is one piece"
        width = min(SWIZZLED_ROW // self.out.size, t.columns)
        if t.columns % width:
            return f"{t.columns} columns of {self.out} are no whole number of 128-byte runs"
        share = t.b.rows // self.peers * t.b.dtype.size
        if t.b.along == "rows" and t.b.swizzled and share % SWIZZLED_ROW:
            return f"a share of {share} bytes of B is no whole number of 128-byte boxes"
        for panel, extent, count in ((t.a, t.rows, self.down), (t.b, t.columns, self.across)):
            if panel.along == "rows" and panel.swizzled and count > 1:
                if extent * panel.dtype.size % SWIZZLED_ROW:
                    return f"a group's {extent} rows of {panel.dtype} start inside a 128-byte box"
        few, many = self.registers
        pool = self.threads * self.entry_registers
        wanted = self.groups * self.lanes * many + self.filler_lanes * few
        if wanted > pool:
            # The claim would wait for ever.
            return f"groups claim {wanted} registers of {pool} the team enters with"
        if self.parts not in (1, 2) or self.peers < 1:
            return f"parts = {self.parts}, peers = {self.peers}"
        return "" if self.program is None else self._illegal_program(self.program)

    def _illegal_program(self, program: Program) -> str:
        kinds = {output.kind for output in program.outputs}
        if "row" in kinds and self.across > 1:
            return f"partials along rows need one group across, the plan has {self.across}"
        if "column" in kinds and (self.down > 1 or self.peers > 1):
            return (
                f"partials down columns need one group down and no peers, the plan has {self.down}"
                f" and {self.peers}"
            )
        if program.pairs and self.tile.columns % 2:
            return f"pairs of columns on a tile of {self.tile.columns}"
        return illegal(self.tile, program)


def make_locate(band: int):
    """(block row, block column) of the i-th block: bands of `band` rows, column by column."""

    def locate(i, rows, columns):
        above = quotient(i, band * columns) * band
        high = rows - above
        if high > band:
            high = band
        rest = i - above * columns
        column = quotient(rest, high)
        return above + rest - column * high, column

    return locate


def make_walk(plan: TeamPlan):
    """(visits, place): visits(down, across) is how many blocks a span holds, place(i, j, visit,
    down, across) the block row and column of one of them in span (i, j).

    A span is what one team takes in turn: where a chain of partials goes on from block to block,
    all of them, in the chain's order; without partials one block.
    """
    program = plan.program
    if program is None or all(output.kind == "tile" for output in program.outputs):
        return (lambda down, across: 1), (lambda i, j, visit, down, across: (i, j))

    def visits(down, across):
        return down * across

    def place(i, j, visit, down, across):
        row = quotient(visit, across)
        return i * down + row, j * across + visit - row * across

    return visits, place


def walk(plan: TeamPlan, m: int, n: int) -> tuple[int, int, int, int]:
    """(blocks of a span down, across, spans down, across) of an m x n output."""
    bm, bn, _ = plan.block
    rows, columns = -(-m // (bm * plan.peers)), -(-n // bn)
    program, down, across = plan.program, 1, 1
    for output in () if program is None else program.outputs:
        if output.kind == "row":
            lanes = bn // (2 if program is not None and program.pairs else 1)
            across = min(columns, math.lcm(across, _together(output.block, lanes, columns)))
        elif output.kind == "column":
            down = min(rows, math.lcm(down, _together(output.block, bm, rows)))
    return down, across, -(-rows // down), -(-columns // across)


def _together(block: int, extent: int, count: int) -> int:
    """How many of `count` blocks of the output one team must take for partials over `block`."""
    if block and extent % block == 0:
        return 1
    return min(count, block // extent) if block and block % extent == 0 else count


def make_leave(plan: TeamPlan):
    """What a group does with its finished tile: leave(t, c_box, c, room, partials, m, n, row,
    column, u, v, matrix, c_row, extra); c: the matrix of the batch that it is a tile of."""
    OUT, SIZE = plan.out, plan.out.size
    BELOW = plan.partial_bytes("row")

    def send(t, c_box, c, room, partials, m, n, row, column, u, v, matrix, c_row, extra):
        team_send(c_box, room, t, column, row, u, v, OUT)

    def write(t, c_box, c, room, partials, m, n, row, column, u, v, matrix, c_row, extra):
        at = shift(c, row * c_row + column * SIZE)
        team_write(at, c_row, room, t, m - row, n - column)

    if plan.program is None:
        return send if plan.store == "box" else write
    write_back = make_team_write_back(plan.tile, plan.program)

    def run(t, c_box, c, room, partials, m, n, row, column, u, v, matrix, c_row, extra):
        write_back(t, room, partials, shift(partials, BELOW), m - row, n - column, row, column,
                   matrix, extra)  # fmt: skip

    return run


def make_fill(stage: StageShape, peers: int):
    """The packing routine of the copy engine: `stage.rows / peers` rows of a panel."""
    width = SWIZZLED_ROW // stage.dtype.size
    count = stage.rows // peers // width
    step = stage.depth * SWIZZLED_ROW

    def fill_along_k(dst, box, gate, row, k, u, v):
        box_fetch(dst, box, gate, k, row, u, v, peers)

    def fill_along_rows(dst, box, gate, row, k, u, v):
        box_fetch(dst, box, gate, row, k, u, v, peers)

    def fill_boxes(dst, box, gate, row, k, u, v):
        for i in range(count):
            box_fetch(shift(dst, i * step), box, gate, row + i * width, k, u, v, peers)

    if stage.along == "k":
        return fill_along_k
    return fill_boxes if stage.swizzled else fill_along_rows


def make_ring_kernel(plan: TeamPlan):
    """The product with a filling group; operands reach it as boxes of the copy engine."""
    TILE, STAGES, PEERS, PARTS = plan.tile, plan.stages, plan.peers, plan.parts
    A, B = TILE.a, TILE.b
    BM, BN, BK = plan.block
    GROUPS, DOWN = plan.groups, plan.down
    STAGE_BYTES, A_BYTES, B_BYTES = plan.stage_bytes, A.bytes, B.bytes
    B_START = PARTS * A_BYTES
    ROOM, ROOM_BYTES, GATES = plan.room_start, plan.room_bytes, plan.gates_start
    WIDE = TILE.unit == "wide"
    # A wide unit reads the stage by itself, one arrival a group; else each warp arrives.
    ARRIVALS = 1 if WIDE else plan.lanes // 32
    CALLS = 3 if PARTS == 2 else 1
    STEPS = TILE.steps
    CHAIN = plan.chain
    BOXED, SCALED = plan.store == "box" and plan.program is None, plan.scaled
    PARTIALS = plan.partials_start
    PARTIAL_BYTES = plan.partial_bytes()
    visits, place = make_walk(plan)
    leave_tile = make_leave(plan)
    FEW, MANY = plan.registers
    A_ROW, B_ROW, ROWS, COLUMNS = A.row_bytes, B.row_bytes, TILE.rows, TILE.columns
    B_SHARE = BN // PEERS
    locate = make_locate(plan.band)
    fill_a, fill_b = make_fill(A, 1), make_fill(B, PEERS)
    begin = team_tile if WIDE else team_zeros

    def use_one(t, a, b, keep):
        for step in range(STEPS):
            t = team_accumulate(TILE, t, a, b, step, keep)
        return t

    def use_split(t, a, b, keep):
        # The small products first: low x high, high x low, high x high.
        t = team_accumulate(TILE, t, shift(a, A_BYTES), b, 0, keep)
        t = team_accumulate(TILE, t, a, shift(b, B_BYTES), 0, True)
        return team_accumulate(TILE, t, a, b, 0, True)

    use = use_split if PARTS == 2 else use_one

    def chain(memory, full, empty, a_at, b_at, count, steps):
        """The tile of `steps` stages, the first of them the ring's `count`-th."""
        turn = quotient(count, STAGES)
        stage = count - turn * STAGES
        phase = turn & 1
        last = stage
        t = begin(TILE)
        for step in range(steps):
            gate_wait(shift(full, 8 * stage), phase)
            slot = shift(memory, stage * STAGE_BYTES)
            keep = step > 0 or not WIDE
            t = use(t, shift(slot, a_at), shift(slot, B_START + b_at), keep)
            if WIDE:
                # The stage before is free once only this one's products are pending.
                t = team_settle(t, CALLS)
                gate_arrive(shift(empty, 8 * last), PEERS, ARRIVALS, step > 0)
            else:
                gate_arrive(shift(empty, 8 * stage), PEERS, ARRIVALS, True)
            last = stage
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1
        t = team_settle(t, 0)
        if WIDE:
            gate_arrive(shift(empty, 8 * last), PEERS, ARRIVALS, True)
        return t

    def promoted(memory, full, empty, a_at, b_at, count, steps):
        """The same in short chains, each added to a total that rounds like the language."""
        total = team_zeros(TILE)
        for first in range(0, steps, CHAIN):
            length = steps - first
            if length > CHAIN:
                length = CHAIN
            t = chain(memory, full, empty, a_at, b_at, count + first, length)
            total = team_add(total, t)
        return total

    total_of = promoted if CHAIN else chain

    def scale(t, scale_a, scale_b):
        return team_scale(t, load(scale_a) * load(scale_b))

    def leave(t, scale_a, scale_b):
        return t

    finish = scale if SCALED else leave

    def all_steps(block_row, block_column, m, n, steps):
        return steps

    def steps_inside(block_row, block_column, m, n, steps):
        """No step of a block that the walk makes beyond the output."""
        if block_row * PEERS * BM < m and block_column * BN < n:
            return steps
        return 0

    turns = all_steps if plan.program is None else steps_inside

    def kernel(a, b, c_box, c, scale_a, scale_b, extra, m, n, steps, part_step, rows, columns,
               spans, inner, a_u, a_v, b_u, b_v, c_row, c_u, c_v, walk_down,
               walk_across):  # fmt: skip
        """c = a @ b over a batch.

        a, b, c_box: boxes of the operands (c_box only where results leave by box); c: first
        result, c_row bytes to the next row. steps: K / BK, at least 1. rows, columns: extent of
        c in spans of PEERS * BM rows and in blocks of BN columns; spans: rows * columns * batch.
        inner: extent of the inner batch axis u, v the outer; ?_u, ?_v: 0 where an operand is
        broadcast along it, else 1 (c: bytes). part_step: from a part to the next, along x.
        extra: the program's table; walk_down, walk_across: blocks of a span (`make_walk`), whose
        counts `rows` and `columns` then are.
        """
        memory = team_memory(uint8)
        full = shift(memory, GATES)
        empty = shift(full, 8 * STAGES)
        if group() == GROUPS:
            if leader():
                for s in range(STAGES):
                    gate_open(shift(full, 8 * s), 1)
                    gate_open(shift(empty, 8 * s), GROUPS * PEERS * ARRIVALS)
                gates_opened()
        if PEERS > 1:
            peers_sync()
        else:
            team_sync()
        first = quotient(worker(), PEERS)
        stride = quotient(workers(), PEERS)
        rank = peer()
        if group() == GROUPS:
            if FEW:
                yield_registers(FEW)
            if leader():
                stage = 0
                phase = 1
                for span in range(first, spans, stride):
                    matrix = quotient(span, rows * columns)
                    i, j = locate(span - matrix * rows * columns, rows, columns)
                    v = quotient(matrix, inner)
                    u = matrix - v * inner
                    for visit in range(visits(walk_down, walk_across)):
                        block_row, block_column = place(i, j, visit, walk_down, walk_across)
                        row = (block_row * PEERS + rank) * BM
                        column = block_column * BN + rank * B_SHARE
                        for step in range(turns(block_row, block_column, m, n, steps)):
                            gate = shift(full, 8 * stage)
                            slot = shift(memory, stage * STAGE_BYTES)
                            gate_wait(shift(empty, 8 * stage), phase)
                            gate_expect(gate, STAGE_BYTES)
                            for part in range(PARTS):
                                k = step * BK + part * part_step
                                to = shift(slot, part * A_BYTES)
                                fill_a(to, a, gate, row, k, u * a_u, v * a_v)
                                at = part * B_BYTES + rank * B_SHARE * B_ROW
                                to = shift(slot, B_START + at)
                                fill_b(to, b, gate, column, k, u * b_u, v * b_v)
                            stage += 1
                            if stage == STAGES:
                                stage = 0
                                phase ^= 1
        else:
            if MANY:
                claim_registers(MANY)
            across = quotient(group(), DOWN)
            down = group() - across * DOWN
            room = shift(memory, ROOM + group() * ROOM_BYTES)
            partials = shift(memory, PARTIALS + group() * PARTIAL_BYTES)
            count = 0
            for span in range(first, spans, stride):
                matrix = quotient(span, rows * columns)
                i, j = locate(span - matrix * rows * columns, rows, columns)
                v = quotient(matrix, inner)
                u = matrix - v * inner
                for visit in range(visits(walk_down, walk_across)):
                    block_row, block_column = place(i, j, visit, walk_down, walk_across)
                    if turns(block_row, block_column, m, n, steps) > 0:
                        row = (block_row * PEERS + rank) * BM + down * ROWS
                        column = block_column * BN + across * COLUMNS
                        t = total_of(memory, full, empty, down * ROWS * A_ROW,
                                     across * COLUMNS * B_ROW, count, steps)  # fmt: skip
                        count += steps
                        t = finish(t, scale_a, scale_b)
                        matrix_c = shift(c, v * c_v + u * c_u)
                        leave_tile(t, c_box, matrix_c, room, partials, m, n, row, column, u, v,
                                   matrix, c_row, extra)  # fmt: skip
            if BOXED:
                team_drain()
        if PEERS > 1:
            peers_sync()

    kernel.label = plan.label  # type: ignore[attr-defined]
    return kernel


def batch_offsets(dims, index):
    """Byte steps of a, b and c to matrix `index` of a batch.

    dims: int64 table of (extent, a step, b step, c step) rows, innermost first.
    """
    at_a = 0
    at_b = 0
    at_c = 0
    row = recast(dims, int64)
    while index > 0:
        extent = load(row)
        digit = index % extent
        index = index // extent
        at_a += digit * load(shift(row, 8))
        at_b += digit * load(shift(row, 16))
        at_c += digit * load(shift(row, 24))
        row = shift(row, 32)
    return at_a, at_b, at_c


def make_team_kernel(plan: TeamPlan):
    """The product in which every lane fills and drains; operands are pointers with strides."""
    TILE, STAGES = plan.tile, plan.stages
    A, B = TILE.a, TILE.b
    BM, BN, BK = plan.block
    DOWN = plan.down
    STAGE_BYTES, A_BYTES = plan.stage_bytes, A.bytes
    ROOM_BYTES, PENDING = plan.room_bytes, plan.stages - 2
    STEPS = TILE.steps
    A_ROW, B_ROW, ROWS, COLUMNS = A.row_bytes, B.row_bytes, TILE.rows, TILE.columns
    PARTIALS = plan.partials_start
    PARTIAL_BYTES = plan.partial_bytes()
    locate = make_locate(plan.band)
    visits, place = make_walk(plan)
    leave_tile = make_leave(plan)

    def kernel(a, b, c, extra, dims, m, n, k, ars, acs, brs, bcs, crs, rows, columns, spans,
               walk_down, walk_across):  # fmt: skip
        """c = a @ b over a batch; a (m x k), b (k x n), c (m x n) with adjacent columns.

        ?rs, ?cs: row and column steps in bytes; dims: the batch, see `batch_offsets`; rows,
        columns: extent of c in spans of walk_down x walk_across blocks (`make_walk`); spans: rows
        * columns * batch; extra: the program's table.
        """
        memory = team_memory(uint8)
        partials = shift(memory, PARTIALS + group() * PARTIAL_BYTES)
        across = quotient(group(), DOWN)
        down = group() - across * DOWN
        a_at = down * ROWS * A_ROW
        b_at = A_BYTES + across * COLUMNS * B_ROW
        room = shift(memory, group() * ROOM_BYTES)
        steps = (k + BK - 1) // BK
        for span in range(worker(), spans, workers()):
            matrix = quotient(span, rows * columns)
            i, j = locate(span - matrix * rows * columns, rows, columns)
            for visit in range(visits(walk_down, walk_across)):
                block_row, block_column = place(i, j, visit, walk_down, walk_across)
                row = block_row * BM
                column = block_column * BN
                at_a, at_b, at_c = batch_offsets(dims, matrix)
                source_a = shift(a, at_a + row * ars)
                source_b = shift(b, at_b + column * bcs)
                for s in range(STAGES - 1):
                    slot = shift(memory, s * STAGE_BYTES)
                    left = k - s * BK
                    held_a = panel_begin(
                        A, slot, shift(source_a, s * BK * acs), ars, acs, m - row, left
                    )
                    to_b = shift(slot, A_BYTES)
                    held_b = panel_begin(
                        B, to_b, shift(source_b, s * BK * brs), bcs, brs, n - column, left
                    )
                    panel_end(A, slot, held_a)
                    panel_end(B, to_b, held_b)
                    panels_commit()
                stage = 0
                ahead = STAGES - 1
                t = team_zeros(TILE)
                for step in range(steps):
                    panels_wait(PENDING)
                    team_sync()
                    first = (step + STAGES - 1) * BK
                    to_a = shift(memory, ahead * STAGE_BYTES)
                    to_b = shift(to_a, A_BYTES)
                    held_a = panel_begin(
                        A, to_a, shift(source_a, first * acs), ars, acs, m - row, k - first
                    )
                    held_b = panel_begin(
                        B, to_b, shift(source_b, first * brs), bcs, brs, n - column, k - first
                    )
                    panels_commit()
                    slot = shift(memory, stage * STAGE_BYTES)
                    for part in range(STEPS):
                        t = team_accumulate(
                            TILE, t, shift(slot, a_at), shift(slot, b_at), part, True
                        )
                    panel_end(A, to_a, held_a)
                    panel_end(B, to_b, held_b)
                    stage += 1
                    if stage == STAGES:
                        stage = 0
                    ahead += 1
                    if ahead == STAGES:
                        ahead = 0
                panels_wait(0)
                team_sync()
                row += down * ROWS
                column += across * COLUMNS
                leave_tile(t, c, shift(c, at_c), room, partials, m, n, row, column, 0, 0, matrix,
                           crs, extra)  # fmt: skip
                team_sync()

    kernel.label = plan.label  # type: ignore[attr-defined]
    return kernel


@dataclass(frozen=True)
class PackPlan:
    """Packing ahead of a kernel: any strides to adjacent k. parts: 1 a copy, 2 high and low."""

    stage: StageShape
    source: DType
    out: DType
    parts: int = 1
    lanes: int = 256

    threads = property(lambda self: self.lanes)
    shared_bytes = property(lambda self: self.stage.bytes)
    peers = 1
    entry_registers = 0

    @property
    def teams_per_unit(self) -> int:
        """Teams at a time on a multiprocessor: as many as leave each lane the registers it needs
        (narrow elements are more of them)."""
        return 4 if self.stage.dtype.size >= 4 else 1

    @property
    def label(self) -> str:
        return f"pack {self.source} near {self.stage.near} -> {self.out} in {self.parts} parts"


def make_pack_kernel(plan: PackPlan):
    """dst[r, part, k] = src[r, k], panel by panel; `parts` 2 splits each value in two."""
    STAGE, PARTS = plan.stage, plan.parts
    ROWS, DEPTH = STAGE.rows, STAGE.depth
    SIZE = plan.out.size

    def write_whole(q, dst_row, panel, rows, depth, part_step):
        panel_write(STAGE, q, dst_row, panel, rows, depth, 0)

    def write_split(q, dst_row, panel, rows, depth, part_step):
        panel_write(STAGE, q, dst_row, panel, rows, depth, 1)
        panel_write(STAGE, shift(q, part_step), dst_row, panel, rows, depth, 2)

    write = write_whole if PARTS == 1 else write_split

    def kernel(dst, src, dims, rows, depth, row_step, k_step, dst_row, part_step, across, spans):
        """src: rows x depth at steps row_step, k_step; dst: dst_row bytes a row, adjacent k.

        dims: the batch, (extent, src step, dst step, 0); across: panels along k; spans: panels of
        the batch. part_step: bytes from a part of a row to the next.
        """
        memory = team_memory(uint8)
        down = quotient(rows + ROWS - 1, ROWS)
        for span in range(worker(), spans, workers()):
            matrix = quotient(span, down * across)
            rest = span - matrix * down * across
            i = quotient(rest, across)
            j = rest - i * across
            row = i * ROWS
            k = j * DEPTH
            at_src, at_dst, _ = batch_offsets(dims, matrix)
            p = shift(src, at_src + row * row_step + k * k_step)
            held = panel_begin(STAGE, memory, p, row_step, k_step, rows - row, depth - k)
            team_sync()
            panel_end(STAGE, memory, held)
            team_sync()
            q = shift(dst, at_dst + row * dst_row + k * SIZE)
            write(q, dst_row, memory, rows - row, depth - k, part_step)

    kernel.label = plan.label  # type: ignore[attr-defined]
    return kernel


def build(plan):
    """(kernel, argument kinds): DType for a pointer, 'box2', 'box4', 'integer', or 'table' with
    its number of bytes."""
    if isinstance(plan, PackPlan):
        return make_pack_kernel(plan), (plan.out, plan.source, TABLE, *["integer"] * 8)
    extra = "integer" if plan.program is None else f"table{8 * plan.program.end}"
    if plan.filler_lanes:
        box = "box4" if plan.batched else "box2"
        kinds = (box, box, box, plan.out, float32, float32, extra, *["integer"] * 17)
        return make_ring_kernel(plan), kinds
    kinds = (plan.a, plan.b, plan.out, extra, TABLE, *["integer"] * 13)
    return make_team_kernel(plan), kinds
