"""Few rows, long columns: B is read once, in the order of memory, and never packed.

    B with adjacent columns                        B with adjacent rows (a transposed matrix)

      pc  ############ nc ##########                  j..j+W   |||||||| -> transposed in registers
          KB rows at a time, each read               k        ||||||||    the tile stays in
          along memory; the partial rows of          |        ||||||||    registers over all of k
          the output rest at home                    v

Memory-bound by design: the cost is that of reading B. The chain of each element is the one of
the blocked kernel.
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.outer_product import make_outer_product
from gemm.microkernels.vocabulary import (
    outer_accumulate,
    prefetch,
    recast,
    shift,
    tile_load,
    tile_spill,
    tile_store,
    tile_transpose,
    tile_zeros,
)

from .batch import offset
from .blocked import make_store, share_start
from .epilogues.write_back import make_write_back

DEPTH = 8  # rows of B between two visits of the partial results
DEPTH_ALONE = 4  # the same for one row: fewer streams of memory, and its results are near
WIDTH = 16384  # columns of a block for one row
WIDTH_OF_MANY = 4096
AHEAD = 1024  # bytes before B is read: hardware prefetchers stop at a page's end
LINE = 64


def make_along_rows(shape: TileShape, write_back, depth: int):
    """`rows` rows of the output from a block of B with adjacent columns, kb steps of k, most often
    `depth`."""
    micro_kernel = make_outer_product(depth)
    rows, columns, size = shape.rows, shape.columns, shape.dtype.size

    def so_far(resting, hrs, left, first):
        if first:
            t = tile_zeros(shape)
        else:
            t = tile_load(shape, resting, hrs, rows, left)
        return t

    def along_rows(a, ars, acs, b, b_size, brs, home, hrs, c, rs, cs, n, kb, first, last, row,
                   column, batch, extra):  # fmt: skip
        # The write-back has a loop of its own: the many addresses of its columns would be moved
        # along in the other, too.
        if last:
            for j in range(0, n, columns):
                left = min(columns, n - j)
                t = so_far(shift(home, j * size), hrs, left, first)
                at = shift(b, j * b_size)
                if left == columns:
                    t = micro_kernel(t, a, ars, acs, at, brs, columns, kb)
                else:
                    t = micro_kernel(t, a, ars, acs, at, brs, left, kb)
                write_back(t, shift(c, j * cs), rs, cs, rows, left, row, column + j, batch, extra)
        else:
            for j in range(0, n, columns):
                left = min(columns, n - j)
                t = so_far(shift(home, j * size), hrs, left, first)
                at = shift(b, j * b_size)
                if left == columns and kb == depth:
                    for p in range(depth):
                        for line in range(0, columns * size, LINE):
                            prefetch(shift(at, p * brs + line + AHEAD))
                    t = micro_kernel(t, a, ars, acs, at, brs, columns, depth)
                else:
                    t = micro_kernel(t, a, ars, acs, at, brs, left, kb)
                tile_store(shift(home, j * size), hrs, t, rows, left)

    return along_rows


def make_across_rows(shape: TileShape, b: DType, write_back):
    """The same where B has adjacent rows: square blocks are transposed on the way."""
    rows, lanes, size = shape.rows, shape.lanes, shape.dtype.size
    tile = replace(shape, vectors=1)
    square = TileShape(lanes, 1, lanes, shape.dtype)
    b_size = b.size
    acc = shape.dtype

    def block(t, a, ars, acs, b, bcs, n, kb):
        for j in range(lanes):
            prefetch(shift(b, j * bcs + AHEAD))
        panel = tile_spill(tile_transpose(tile_load(square, b, bcs, n, kb)), acc)
        for p in range(lanes):
            if p < kb:
                at = shift(panel, p * lanes * size)
                t = outer_accumulate(t, shift(a, p * acs), ars, at, lanes)
        return t

    def across_rows(a, ars, acs, b, bcs, c, rs, cs, n, k, row, column, batch, extra):
        whole = k // lanes * lanes
        for j in range(0, n, lanes):
            left = min(lanes, n - j)
            at = shift(b, j * bcs)
            t = tile_zeros(tile)
            if left == lanes:
                for p in range(0, whole, lanes):
                    t = block(t, shift(a, p * acs), ars, acs, shift(at, p * b_size), bcs, lanes,
                              lanes)  # fmt: skip
            else:
                for p in range(0, whole, lanes):
                    t = block(t, shift(a, p * acs), ars, acs, shift(at, p * b_size), bcs, left,
                              lanes)  # fmt: skip
            if whole < k:
                t = block(t, shift(a, whole * acs), ars, acs, shift(at, whole * b_size), bcs, left,
                          k - whole)  # fmt: skip
            write_back(t, shift(c, j * cs), rs, cs, rows, left, row, column + j, batch, extra)

    return across_rows


def make_skinny(shape: TileShape, a: DType, b: DType, out: DType, program=None):
    """The blocked kernel's parameters; rows go `shape.rows` at a time, then one by one.

    Either bcs or brs is the size of an element of B. Team: over columns only. hrs: row step of
    the scratch home (m rows of `WIDTH` columns a worker), 0 where the home is `out`. program: the
    write-back's.
    """
    acc = shape.dtype
    many, single = shape, replace(shape, rows=1, vectors=2 * shape.vectors)
    b_size = b.size

    def leave(shape):
        # A tile of one vector has no pairs of columns: the planner sends none across.
        if program is None or (program.pairs and shape.vectors == 1):
            return make_store(shape, out)
        return make_write_back(shape, program)

    rows_down = make_along_rows(many, leave(many), DEPTH)
    row_down = make_along_rows(single, leave(single), DEPTH_ALONE)
    rows_across = make_across_rows(many, b, leave(replace(many, vectors=1)))
    row_across = make_across_rows(single, b, leave(replace(single, vectors=1)))
    high = shape.rows
    unit = single.columns
    wide = b.widened_to(acc)
    narrow = a.widened_to(acc)

    def skinny(
        pa, pb, pc, space, m, n, k, ars, acs, brs, bcs, rs, cs, hrs, mc, kc, nc, band,
        a_room, b_room, worker_room, batch, dims, team_b, team_m, team_n, extra, worker,
    ):  # fmt: skip
        left = share_start(n, unit, team_n, worker)
        columns = share_start(n, unit, team_n, worker + 1) - left
        scratch = recast(shift(space, worker * worker_room), acc)
        depth = DEPTH_ALONE if m < high else DEPTH
        most = WIDTH if m == 1 else WIDTH_OF_MANY
        blocks = max(1, (k + depth - 1) // depth)
        for index in range(batch):
            a = recast(shift(pa, offset(dims, index, 8)), narrow)
            b = recast(shift(pb, left * bcs + offset(dims, index, 16)), wide)
            c = shift(pc, left * cs + offset(dims, index, 24))
            if bcs == b_size:
                for jc in range(0, columns, most):
                    width = min(most, columns - jc)
                    for block in range(blocks):
                        p = block * depth
                        kb = min(depth, k - p)
                        i = 0
                        while i < m:
                            at_c = shift(c, i * rs + jc * cs)
                            if hrs == 0:
                                home = recast(at_c, acc)
                                home_rs = rs
                            else:
                                home = shift(scratch, i * hrs)
                                home_rs = hrs
                            at_a = shift(a, i * ars + p * acs)
                            at_b = shift(b, p * brs + jc * b_size)
                            first = block == 0
                            last = block == blocks - 1
                            if m - i >= high:
                                rows_down(at_a, ars, acs, at_b, b_size, brs, home, home_rs, at_c,
                                          rs, cs, width, kb, first, last, i, left + jc, index,
                                          extra)  # fmt: skip
                                i += high
                            else:
                                row_down(at_a, ars, acs, at_b, b_size, brs, home, home_rs, at_c,
                                         rs, cs, width, kb, first, last, i, left + jc, index,
                                         extra)  # fmt: skip
                                i += 1
            else:
                i = 0
                while i < m:
                    at_c = shift(c, i * rs)
                    at_a = shift(a, i * ars)
                    if m - i >= high:
                        rows_across(at_a, ars, acs, b, bcs, at_c, rs, cs, columns, k, i, left,
                                    index, extra)  # fmt: skip
                        i += high
                    else:
                        row_across(at_a, ars, acs, b, bcs, at_c, rs, cs, columns, k, i, left,
                                   index, extra)  # fmt: skip
                        i += 1

    return skinny


__all__ = ["DEPTH", "WIDTH", "make_skinny"]
