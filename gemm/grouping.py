"""Packing for dot-product instructions: neighbours in k share a 32-bit unit of the panel.

    unit        group   one unit, low bits first            instruction consumes, per lane
    int16x2     2       k, k+1                              2 products of int16, added to int32
    int8x4      4       k, k+1, k+2, k+3                    4 products of uint8 and int8
    uint8x4     4       the same, unsigned
    bfloat16x2  2       k+1, k   (k in the high half)       fma of k, then of k+1, in float32

A panel looks as in packing.py with units in place of values. k tails are zero units on both
sides. Signed values that an instruction wants unsigned are moved up by 128 (`flips`); the
blocked kernel takes the surplus, 128 times the column sums of B, off again, exactly.
"""

from __future__ import annotations

from gemm.microkernels.arithmetic import (
    bit_and,
    bit_or,
    bit_xor,
    fill,
    shift_left,
    shift_right,
    subtract,
)
from gemm.microkernels.dtypes import DType, TileShape, int32, int64, uint16
from gemm.microkernels.vocabulary import (
    load,
    load_lanes,
    recast,
    shift,
    store,
    store_lanes,
    tile_load,
    tile_store,
    tile_transpose,
)

FLIP = 0x80808080


def flips(source: DType, unit: DType) -> bool:
    """Whether packing moves signed values up by 128."""
    return source.name == "int8" and unit.name == "uint8x4"


def make_combine(unit: DType):
    """The unit of 2 or 4 vectors of int32 lanes, one for each k of the group."""
    if unit.name == "bfloat16x2":

        def combine(first, second):
            return bit_or(shift_left(first, 16), bit_and(second, fill(second, 0xFFFF)))
    else:

        def combine(first, second):
            return bit_or(bit_and(first, fill(first, 0xFFFF)), shift_left(second, 16))

    return combine


