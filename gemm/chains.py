"""Inner products: 32 chains over k, added up in one fixed order on every machine.

    chain j takes k = j, j + 32, j + 64 ...          then   s[i] += s[i + 16], s[i + 8] ... s[i + 1]

The number of chains is part of the contract and not of the machine, so the bits depend neither
on the vector width nor on threads. Used where both operands are 1-D; everything else is the
single chain of the blocked kernel.
"""

from __future__ import annotations

from gemm.microkernels.arithmetic import add, fused, multiply
from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.vocabulary import (
    load,
    load_lanes,
    recast,
    shift,
    store,
    store_lanes,
    tile_spill,
    tile_zeros,
)

from .batch import offset, run_length, step

CHAINS = 32


def make_inner(shape: TileShape, a: DType, b: DType, out: DType):
    """The blocked kernel's parameters with m = n = 1: acs and brs are the steps along k.

    shape: one row of one vector of CHAINS lanes of the accumulator.
    """
    acc, size = shape.dtype, shape.dtype.size
    a_size, b_size = a.size, b.size
    wide_a, wide_b = a.widened_to(acc), b.widened_to(acc)

    def wrapped(u, v, t):
        return add(multiply(u, v), t)

    multiply_add = fused if acc.kind == "f" else wrapped

    def gathered(buffer, x, x_step, n, zero):
        # CHAINS values at `buffer`, those from n on zero.
        for j in range(n):
            store(shift(buffer, j * size), load(shift(x, j * x_step)))
        for j in range(n, CHAINS):
            store(shift(buffer, j * size), zero)
        return load_lanes(buffer, CHAINS, CHAINS)

    def one(x, x_step, y, y_step, c, k):
        left = tile_spill(tile_zeros(shape), acc)
        right = tile_spill(tile_zeros(shape), acc)
        t = load_lanes(left, CHAINS, CHAINS)
        zero = load(left)
        whole = k // CHAINS
        if x_step == a_size and y_step == b_size:
            for _ in range(whole):
                t = multiply_add(load_lanes(x, CHAINS, CHAINS), load_lanes(y, CHAINS, CHAINS), t)
                x = shift(x, CHAINS * a_size)
                y = shift(y, CHAINS * b_size)
        else:
            for _ in range(whole):
                u = gathered(left, x, x_step, CHAINS, zero)
                t = multiply_add(u, gathered(right, y, y_step, CHAINS, zero), t)
                x = shift(x, CHAINS * x_step)
                y = shift(y, CHAINS * y_step)
        rest = k - whole * CHAINS
        if rest > 0:
            u = gathered(left, x, x_step, rest, zero)
            t = multiply_add(u, gathered(right, y, y_step, rest, zero), t)
        store_lanes(left, t, CHAINS)
        half = CHAINS // 2
        while half > 0:
            for i in range(half):
                at = shift(left, i * size)
                store(at, load(at) + load(shift(at, half * size)))
            half = half // 2
        store(c, load(left))

    def inner(
        pa, pb, pc, space, m, n, k, ars, acs, brs, bcs, rs, cs, hrs, mc, kc, nc, band,
        a_room, b_room, worker_room, batch, dims, team_b, team_m, team_n, extra, worker,
    ):  # fmt: skip
        index = worker * batch // team_b
        stop = (worker + 1) * batch // team_b
        while index < stop:
            run = min(stop - index, run_length(dims, index))
            x = recast(shift(pa, offset(dims, index, 8)), wide_a)
            y = recast(shift(pb, offset(dims, index, 16)), wide_b)
            c = shift(pc, offset(dims, index, 24))
            for _ in range(run):
                one(x, acs, y, brs, c, k)
                x = shift(x, step(dims, 8))
                y = shift(y, step(dims, 16))
                c = shift(c, step(dims, 24))
            index += run

    return inner
