"""The lower triangle of a square matrix copied onto the upper one, transposed in registers.

    +---+---+---+
    | d | <-+ <-+     squares of `lanes` rows; worker w takes strips of rows w, w + team_m, ...
    +---+---+---+
    | x | d | <-+     d: element by element above the diagonal
    +---+---+---+
    | x | x | d |
    +---+---+---+

Values move as bits. Columns of the matrix are adjacent.
"""

from __future__ import annotations

from gemm.microkernels.dtypes import DType, TileShape, float32, float64, uint8, uint16
from gemm.microkernels.vocabulary import (
    copy,
    prefetch,
    recast,
    shift,
    tile_load,
    tile_store,
    tile_transpose,
)

BITS = {1: uint8, 2: uint16, 4: float32, 8: float64}


def square_of(nbytes: int, out: DType) -> TileShape:
    """The square that moves: as many rows as a vector of so many bytes has lanes."""
    wide = BITS[out.size].computed
    lanes = max(1, nbytes // wide.size)
    return TileShape(lanes, 1, lanes, wide)


def make_mirror(square: TileShape, bits: DType):
    """The blocked kernel's parameters, of which it takes c, m, rs, team_m and worker. bits: the
    type in BITS of the matrix's elements."""
    side, size = square.lanes, bits.size

    def diagonal(c, rs, n):
        for i in range(n):
            for j in range(i + 1, n):
                copy(shift(c, i * rs + j * size), shift(c, j * rs + i * size))

    def mirror(
        pa, pb, pc, space, m, n, k, ars, acs, brs, bcs, rs, cs, hrs, mc, kc, nc, band,
        a_room, b_room, worker_room, batch, dims, team_b, team_m, team_n, extra, worker,
    ):  # fmt: skip
        c = recast(pc, bits)
        for top in range(worker * side, m, team_m * side):
            high = min(side, m - top)
            diagonal(shift(c, top * rs + top * size), rs, high)
            for left in range(top + side, m, side):
                wide = min(side, m - left)
                twin = shift(c, left * rs + top * size)
                for i in range(side):  # of the next square
                    prefetch(shift(twin, (side + i) * rs))
                t = tile_transpose(tile_load(square, twin, rs, wide, side))
                tile_store(shift(c, top * rs + left * size), rs, t, side, wide)

    return mirror
