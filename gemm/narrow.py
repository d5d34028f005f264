"""Few columns, many rows: A is read once, along its rows, and never packed.

            k                        n columns of C and of B: one or two vectors
      +-----------+   +---+
    m | ====####  |   | t |          ####: rows x one cache line of A, copied beside each other
      | ====####  |   |   |          so that their addresses are constants; each value is then
      +-----------+   +---+          spread and multiplied by a row of B

The tile stays in registers over all of k; B, as small as n columns are, comes from the caches
again for each strip of rows. Memory-bound by design: the cost is that of reading A. The chain of
each element is the one of the blocked kernel.
"""

from __future__ import annotations

from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.vocabulary import (
    outer_accumulate,
    prefetch,
    recast,
    shift,
    tile_load,
    tile_spill,
    tile_store,
    tile_zeros,
)

from .batch import offset
from .blocked import share_start

LINE = 64  # bytes of a row of A taken at a time
AHEAD = 1024  # bytes before a line is read: hardware prefetchers stop at a page's end


def make_strip(shape: TileShape, a: DType, whole: bool):
    """`m` of the tile's rows of the output; whole: n is the tile's columns."""
    acc, size, rows, columns = shape.dtype, shape.dtype.size, shape.rows, shape.columns
    depth = LINE // size
    lines = TileShape(rows, 1, depth, acc)
    step = depth * a.size

    def columns_of(n):
        return columns

    def some_of(n):
        return n

    extent = columns_of if whole else some_of

    def strip(pa, ars, pb, brs, pc, rs, m, n, k):
        n = extent(n)
        t = tile_zeros(shape)
        for _ in range(k // depth):
            for i in range(rows):
                prefetch(shift(pa, i * ars + AHEAD))
            panel = tile_spill(tile_load(lines, pa, ars, m, depth), acc)
            for p in range(depth):
                t = outer_accumulate(t, shift(panel, p * size), LINE, shift(pb, p * brs), n)
            pa = shift(pa, step)
            pb = shift(pb, depth * brs)
        rest = k % depth
        if rest > 0:
            panel = tile_spill(tile_load(lines, pa, ars, m, rest), acc)
            for p in range(rest):
                t = outer_accumulate(t, shift(panel, p * size), LINE, shift(pb, p * brs), n)
        tile_store(pc, rs, t, m, n)

    return strip


def make_narrow(shape: TileShape, a: DType, b: DType, out: DType):
    """The blocked kernel's parameters; n at most the tile's columns. Team: over rows only.

    A's rows are adjacent along k, those of B and of the output along n; real types.
    """
    acc, rows, columns = shape.dtype, shape.rows, shape.columns
    whole_strip = make_strip(shape, a, True)
    cut_strip = make_strip(shape, a, False)
    narrow_a, narrow_b = a.widened_to(acc), b.widened_to(acc)

    def narrow(
        pa, pb, pc, space, m, n, k, ars, acs, brs, bcs, rs, cs, hrs, mc, kc, nc, band,
        a_room, b_room, worker_room, batch, dims, team_b, team_m, team_n, extra, worker,
    ):  # fmt: skip
        top = share_start(m, rows, team_m, worker)
        end = share_start(m, rows, team_m, worker + 1)
        for index in range(batch):
            at_a = recast(shift(pa, offset(dims, index, 8)), narrow_a)
            at_b = recast(shift(pb, offset(dims, index, 16)), narrow_b)
            at_c = shift(pc, offset(dims, index, 24))
            for i in range(top, end, rows):
                high = min(rows, end - i)
                row_a = shift(at_a, i * ars)
                row_c = shift(at_c, i * rs)
                if n == columns:
                    whole_strip(row_a, ars, at_b, brs, row_c, rs, high, n, k)
                else:
                    cut_strip(row_a, ars, at_b, brs, row_c, rs, high, n, k)

    return narrow
