"""Packing 32-bit integers in halves, for the instruction that adds two products of 16 bits.

With x = high * 2^16 + low, low signed, a product modulo 2^32 is

    a b = a.low b.low + 2^16 (a.high b.low + a.low b.high)

so each k takes one unit (grouping.py) for the bracket, and two k share one for the products of
lows: three instructions for 2 k. The bracket's sum is shifted once for each tile. A panel holds

    k rows of units          A (high, low), B (low, high): one k each
    (k + 1) // 2 rows        (low of k, low of k + 1), zero beyond the last k

one and a half times the room of its values.
"""

from __future__ import annotations

from gemm.microkernels.arithmetic import add, bit_and, bit_or, fill, shift_left, shift_right
from gemm.microkernels.dtypes import DType, int32
from gemm.microkernels.vocabulary import load_lanes, recast, shift, store_lanes

from .packing import make_pack


def in_halves(source: DType, units) -> bool:
    """Whether values of `source` in panels of `units` are 32-bit integers in halves."""
    return units is not None and source.kind in "iu" and source.bits == 32


def rows_of(k):
    """Rows of a panel that holds k values in halves."""
    return k + (k + 1) // 2


def values_of(rows):
    """The k of which a panel has so many rows."""
    return 2 * rows // 3


def make_pack_halves(panel: int, lanes: int, source: DType, of_a: bool):
    """pack(dst, src, along, across, count, k), as of `make_pack`, for A or for B."""
    step = panel * 4
    pieces = (panel + lanes - 1) // lanes
    pack_values = make_pack(panel, lanes, source, int32)

    def low_of(x):
        return bit_and(x, fill(x, 0xFFFF))

    def bracket(x):
        rounded = add(x, fill(x, 0x8000))
        if of_a:
            return bit_or(low_of(shift_right(rounded, 16)), shift_left(x, 16))
        else:
            return bit_or(bit_and(rounded, fill(x, -0x10000)), low_of(x))

    def cut(dst, k):
        # The lows go behind the values, which then become brackets where they are.
        for p in range(0, k, 2):
            row = shift(dst, p * step)
            lows = shift(dst, (k + p // 2) * step)
            for piece in range(pieces):
                at = piece * lanes * 4
                n = min(lanes, panel - piece * lanes)
                x = low_of(load_lanes(shift(row, at), lanes, n))
                if p + 1 < k:
                    y = load_lanes(shift(row, step + at), lanes, n)
                    x = bit_or(x, shift_left(y, 16))
                store_lanes(shift(lows, at), x, n)
        for p in range(k):
            row = shift(dst, p * step)
            for piece in range(pieces):
                n = min(lanes, panel - piece * lanes)
                here = shift(row, piece * lanes * 4)
                store_lanes(here, bracket(load_lanes(here, lanes, n)), n)

    def pack(dst, src, along, across, count, k):
        dst = recast(dst, int32)
        for first in range(0, count, panel):
            left = min(panel, count - first)
            pack_values(dst, shift(src, first * along), along, across, left, k)
            cut(dst, k)
            dst = shift(dst, rows_of(k) * step)

    return pack
