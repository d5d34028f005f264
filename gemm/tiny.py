"""Batches of tiny matrices of one size: a kernel made for m, n, k, whose addresses are constants.

Matrices lie without gaps inside. Rows go as many at a time as registers hold; columns as in
small.py: one vector, or two of which the second ends at the last column and overlaps the first.

      n = 9, 8 lanes      0 1 2 3 4 5 6 7 8
                          |----- v0 ----|
                            |----- v1 ----|

The only kernel that knows its sizes: their number is bounded by who asks for it (engine.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.vocabulary import outer_accumulate, shift, tile_store, tile_zeros

from .batch import offset, run_length, step

LARGEST = 16  # m, n and k up to which sizes are worth a kernel of their own


@dataclass(frozen=True)
class Sizes:
    """m x k by k x n."""

    m: int
    n: int
    k: int


def tile_of(sizes: Sizes, lanes: int, registers: int, acc: DType) -> TileShape | None:
    """Rows of one step and the vector that two of cover n columns; None where none does.

    lanes, registers: of the machine's vectors.
    """
    while lanes > sizes.n:
        lanes //= 2
    vectors = -(-sizes.n // lanes)
    if vectors > 2 or max(sizes.m, sizes.n, sizes.k) > LARGEST:
        return None
    most = (registers - 2 - vectors) // vectors
    strips = -(-sizes.m // most)
    return TileShape(-(-sizes.m // strips), vectors, lanes, acc)


def make_tiny(tile: TileShape, a: DType, b: DType, out: DType, sizes: Sizes):
    """The blocked kernel's parameters; steps within a matrix are constants. Team: the batch."""
    a_row, b_row, c_row = sizes.k * a.size, sizes.n * b.size, sizes.n * out.size
    lanes, K, columns = tile.lanes, sizes.k, sizes.n
    last = columns - lanes
    size, b_last, c_last = a.size, last * b.size, last * out.size

    def make_rows(rows: int):
        shape = TileShape(rows, 1, lanes, tile.dtype)

        def one(pa, pb, pc):
            t = tile_zeros(shape)
            for p in range(K):
                t = outer_accumulate(t, shift(pa, p * size), a_row, shift(pb, p * b_row), lanes)
            tile_store(pc, c_row, t, rows, lanes)

        def two(pa, pb, pc):
            t = tile_zeros(shape)
            u = tile_zeros(shape)
            for p in range(K):
                at = shift(pa, p * size)
                row = shift(pb, p * b_row)
                t = outer_accumulate(t, at, a_row, row, lanes)
                u = outer_accumulate(u, at, a_row, shift(row, b_last), lanes)
            tile_store(pc, c_row, t, rows, lanes)
            tile_store(shift(pc, c_last), c_row, u, rows, lanes)

        return two if tile.vectors == 2 else one

    high = tile.rows
    whole, left = divmod(sizes.m, high)
    strip = make_rows(high)
    rest = make_rows(left) if left else lambda pa, pb, pc: None
    beyond = whole * high

    def matrix(pa, pb, pc):
        for i in range(whole):
            strip(shift(pa, i * high * a_row), pb, shift(pc, i * high * c_row))
        rest(shift(pa, beyond * a_row), pb, shift(pc, beyond * c_row))

    def tiny(
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
                matrix(at_a, at_b, at_c)
                at_a = shift(at_a, step(dims, 8))
                at_b = shift(at_b, step(dims, 16))
                at_c = shift(at_c, step(dims, 24))
            index += run

    return tiny
