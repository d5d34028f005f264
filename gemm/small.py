"""Small products: the micro-kernel on the operands where they lie, nothing packed.

B and the output have adjacent columns, A any strides. Rows are taken `rows` at a time with the
largest tile that fits what is left, columns two vectors, then one, then part of one; the chain
of each element is the same as in the blocked kernel, so the bits are too.

    +-----------+-----+--+
    | r x 2v    | r x v  |.|     r in (6, 4, 2, 1), v lanes, the last part-filled
    +-----------+-----+--+
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.outer_product import make_outer_product
from gemm.microkernels.vocabulary import shift, tile_store, tile_zeros

from .batch import offset, run_length, step


def row_tiles(most: int) -> tuple[int, ...]:
    """The tile heights of a small kernel, largest first."""
    return tuple(r for r in (most, 4, 2, 1) if r <= most)


def make_strip(shape: TileShape, a: DType, b: DType, out: DType, unroll: int):
    """`rows` full rows of the output, all columns."""
    micro_kernel = make_outer_product(unroll)
    rows, lanes = shape.rows, shape.lanes
    two, one = replace(shape, vectors=2), replace(shape, vectors=1)
    pair = 2 * lanes
    b_size, c_size = b.size, out.size

    def strip(pa, ars, acs, pb, brs, pc, rs, n, k):
        j = 0
        while n - j >= pair:
            t = micro_kernel(tile_zeros(two), pa, ars, acs, shift(pb, j * b_size), brs, pair, k)
            tile_store(shift(pc, j * c_size), rs, t, rows, pair)
            j += pair
        if n - j >= lanes:
            t = micro_kernel(tile_zeros(one), pa, ars, acs, shift(pb, j * b_size), brs, lanes, k)
            tile_store(shift(pc, j * c_size), rs, t, rows, lanes)
            j += lanes
        if n - j > 0:
            left = n - j
            t = micro_kernel(tile_zeros(one), pa, ars, acs, shift(pb, j * b_size), brs, left, k)
            tile_store(shift(pc, j * c_size), rs, t, rows, left)

    return strip


def make_small(tile: TileShape, a: DType, b: DType, out: DType, unroll: int = 2):
    """small(a, b, c, m, n, k, ars, acs, brs, rs): c = a @ b; `tile.rows` rows at most."""
    heights = row_tiles(tile.rows)
    MR = heights[0]
    tall = make_strip(replace(tile, rows=MR), a, b, out, unroll)
    four = make_strip(replace(tile, rows=4), a, b, out, unroll)
    two = make_strip(replace(tile, rows=2), a, b, out, unroll)
    one = make_strip(replace(tile, rows=1), a, b, out, unroll)

    def small(pa, pb, pc, m, n, k, ars, acs, brs, rs):
        i = 0
        while m - i >= MR:
            tall(shift(pa, i * ars), ars, acs, pb, brs, shift(pc, i * rs), rs, n, k)
            i += MR
        if m - i >= 4:
            four(shift(pa, i * ars), ars, acs, pb, brs, shift(pc, i * rs), rs, n, k)
            i += 4
        if m - i >= 2:
            two(shift(pa, i * ars), ars, acs, pb, brs, shift(pc, i * rs), rs, n, k)
            i += 2
        if m - i >= 1:
            one(shift(pa, i * ars), ars, acs, pb, brs, shift(pc, i * rs), rs, n, k)

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
