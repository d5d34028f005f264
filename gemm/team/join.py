"""Slices of K in one launch: each team leaves the product of its slice in memory, waits for all
others, and sums its share of the elements over the slices, in ascending order.

    team s:   slice s of A x slice s of B  ->  partial[s]     flag[s] raised
    all:      wait for every flag
    lane e:   partial[0][e] + partial[1][e] + ...  ->  c[e]

Every team waits for every other, so all of them must be on the machine together: the launch says
so, and the host makes as many teams as there are spans.
"""

from __future__ import annotations

from gemm.microkernels.arithmetic import add, table_integer, table_pointer
from gemm.microkernels.cooperative import (
    group,
    group_lane,
    group_lanes,
    quotient,
    team_await,
    team_raise,
    worker,
    workers,
)
from gemm.microkernels.dtypes import int32
from gemm.microkernels.vocabulary import load_lanes, recast, shift, store_lanes

from .plan import TeamPlan

# Slots of the table: result, its row step, flags, their value in this launch, slices.
SLOTS = 5
AHEAD = 8  # loads on their way at a time


def make_join(plan: TeamPlan):
    """join(partials, m, n, extra): c = the sum of `slices` matrices m x n that follow another."""
    ACC, OUT, GROUPS = plan.tile.dtype, plan.final, plan.groups
    SIZE, OUT_SIZE = ACC.size, plan.final.size

    def nothing(partials, m, n, extra):
        pass

    def join(partials, m, n, extra):
        out = table_pointer(extra, 0, OUT)
        row_step = table_integer(extra, 1)
        flags = table_pointer(extra, 2, int32)
        value = table_integer(extra, 3)
        slices = table_integer(extra, 4)
        mine = worker() * GROUPS + group()
        all_groups = workers() * GROUPS
        team_raise(shift(flags, 4 * mine), value)
        team_await(flags, all_groups, value)
        apart = m * n * SIZE
        first = mine * group_lanes() + group_lane()
        for e in range(first, m * n, all_groups * group_lanes()):
            i = quotient(e, n)
            p = recast(shift(partials, e * SIZE), ACC)
            total = load_lanes(p, 1, 1)
            whole = quotient(slices - 1, AHEAD)
            at = shift(p, apart)
            for _turn in range(whole):
                x0 = load_lanes(at, 1, 1)
                x1 = load_lanes(shift(at, apart), 1, 1)
                x2 = load_lanes(shift(at, 2 * apart), 1, 1)
                x3 = load_lanes(shift(at, 3 * apart), 1, 1)
                x4 = load_lanes(shift(at, 4 * apart), 1, 1)
                x5 = load_lanes(shift(at, 5 * apart), 1, 1)
                x6 = load_lanes(shift(at, 6 * apart), 1, 1)
                x7 = load_lanes(shift(at, 7 * apart), 1, 1)
                total = add(add(add(add(total, x0), x1), x2), x3)
                total = add(add(add(add(total, x4), x5), x6), x7)
                at = shift(at, 8 * apart)
            for _rest in range(whole * AHEAD + 1, slices):
                total = add(total, load_lanes(at, 1, 1))
                at = shift(at, apart)
            to = shift(out, i * row_step + (e - i * n) * OUT_SIZE)
            store_lanes(to, total, 1)

    return join if plan.joined else nothing
