"""The product with a group that packs: it runs ahead through a ring of stages.

group P (fills)                        groups 0.. (drain)
for block, for k-step:                 for block, for k-step:
  wait empty[s]                          wait full[s]
  A, B panels -> stage s  ===========>   tile += A panel x B panel
  (bytes count at full[s])               arrive empty[s]
                                       write back the tile
"""

from __future__ import annotations

from gemm.microkernels.cooperative import (
    StageShape,
    box_fetch,
    claim_registers,
    gate_arrive,
    gate_expect,
    gate_open,
    gate_wait,
    gates_opened,
    group,
    leader,
    peer,
    peers_sync,
    quotient,
    team_accumulate,
    team_add,
    team_drain,
    team_memory,
    team_scale,
    team_settle,
    team_sync,
    team_tile,
    team_zeros,
    worker,
    workers,
    yield_registers,
)
from gemm.microkernels.dtypes import uint8
from gemm.microkernels.vocabulary import load, shift

from ..epilogues.team_write_back import make_team_ahead
from .join import make_join
from .leave import make_leave
from .pixels import make_image_source
from .plan import SWIZZLED_ROW, TeamPlan
from .walk import make_locate, make_walk


def make_fill(stage: StageShape, rows: int, peers: int):
    """The packing routine of the copy engine: `rows` rows of a panel."""
    width = SWIZZLED_ROW // stage.dtype.size
    count = rows // width
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


def make_matrix_source(plan: TeamPlan):
    """How a filling lane goes along A and B: (start, first, fill A, fill B, next).

    start(a, row): where a block of A begins; first(a, k): the cursor there; next(a, cursor);
    further: k beyond the cursor.
    """
    BM, _, BK = plan.block
    put_a = make_fill(plan.tile.a, BM, 1)
    put_b = make_fill(plan.tile.b, plan.share[0], plan.peers)

    def start(a, row):
        return row

    def first(a, k):
        return k

    def fill_a(dst, a, gate, place, cursor, further, u, v):
        put_a(dst, a, gate, place, cursor + further, u, v)

    def fill_b(dst, b, gate, column, cursor, further, u, v):
        put_b(dst, b, gate, column, cursor + further, u, v)

    def after(a, cursor):
        return cursor + BK

    return start, first, fill_a, fill_b, after


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
    leave_tile, join = make_leave(plan), make_join(plan)
    ahead = make_team_ahead(TILE, plan.program)
    JOINED = int(plan.joined)
    FEW, MANY = plan.registers
    A_ROW, B_ROW, ROWS, COLUMNS = A.row_bytes, B.row_bytes, TILE.rows, TILE.columns
    SHARE, K_SHARE = plan.share
    # Where a peer's share of B starts: in columns, in k and in bytes of the panel.
    BESIDE = SHARE if K_SHARE == BK else 0
    BELOW = 0 if K_SHARE == BK else K_SHARE
    SHARE_BYTES = BESIDE * B_ROW + BELOW * SWIZZLED_ROW
    locate = make_locate(plan.band)
    make_source = make_image_source if plan.image else make_matrix_source
    start, first_step, fill_a, fill_b, after = make_source(plan)
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

    def kernel(a, b, c_box, c, scale_a, scale_b, extra, m, n, steps, expected, part_step, rows,
               columns, spans, inner, a_u, a_v, b_u, b_v, c_row, c_u, c_v, walk_down,
               walk_across):  # fmt: skip
        """c = a @ b over a batch.

        a, b, c_box: boxes of the operands (c_box only where results leave by box); c: first
        result, c_row bytes to the next row. steps: K / BK, at least 1; expected: bytes that arrive
        for one, fewer than a stage where boxes hold no rows beyond the operand. rows, columns:
        extent of c in spans of PEERS * BM rows and in blocks of BN columns; spans: rows * columns
        * batch. inner: extent of the inner batch axis u, v the outer; ?_u, ?_v: 0 where an operand
        is broadcast along it, else 1 (c: bytes). part_step: from a part to the next, along x.
        extra: the program's table, or join.py's where slices of K take the place of a batch;
        walk_down, walk_across: blocks of a span (`make_walk`), whose counts `rows` and `columns`
        then are.
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
                        column = block_column * BN + rank * BESIDE
                        place_a = start(a, row)
                        cursor = first_step(a, matrix * steps * BK * JOINED)
                        for _ in range(turns(block_row, block_column, m, n, steps)):
                            gate = shift(full, 8 * stage)
                            slot = shift(memory, stage * STAGE_BYTES)
                            gate_wait(shift(empty, 8 * stage), phase)
                            gate_expect(gate, expected)
                            for part in range(PARTS):
                                further = part * part_step
                                to = shift(slot, part * A_BYTES)
                                fill_a(to, a, gate, place_a, cursor, further, u * a_u, v * a_v)
                                to = shift(slot, B_START + part * B_BYTES + rank * SHARE_BYTES)
                                further += rank * BELOW
                                fill_b(to, b, gate, column, cursor, further, u * b_u, v * b_v)
                            cursor = after(a, cursor)
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
                        ahead(m - row, n - column, row, column, matrix, extra)
                        t = total_of(memory, full, empty, down * ROWS * A_ROW,
                                     across * COLUMNS * B_ROW, count, steps)  # fmt: skip
                        count += steps
                        t = finish(t, scale_a, scale_b)
                        matrix_c = shift(c, v * c_v + u * c_u)
                        leave_tile(t, c_box, matrix_c, room, partials, m, n, row, column, u, v,
                                   matrix, c_row, extra)  # fmt: skip
            if BOXED:
                team_drain()
            join(c, m, n, extra)
        if PEERS > 1:
            peers_sync()

    kernel.label = plan.label  # type: ignore[attr-defined]
    return kernel
