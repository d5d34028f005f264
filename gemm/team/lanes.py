"""The product in which every lane fetches the next stage before it computes the current one."""

from __future__ import annotations

from gemm.microkernels.cooperative import (
    group,
    panel_begin,
    panel_end,
    panels_commit,
    panels_seen,
    panels_wait,
    quotient,
    team_accumulate,
    team_memory,
    team_settle,
    team_sync,
    team_zeros,
    worker,
    workers,
)
from gemm.microkernels.dtypes import uint8
from gemm.microkernels.vocabulary import shift

from .leave import make_leave
from .pixels import make_begin_pixels
from .plan import TeamPlan
from .walk import batch_offsets, make_locate, make_walk


def make_begin_matrix(stage):
    """How lanes start to move a panel of A: k `first` on, of a block that starts at `source`."""

    def begin(dst, source, dims, row, first, row_step, k_step, rows, depth):
        return panel_begin(stage, dst, shift(source, first * k_step), row_step, k_step, rows, depth)

    return begin


def make_team_kernel(plan: TeamPlan):
    """The product in which every lane fills and drains; operands are pointers with strides."""
    TILE, STAGES = plan.tile, plan.stages
    A, B = TILE.a, TILE.b
    BM, BN, BK = plan.block
    DOWN = plan.down
    WIDE = TILE.unit == "wide"
    STAGE_BYTES, A_BYTES = plan.stage_bytes, A.bytes
    ROOM_BYTES, PENDING = plan.room_bytes, plan.stages - 2
    STEPS = TILE.steps
    A_ROW, B_ROW, ROWS, COLUMNS = A.row_bytes, B.row_bytes, TILE.rows, TILE.columns
    PARTIALS = plan.partials_start
    PARTIAL_BYTES = plan.partial_bytes()
    locate = make_locate(plan.band)
    visits, place = make_walk(plan)
    leave_tile = make_leave(plan)
    begin_a = make_begin_pixels(A, plan.turned) if plan.image else make_begin_matrix(A)

    def kernel(a, b, c, extra, dims, m, n, k, ars, acs, brs, bcs, crs, rows, columns, spans,
               walk_down, walk_across):  # fmt: skip
        """c = a @ b over a batch; a (m x k), b (k x n), c (m x n) with adjacent columns.

        ?rs, ?cs: row and column steps in bytes; dims: the batch, see `batch_offsets`; rows,
        columns: extent of c in spans of walk_down x walk_across blocks (`make_walk`); spans: rows
        * columns * batch; extra: the program's table. A that is gathered has ars = 0, and its
        rule follows the batch in dims.
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
                    held_a = begin_a(slot, source_a, dims, row, s * BK, ars, acs, m - row, left)
                    to_b = shift(slot, A_BYTES)
                    held_b = panel_begin(
                        B, to_b, shift(source_b, s * BK * brs), bcs, brs, n - column, left
                    )
                    panel_end(A, slot, held_a)
                    panel_end(B, to_b, held_b)
                    if WIDE:
                        panels_seen()
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
                    left = k - first
                    held_a = begin_a(to_a, source_a, dims, row, first, ars, acs, m - row, left)
                    held_b = panel_begin(
                        B, to_b, shift(source_b, first * brs), bcs, brs, n - column, left
                    )
                    panels_commit()
                    slot = shift(memory, stage * STAGE_BYTES)
                    for part in range(STEPS):
                        t = team_accumulate(
                            TILE, t, shift(slot, a_at), shift(slot, b_at), part, True
                        )
                    panel_end(A, to_a, held_a)
                    panel_end(B, to_b, held_b)
                    if WIDE:
                        panels_seen()
                        t = team_settle(t, 0)
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
