"""Packing complex operands so that the micro-kernel meets real factors only.

The chain of a complex product (docs/numerics.md) is two real steps for each k:

    (re, im) += ar * (br, bi)    then    (re, im) += ai * (-bi, br)

so a panel holds two rows for each k, and the loop over them is the one of a real product, with
no shuffle in it:

    panel of A, MR real values a row         panel of B, NR pairs a row
      k   | ar ar ar ..                        k   | br bi  br bi  br bi ..
          | ai ai ai ..                            | -bi br -bi br -bi br ..
      k+1 | ar ar ar ..                        k+1 | br bi ..

B's panels take twice the room of its values.
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.arithmetic import evens, interleave_low, negate, odds
from gemm.microkernels.dtypes import TileShape
from gemm.microkernels.vocabulary import (
    load_lanes,
    recast,
    shift,
    store_lanes,
    tile_load,
    tile_spill,
)

from .packing import make_pack


def make_pack_parts(shape: TileShape):
    """pack(dst, src, along, across, count, k), as of `make_pack`, for A of the tile `shape`."""
    dtype, part = shape.dtype, shape.dtype.real
    panel, lanes = shape.rows, 2 * shape.lanes
    size, step = part.size, panel * dtype.size
    pieces = (panel + lanes - 1) // lanes
    row = replace(shape, rows=1, vectors=2 * pieces)
    pack_values = make_pack(panel, shape.lanes, dtype, dtype)

    def split(dst, k):
        # In place: a row of pairs becomes a row of real and one of imaginary parts.
        for _ in range(k):
            pairs = recast(tile_spill(tile_load(row, dst, 0, 1, panel), dtype), part)
            for piece in range(pieces):
                at = piece * lanes
                low = load_lanes(shift(pairs, 2 * at * size), lanes, lanes)
                high = load_lanes(shift(pairs, (2 * at + lanes) * size), lanes, lanes)
                here = recast(shift(dst, at * size), part)
                store_lanes(here, evens(low, high), panel - at)
                store_lanes(shift(here, panel * size), odds(low, high), panel - at)
            dst = shift(dst, step)

    def pack(dst, src, along, across, count, k):
        dst = recast(dst, dtype)
        pack_values(dst, src, along, across, count, k)
        split(dst, (count + panel - 1) // panel * k)

    return pack


def make_pack_turned(shape: TileShape):
    """pack(dst, src, along, across, count, k), as of `make_pack`, for B of the tile `shape`."""
    dtype, part = shape.dtype, shape.dtype.real
    panel, lanes, vectors = shape.columns, 2 * shape.lanes, shape.vectors
    step = panel * dtype.size
    vector = lanes * part.size
    pack_values = make_pack(panel, shape.lanes, dtype, dtype)

    def spread(dst, k):
        # In place and from the last row on, since each row of values becomes two.
        for back in range(k):
            p = k - 1 - back
            row = recast(shift(dst, p * step), part)
            to = recast(shift(dst, 2 * p * step), part)
            for v in range(vectors):
                x = load_lanes(shift(row, v * vector), lanes, lanes)
                real, minus = evens(x, x), negate(odds(x, x))
                store_lanes(shift(to, v * vector), x, lanes)
                turned = shift(to, step + v * vector)
                store_lanes(turned, interleave_low(minus, real), lanes)

    def pack(dst, src, along, across, count, k):
        dst = recast(dst, dtype)
        for first in range(0, count, panel):
            left = min(panel, count - first)
            pack_values(dst, shift(src, first * along), along, across, left, k)
            spread(dst, k)
            dst = shift(dst, 2 * k * step)

    return pack
