"""The write-back of a team: its tile leaves by the copy engine, by rows, or through a program."""

from __future__ import annotations

from gemm.microkernels.cooperative import (
    team_send,
    team_write,
)
from gemm.microkernels.vocabulary import shift

from ..epilogues.team_write_back import make_team_write_back
from .plan import TeamPlan


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
