"""Packing for instructions on whole blocks: units of 64 bytes, neighbours in k side by side.

    unit         k of one unit
    bfloat16x32  32 values of bfloat16
    int8x64      64 values of int8;  uint8x64: of uint8

    A, `whole`: rows of one k unit            B, in pieces of 32 bits (2 or 4 values of k)
    +-----------------------+                 +----+----+----+-- columns
    | row 0: 64 bytes of k  |                 | k0 | k0 | k0 |   piece 0
    | row 1                 |                 | k2 | k2 | k2 |   piece 1
    | ..                    |                 | .. 16 pieces |
    +-----------------------+ then the next   +----+----+----+-- then the next unit

Values move as bits; k tails are zero on both sides; a panel that reaches beyond the matrix
repeats its last real row.
"""

from __future__ import annotations

from gemm.microkernels.arithmetic import bit_or, fill, shift_left
from gemm.microkernels.dtypes import DType, TileShape, int32, int64, uint8, uint16
from gemm.microkernels.vocabulary import (
    load,
    load_lanes,
    prefetch,
    recast,
    shift,
    store,
    store_lanes,
    tile_load,
    tile_store,
    tile_transpose,
)

PIECES = 16
ROWS = 4  # pieces read side by side: as many streams as prefetchers follow


def make_pack_blocks(panel: int, lanes: int, source: DType, unit: DType, whole: bool):
    """pack(dst, src, along, across, count, k), as `make_pack`, into units of `unit`.

    whole: each unit in one piece (the rows of A), else in 16 pieces (the columns of B).
    """
    size = source.size
    bits = {1: uint8, 2: uint16}[size]
    scalar = bits.widened_to(int64)
    each = 4 // size  # values of k in a piece
    line = panel * 4  # bytes of one piece of every row
    step = PIECES * line
    square = TileShape(lanes, 1, lanes, int32)
    # From one of `count` to the next, from one piece to the next.
    row_step = 64 if whole else 4
    piece_step = 4 if whole else line

    def pair_of(src, across, n, have):
        # One piece for each lane, of which `have` >= 1 values of k exist.
        v = load_lanes(src, lanes, n)
        if have > 1:
            v = bit_or(v, shift_left(load_lanes(shift(src, across), lanes, n), 16))
        return v

    def quad_of(src, across, n, have):
        v = load_lanes(src, lanes, n)
        if have > 1:
            v = bit_or(v, shift_left(load_lanes(shift(src, across), lanes, n), 8))
        if have > 2:
            v = bit_or(v, shift_left(load_lanes(shift(src, 2 * across), lanes, n), 16))
        if have > 3:
            v = bit_or(v, shift_left(load_lanes(shift(src, 3 * across), lanes, n), 24))
        return v

    pieces_of = quad_of if each == 4 else pair_of

    def turn(dst):
        # 16 pieces of 16 rows, in place.
        t = tile_load(square, recast(dst, int32), 64, lanes, lanes)
        tile_store(recast(dst, int32), 64, tile_transpose(t), lanes, lanes)

    def place(dst, p, at):
        # Where piece p of rows at.. at + lanes goes before it is turned.
        if whole:
            return shift(dst, p // PIECES * step + at * 64 + p % PIECES * 64)
        else:
            return shift(dst, p * line + at * 4)

    def pack_rows(dst, src, across, panels, k):
        # Whole panels of whole pieces, a few rows of memory at a time to all of them.
        panel_step = (k * size + 63) // 64 * step
        pieces = k // each
        for top in range(0, pieces, ROWS):
            for q in range(panels):
                to = shift(dst, q * panel_step)
                from_ = shift(src, q * panel * size)
                for p in range(top, min(top + ROWS, pieces)):
                    row = shift(from_, p * each * across)
                    for at in range(0, panel, lanes):
                        v = pieces_of(shift(row, at * size), across, lanes, each)
                        store_lanes(place(to, p, at), v, lanes)

    def pack_adjacent(dst, src, across, left, k):
        # The values of one k are adjacent. Whole pieces of whole panels are there already.
        pieces = k // each
        if left < panel:
            for p in range(pieces):
                from_ = shift(src, p * each * across)
                for at in range(0, panel, lanes):
                    first = min(at, left - 1)
                    n = min(lanes, left - first)
                    v = pieces_of(shift(from_, first * size), across, n, each)
                    store_lanes(place(dst, p, at), v, lanes)
        have = k - pieces * each
        p = pieces
        if have > 0:
            for at in range(0, panel, lanes):
                first = min(at, left - 1)
                n = min(lanes, left - first)
                at_k = shift(src, first * size + p * each * across)
                store_lanes(place(dst, p, at), pieces_of(at_k, across, n, have), lanes)
            p += 1
        while p % PIECES != 0:
            for at in range(0, panel, lanes):
                v = load_lanes(recast(src, bits), lanes, 1)
                store_lanes(place(dst, p, at), fill(v, 0), lanes)
            p += 1
        if whole:
            for q in range(p // PIECES):
                for at in range(0, panel, lanes):
                    turn(shift(dst, q * step + at * 64))

    def pack_whole(dst, src, along, left, units):
        # Units that all exist, adjacent along k.
        if whole:
            for i in range(panel):
                from_ = recast(shift(src, min(i, left - 1) * along), int32)
                to = shift(dst, i * 64)
                for q in range(units):
                    prefetch(shift(from_, panel * along + q * 64))  # of the next panel
                    store_lanes(shift(to, q * step), load_lanes(shift(from_, q * 64), 16, 16), 16)
        else:
            for q in range(units):
                for at in range(0, panel, lanes):
                    first = min(at, left - 1)
                    from_ = recast(shift(src, first * along + q * 64), int32)
                    t = tile_transpose(tile_load(square, from_, along, left - first, lanes))
                    tile_store(shift(dst, q * step + at * 4), line, t, lanes, lanes)

    def pack_strided(dst, src, along, across, left, k, done):
        # Pieces from unit `done` on, value by value.
        src = recast(src, scalar)
        units = (k * size + 63) // 64
        for i in range(panel):
            from_ = shift(src, min(i, left - 1) * along)
            for p in range(done * PIECES, units * PIECES):
                total = 0
                for j in range(each):
                    at = p * each + j
                    if at < k:
                        total = total | (load(shift(from_, at * across)) << (8 * size * j))
                to = p // PIECES * step + i * row_step + p % PIECES * piece_step
                store(shift(dst, to), total)

    def pack(dst, src, along, across, count, k):
        dst = recast(dst, int32)
        src = recast(src, bits)
        units = (k * size + 63) // 64
        if along == size:
            pack_rows(dst, src, across, count // panel, k)
        for first in range(0, count, panel):
            left = min(panel, count - first)
            at = shift(src, first * along)
            if along == size:
                pack_adjacent(dst, at, across, left, k)
            elif across == size:
                complete = k * size // 64
                pack_whole(dst, at, along, left, complete)
                pack_strided(dst, at, along, across, left, k, complete)
            else:
                pack_strided(dst, at, along, across, left, k, 0)
            dst = shift(dst, units * step)

    return pack
