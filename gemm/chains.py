"""Inner products: 32 chains over k, added up in one fixed order on every machine.

    chain j takes k = j, j + 32, j + 64 ...          then   s[i] += s[i + 16], s[i + 8] ... s[i + 1]

The number of chains is part of the contract and not of the machine, so the bits depend neither
on the vector width nor on threads. Used where both operands are 1-D; everything else is the
single chain of the blocked kernel. A complex product is four real ones, each in that order, added
at the end: (re re - im im) + (re im + im re) i, with the other sign for a conjugated A.
"""

from __future__ import annotations

from gemm.microkernels.arithmetic import add, evens, fused, multiply, odds
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


def make_gathered(size: int):
    """gathered(buffer, x, x_step, n): the CHAINS values from x on, zero from n on, n <= CHAINS."""

    def gathered(buffer, x, x_step, n, zero):
        for j in range(n):
            store(shift(buffer, j * size), load(shift(x, j * x_step)))
        for j in range(n, CHAINS):
            store(shift(buffer, j * size), zero)
        return load_lanes(buffer, CHAINS, CHAINS)

    return gathered


def make_total(size: int):
    """total(buffer, t): the sum of the chains t in the fixed order."""

    def total(buffer, t):
        store_lanes(buffer, t, CHAINS)
        half = CHAINS // 2
        while half > 0:
            for i in range(half):
                at = shift(buffer, i * size)
                store(at, load(at) + load(shift(at, half * size)))
            half = half // 2
        return load(buffer)

    return total


def make_real(shape: TileShape, a: DType, b: DType):
    """one(x, x_step, y, y_step, c, k): c = sum of x[i] y[i], steps in bytes."""
    acc = shape.dtype
    a_size, b_size = a.size, b.size
    wide_a, wide_b = a.widened_to(acc), b.widened_to(acc)
    gathered, total = make_gathered(acc.size), make_total(acc.size)

    def wrapped(u, v, t):
        return add(multiply(u, v), t)

    multiply_add = fused if acc.kind == "f" else wrapped

    def one(x, x_step, y, y_step, c, k):
        x, y = recast(x, wide_a), recast(y, wide_b)
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
        store(c, total(left, t))

    return one


def make_complex(shape: TileShape, a: DType, out: DType, conjugate: bool):
    """`make_real` for complex values of a type; conjugate: x before."""
    part, size = shape.dtype, a.real.size
    wide, out_part, out_size = a.real.widened_to(part), out.real, out.real.size
    gathered, total = make_gathered(part.size), make_total(part.size)

    def one(x, x_step, y, y_step, c, k):
        x, y, c = recast(x, wide), recast(y, wide), recast(c, out_part)
        buffer = tile_spill(tile_zeros(shape), part)
        rr = load_lanes(buffer, CHAINS, CHAINS)
        ii, ri, ir = rr, rr, rr
        zero = load(buffer)
        whole = k // CHAINS
        if x_step == 2 * size and y_step == 2 * size:
            for _ in range(whole):
                u = load_lanes(x, CHAINS, CHAINS)
                v = load_lanes(shift(x, CHAINS * size), CHAINS, CHAINS)
                xr, xi = evens(u, v), odds(u, v)
                u = load_lanes(y, CHAINS, CHAINS)
                v = load_lanes(shift(y, CHAINS * size), CHAINS, CHAINS)
                yr, yi = evens(u, v), odds(u, v)
                rr, ii = fused(xr, yr, rr), fused(xi, yi, ii)
                ri, ir = fused(xr, yi, ri), fused(xi, yr, ir)
                x = shift(x, 2 * CHAINS * size)
                y = shift(y, 2 * CHAINS * size)
            done = whole * CHAINS
        else:
            done = 0
        while done < k:
            n = min(CHAINS, k - done)
            xr = gathered(buffer, x, x_step, n, zero)
            xi = gathered(buffer, shift(x, size), x_step, n, zero)
            yr = gathered(buffer, y, y_step, n, zero)
            yi = gathered(buffer, shift(y, size), y_step, n, zero)
            rr, ii = fused(xr, yr, rr), fused(xi, yi, ii)
            ri, ir = fused(xr, yi, ri), fused(xi, yr, ir)
            x = shift(x, n * x_step)
            y = shift(y, n * y_step)
            done += n
        first, second = total(buffer, rr), total(buffer, ii)
        third, fourth = total(buffer, ri), total(buffer, ir)
        if conjugate:
            store(c, first + second)
            store(shift(c, out_size), third - fourth)
        else:
            store(c, first - second)
            store(shift(c, out_size), third + fourth)

    return one


def make_inner(shape: TileShape, a: DType, b: DType, out: DType, conjugate: bool = False):
    """The blocked kernel's parameters with m = n = 1: acs and brs are the steps along k.

    shape: one row of one vector of CHAINS lanes of the accumulator's (real) type.
    """
    one = make_complex(shape, a, out, conjugate) if out.kind == "c" else make_real(shape, a, b)

    def inner(
        pa, pb, pc, space, m, n, k, ars, acs, brs, bcs, rs, cs, hrs, mc, kc, nc, band,
        a_room, b_room, worker_room, batch, dims, team_b, team_m, team_n, extra, worker,
    ):  # fmt: skip
        index = worker * batch // team_b
        stop = (worker + 1) * batch // team_b
        while index < stop:
            run = min(stop - index, run_length(dims, index))
            x = shift(pa, offset(dims, index, 8))
            y = shift(pb, offset(dims, index, 16))
            c = shift(pc, offset(dims, index, 24))
            for _ in range(run):
                one(x, acs, y, brs, c, k)
                x = shift(x, step(dims, 8))
                y = shift(y, step(dims, 16))
                c = shift(c, step(dims, 24))
            index += run

    return inner