def make_pack_groups(panel: int, lanes: int, source: DType, unit: DType):
    """pack(dst, src, along, across, count, k), as `make_pack`, into units of `unit`."""
    group = unit.group
    # bfloat16 moves as bits; everything else is widened to int32 with its own sign.
    element = uint16 if source.name == "bfloat16" else source
    size = element.size
    step = panel * 4
    pieces = (panel + lanes - 1) // lanes
    square = TileShape(lanes, 1, lanes, int32)
    combine = make_combine(unit)
    flip = flips(source, unit)
    turned = unit.name == "bfloat16x2"
    quads = group == 4
    whole_units = size * group == 4
    signed = source.kind == "i"
    scalar_element = element.widened_to(int64)

    def flipped(v):
        if flip:
            return bit_xor(v, fill(v, -0x7F7F7F80))
        else:
            return v

    def joined(low, high):
        # Two vectors of bytes' pairs into bytes' quads.
        return bit_or(low, shift_left(high, 16))

    def bytes_pair(first, second):
        mask = fill(first, 255)
        return bit_or(bit_and(first, mask), shift_left(bit_and(second, mask), 8))

    def rows_of(src, across, n):
        # One unit for each lane, from `group` rows that all exist.
        if quads:
            low = bytes_pair(load_lanes(src, lanes, n), load_lanes(shift(src, across), lanes, n))
            high = bytes_pair(
                load_lanes(shift(src, 2 * across), lanes, n),
                load_lanes(shift(src, 3 * across), lanes, n),
            )
            return flipped(joined(low, high))
        else:
            return combine(load_lanes(src, lanes, n), load_lanes(shift(src, across), lanes, n))

    def pack_adjacent(dst, src, across, left, units):
        for p in range(units):
            room = panel
            if p + 1 < units:
                room = pieces * lanes
            for piece in range(pieces):
                at = piece * lanes
                first = min(at, left - 1)
                v = rows_of(shift(src, first * size), across, min(lanes, left - first))
                store_lanes(shift(dst, at * 4), v, room - at)
            src = shift(src, group * across)
            dst = shift(dst, step)

    def ordered(v):
        # A unit read whole from memory, as the instruction wants it.
        if turned:
            return bit_or(shift_left(v, 16), shift_right(v, 16))
        else:
            return flipped(v)

    def halves(v):
        # Two bytes in the low half of a lane become two int16.
        mask = fill(v, 255)
        low = bit_and(v, mask)
        high = bit_and(shift_right(v, 8), mask)
        if signed:
            low = subtract(bit_xor(low, fill(v, 128)), fill(v, 128))
            high = subtract(bit_xor(high, fill(v, 128)), fill(v, 128))
        return bit_or(bit_and(low, fill(v, 0xFFFF)), shift_left(high, 16))

    def block(dst, src, along, left, at):
        first = min(at, left - 1)
        from_ = shift(src, first * along)
        if whole_units:
            t = tile_transpose(tile_load(square, recast(from_, int32), along, left - first, lanes))
        else:
            t = tile_transpose(tile_load(square, recast(from_, uint16), along, left - first, lanes))
        tile_store(shift(dst, at * 4), step, t, lanes, lanes)

    finished = ordered if whole_units else halves

    def order_rows(dst, rows):
        # All but the overhang, which the next units overwrite.
        for p in range(rows):
            row = shift(dst, p * step)
            for piece in range(pieces):
                here = shift(row, piece * lanes * 4)
                room = min(lanes, panel - piece * lanes)
                store_lanes(here, finished(load_lanes(here, lanes, room)), room)

    def order_vectors(dst, rows):
        # The next row is read before its beginning is overwritten: whole vectors, and no load
        # waits for a store that it overlaps. The last store ends in a row that is still to come.
        v = load_lanes(dst, lanes, lanes)
        for _ in range(rows):
            following = load_lanes(shift(dst, step), lanes, lanes)
            store_lanes(dst, finished(v), lanes)
            v = following
            dst = shift(dst, step)

    put_in_order = order_vectors if pieces == 1 else order_rows

    def pack_transposed(dst, src, along, left, units):
        # All but the last block of units; returns how many were packed.
        whole = max(0, units - 1) // lanes
        for count in range(whole):
            for back in range(pieces):
                block(shift(dst, count * lanes * step), shift(src, count * lanes * group * size),
                      along, left, (pieces - 1 - back) * lanes)  # fmt: skip
        put_in_order(dst, whole * lanes)
        return whole * lanes

    def one_unit(dst, src, across, left_k):
        # Scalar: `left_k` of the group exist, the rest are zero.
        x = load(src)
        if quads:
            total = x & 255
            if left_k > 1:
                total = total | ((load(shift(src, across)) & 255) << 8)
            if left_k > 2:
                total = total | ((load(shift(src, 2 * across)) & 255) << 16)
            if left_k > 3:
                total = total | ((load(shift(src, 3 * across)) & 255) << 24)
            if flip:
                total = total ^ FLIP
        else:
            y = 0
            if left_k > 1:
                y = load(shift(src, across))
            if turned:
                total = (x << 16) | (y & 0xFFFF)
            else:
                total = (x & 0xFFFF) | (y << 16)
        store(dst, total)

    def pack_strided(dst, src, along, across, left, k, done):
        # Units from `done` on, element by element.
        units = (k + group - 1) // group
        for p in range(done, units):
            for i in range(panel):
                at = shift(src, min(i, left - 1) * along + p * group * across)
                one_unit(shift(dst, p * step + i * 4), recast(at, scalar_element), across,
                         k - p * group)  # fmt: skip

    def pack(dst, src, along, across, count, k):
        dst = recast(dst, int32)
        src = recast(src, element)
        units = (k + group - 1) // group
        for first in range(0, count, panel):
            left = min(panel, count - first)
            at = shift(src, first * along)
            if along == size:
                whole = k // group
                pack_adjacent(dst, at, across, left, whole)
                pack_strided(dst, at, along, across, left, k, whole)
            elif across == size:
                done = pack_transposed(dst, at, along, left, k // group)
                pack_strided(dst, at, along, across, left, k, done)
            else:
                pack_strided(dst, at, along, across, left, k, 0)
            dst = shift(dst, units * step)

    return pack
