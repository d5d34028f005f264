"""Small products: the micro-kernel on the operands where they lie, nothing packed.

B and the output have adjacent columns, A any strides. Rows are taken with the tallest tile that
fits what is left. Columns go two vectors at a time, and the last vector ends at the last column:
it overlaps its neighbour and computes those elements once more, with the same bits. So no load or
store is masked. Fewer columns than a vector's lanes take a vector of half the width, and so on.

      0        v        2v   n-v    n
      |   v0   |   v1   |     |     |        r rows at a time, r in (8, 4, 2, 1)
      |        |        |  +--------+
      |        |        |  |   v2   |        v2 begins before v1 ends
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.outer_product import make_outer_product
from gemm.microkernels.vocabulary import outer_accumulate, shift, tile_store, tile_zeros

from .batch import offset, run_length, step


def heights_of(most: int, full: bool) -> tuple[int, ...]:
    """The tile heights of a small kernel, largest first; full: at the machine's whole width."""
    return tuple(r for r in ((most, 4, 2, 1) if full else (4, 1)) if r <= most)


def make_strip(shape: TileShape, a: DType, b: DType, out: DType, unroll: int):
    """`rows` full rows of the output, all of n columns, n at least the shape's one vector."""
    micro_kernel = make_outer_product(unroll)
    rows, width = shape.rows, shape.columns
    b_size, c_size = b.size, out.size

    def strip(pa, ars, acs, pb, brs, pc, rs, n, k):
        last = n - width
        for j in range(0, n, 2 * width):
            j0 = min(j, last)
            b0 = shift(pb, j0 * b_size)
            c0 = shift(pc, j0 * c_size)
            if n - j > width:
                j1 = min(j + width, last)
                b1 = shift(pb, j1 * b_size)
                t0 = tile_zeros(shape)
                t1 = tile_zeros(shape)
                a = pa
                for _ in range(k // unroll):
                    for u in range(unroll):
                        at = shift(a, u * acs)
                        t0 = outer_accumulate(t0, at, ars, shift(b0, u * brs), width)
                        t1 = outer_accumulate(t1, at, ars, shift(b1, u * brs), width)
                    a = shift(a, unroll * acs)
                    b0 = shift(b0, unroll * brs)
                    b1 = shift(b1, unroll * brs)
                for _ in range(k % unroll):
                    t0 = outer_accumulate(t0, a, ars, b0, width)
                    t1 = outer_accumulate(t1, a, ars, b1, width)
                    a = shift(a, acs)
                    b0 = shift(b0, brs)
                    b1 = shift(b1, brs)
                tile_store(c0, rs, t0, rows, width)
                tile_store(shift(pc, j1 * c_size), rs, t1, rows, width)
            else:
                t0 = micro_kernel(tile_zeros(shape), pa, ars, acs, b0, brs, width, k)
                tile_store(c0, rs, t0, rows, width)

    return strip


def make_rows(shape: TileShape, height: int, beyond, a: DType, b: DType, out: DType, unroll: int):
    """All rows in strips of `height`, then what is left by `beyond`, of the next height."""
    strip = make_strip(replace(shape, rows=height), a, b, out, unroll)

    def rows(pa, ars, acs, pb, brs, pc, rs, m, n, k):
        i = 0
        while m - i >= height:
            strip(shift(pa, i * ars), ars, acs, pb, brs, shift(pc, i * rs), rs, n, k)
            i += height
        if i < m:
            beyond(shift(pa, i * ars), ars, acs, pb, brs, shift(pc, i * rs), rs, m - i, n, k)

    return rows


def no_rows(pa, ars, acs, pb, brs, pc, rs, m, n, k):
    """What is left after strips of one row."""


def make_small(tile: TileShape, a: DType, b: DType, out: DType, unroll: int = 2):
    """small(a, b, c, m, n, k, ars, acs, brs, rs): c = a @ b; `tile.rows` rows at most."""

    def of_width(lanes: int):
        shape = replace(tile, vectors=1, lanes=lanes)
        rows = no_rows
        for height in reversed(heights_of(tile.rows, lanes == tile.lanes)):
            rows = make_rows(shape, height, rows, a, b, out, unroll)
        return rows

    def make_choice(lanes: int):
        # The widest vector that n columns fill.
        rows = of_width(lanes)
        if lanes == 1:
            return rows
        narrower = make_choice(lanes // 2)

        def choice(pa, ars, acs, pb, brs, pc, rs, m, n, k):
            if n >= lanes:
                rows(pa, ars, acs, pb, brs, pc, rs, m, n, k)
            else:
                narrower(pa, ars, acs, pb, brs, pc, rs, m, n, k)

        return choice

    choice = make_choice(tile.lanes)

    def small(pa, pb, pc, m, n, k, ars, acs, brs, rs):
        choice(pa, ars, acs, pb, brs, pc, rs, m, n, k)

    return small


def make_direct(tile: TileShape, a: DType, b: DType, out: DType):
    """A batch of small products, unpacked, with the parameters of the blocked kernel.

    B and the output have adjacent columns. Team: over the batch only.
    """
    small = make_small(tile, a, b, out)

    def direct(
        pa, pb, pc, space, m, n, k, ars, acs, brs, bcs, rs, cs, hrs, mc, kc, nc, band,
        a_room, b_room, worker_room, batch, dims, team_b, team_m, team_n, extra, worker,
    ):  # fmt: skip
        index = worker * batch // team_b
        stop = (worker + 1) * batch // team_b
        while index < stop:
            run = min(stop - index, run_length(dims, index))
            at_a = shift(pa, offset(dims, index, 8))
            at_b = shift(pb, offset(dims, index, 16))
            at_c = shift(pc, offset(dims, index, 24))
            for _ in range(run):
                small(at_a, at_b, at_c, m, n, k, ars, acs, brs, rs)
                at_a = shift(at_a, step(dims, 8))
                at_b = shift(at_b, step(dims, 16))
                at_c = shift(at_c, step(dims, 24))
            index += run

    return direct
