"""Packing: an operand becomes micro-panels that the micro-kernel reads in order.

    source, count x k                     packed, ceil(count / P) panels
    +--------------------+                +--------+--------+---
    | 00 01 02 03 ..     |                | 00 10 20 .. (P) | 01 11 21 .. | ...
    | 10 11 12 13 ..     |   P = 3  ->    +--------+--------+---
    | 20 21 22 23 ..     |                one k after the other, `P` values each
    | 30 ..              |
    +--------------------+

`count` runs along M for A and along N for B: the same routine serves both. Values are widened
to the compute type on the way; a panel that reaches beyond `count` repeats the last real row,
so every lane computes what a real one computes. Any strides in bytes: the two unit-stride cases
move whole vectors (the second through a transposed block), the rest goes element by element.
"""

from __future__ import annotations

import functools

from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.vocabulary import (
    copy,
    load,
    load_alternate,
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

ROWS = 8  # of memory read side by side: as many streams as prefetchers follow


@functools.cache
def make_pack(panel: int, lanes: int, source: DType, wide: DType):
    """pack(dst, src, along, across, count, k): `count` x `k` elements at src into panels at dst.

    along: bytes from one of `count` to the next; across: bytes from one k to the next. dst has
    room for ceil(count / panel) * panel * k values of type `wide` and `lanes` more.
    """
    size = source.size
    wide_size = wide.size
    step = panel * wide_size
    pieces = (panel + lanes - 1) // lanes
    square = TileShape(lanes, 1, lanes, wide)

    def pack_adjacent(dst, src, along, across, count, k):
        # A panel's values are adjacent in memory, or every other one. A few rows at a time go to
        # all panels, so that memory is read along its rows: whole vectors for whole panels, then
        # the last, cut one.
        whole = count // panel
        for top in range(0, k, ROWS):
            height = min(ROWS, k - top)
            row = shift(src, top * across)
            for p in range(whole):
                to = shift(dst, (p * k + top) * step)
                for i in range(height):
                    at = shift(row, i * across + p * panel * along)
                    copy_row(shift(to, i * step), at, along)
        left = count - whole * panel
        if left > 0:
            at = shift(src, whole * panel * along)
            pack_rest(shift(dst, whole * k * step), at, along, across, left, k)

    tail = panel % lanes

    def copy_vectors(dst, src):
        for piece in range(panel // lanes):
            v = load_lanes(shift(src, piece * lanes * size), lanes, lanes)
            store_lanes(shift(dst, piece * lanes * wide_size), v, lanes)

    def copy_all(dst, src):
        copy_vectors(dst, src)
        at = panel - tail
        v = load_lanes(shift(src, at * size), lanes, tail)
        store_lanes(shift(dst, at * wide_size), v, tail)

    def copy_alternate(dst, src):
        for piece in range(panel // lanes):
            v = load_alternate(shift(src, 2 * piece * lanes * size), lanes, lanes)
            store_lanes(shift(dst, piece * lanes * wide_size), v, lanes)

    def copy_either(dst, src, along):
        if along == size:
            copy_vectors(dst, src)
        else:
            copy_alternate(dst, src)

    # Whole vectors of every other value are two loads and a shuffle.
    pairs = not tail and source.kind != "c"
    whole_row = copy_all if tail else copy_vectors
    copy_row = copy_either if pairs else lambda dst, src, along: whole_row(dst, src)

    def pack_cut(dst, src, across, left, k):
        # A vector that overhangs the panel is overwritten by the next k; the last writes exactly.
        for p in range(k):
            room = panel
            if p + 1 < k:
                room = pieces * lanes
            for piece in range(pieces):
                at = piece * lanes
                n = min(lanes, left - at)
                if n > 0:
                    v = load_lanes(shift(src, at * size), lanes, n)
                else:
                    v = load_lanes(shift(src, (left - 1) * size), lanes, 1)
                store_lanes(shift(dst, at * wide_size), v, room - at)
            src = shift(src, across)
            dst = shift(dst, step)

    def pack_transposed(dst, src, along, left, k):
        # Adjacent along k: square blocks are transposed in registers. Pieces go backwards so
        # that the overhang of one is overwritten by the next.
        whole = (k - 1) // lanes
        for _ in range(whole):
            for i in range(panel):  # the next panel's rows
                prefetch(shift(src, (panel + i) * along))
            for back in range(pieces):
                at = (pieces - 1 - back) * lanes
                first = min(at, left - 1)
                t = tile_load(square, shift(src, first * along), along, left - first, lanes)
                tile_store(shift(dst, at * wide_size), step, tile_transpose(t), lanes, lanes)
            src = shift(src, lanes * size)
            dst = shift(dst, lanes * step)
        rest = k - whole * lanes
        for back in range(pieces):
            at = (pieces - 1 - back) * lanes
            first = min(at, left - 1)
            t = tile_load(square, shift(src, first * along), along, left - first, rest)
            t = tile_transpose(t)
            tile_store(shift(dst, at * wide_size), step, t, rest, min(lanes, panel - at))

    def widen_into(dst, src):
        store(dst, load(src))

    # A complex element moves whole; it is never widened.
    move = copy if source.kind == "c" else widen_into

    def pack_strided(dst, src, along, across, left, k):
        if left == panel:
            for _ in range(k):
                at = src
                for i in range(panel):
                    move(shift(dst, i * wide_size), at)
                    at = shift(at, along)
                src = shift(src, across)
                dst = shift(dst, step)
            return
        for _ in range(k):
            for i in range(panel):
                move(shift(dst, i * wide_size), shift(src, min(i, left - 1) * along))
            src = shift(src, across)
            dst = shift(dst, step)

    def cut_or_strided(dst, src, along, across, left, k):
        if along == size:
            pack_cut(dst, src, across, left, k)
        else:
            pack_strided(dst, src, along, across, left, k)

    def cut(dst, src, along, across, left, k):
        pack_cut(dst, src, across, left, k)

    pack_rest = cut_or_strided if pairs else cut
    double = 2 * size if pairs else size
    source = source.widened_to(wide)

    def pack(dst, src, along, across, count, k):
        dst = recast(dst, wide)
        src = recast(src, source)
        if k <= 0:
            return
        if along == size or along == double:
            pack_adjacent(dst, src, along, across, count, k)
        else:
            for first in range(0, count, panel):
                left = min(panel, count - first)
                at = shift(src, first * along)
                if across == size:
                    pack_transposed(dst, at, along, left, k)
                else:
                    pack_strided(dst, at, along, across, left, k)
                dst = shift(dst, k * step)

    return pack
