"""Filters in memory become panels: `width` of them side by side, one k after the other.

             k, in the order of memory            panel
           +------------------+                  +-- width --+
    filter | . . . .  run     |   transposed     | k 0       |
           | . . . .          |   in squares     | k 1       |
           +------------------+                  +-----------+

Filters that lie as (O, I, *kernel) have their taps innermost, panels their channels: value e of a
filter is tap e % taps of channel e // taps, and goes to k = tap * channels + channel.
"""

from __future__ import annotations

from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.vocabulary import (
    copy,
    load,
    load_lanes,
    shift,
    store,
    store_lanes,
    tile_load,
    tile_spill,
    tile_store,
    tile_transpose,
)


def make_pack_filters(width: int, lanes: int, source: DType, wide: DType):
    """The kernel for panels of `width` filters; see `pack_filters` below."""
    size, wide_size = source.size, wide.size
    step = width * wide_size
    square = TileShape(lanes, 1, lanes, wide)
    source = source.widened_to(wide)

    def widen_into(dst, src):
        store(dst, load(src))

    # A complex element moves whole; it is never widened.
    move = copy if source.kind == "c" else widen_into

    def pack_runs(dst, w, left, k, taps, channels, w_filter):
        for first in range(0, k, lanes):
            n = min(lanes, k - first)
            for at in range(0, width, lanes):
                some = min(lanes, width - at)
                begin = min(at, left - 1)
                from_ = shift(w, begin * w_filter + first * size)
                t = tile_transpose(tile_load(square, from_, w_filter, left - begin, n))
                to = shift(dst, at * wide_size)
                if taps == 1:
                    tile_store(shift(to, first * step), step, t, n, some)
                else:
                    rows = tile_spill(t, wide)
                    for i in range(n):
                        place = (first + i) % taps * channels + (first + i) // taps
                        x = load_lanes(shift(rows, i * lanes * wide_size), lanes, lanes)
                        store_lanes(shift(to, place * step), x, some)

    def pack_each(dst, w, left, taps, channels, w_filter, w_channel, w_tap):
        for tap in range(taps):
            for c in range(channels):
                to = shift(dst, (tap * channels + c) * step)
                from_ = shift(w, tap * w_tap + c * w_channel)
                for i in range(width):
                    move(shift(to, i * wide_size), shift(from_, min(i, left - 1) * w_filter))

    def pack_filters(w, dst, groups, count, channels, taps, w_group, w_filter, w_channel, w_tap,
                     team, worker):  # fmt: skip
        """One worker's share of the panels of all groups.

        w: (groups, count, channels, taps), its steps in bytes; dst: (groups, panels, taps *
        channels, width). Places beyond the last filter repeat it.
        """
        k = taps * channels
        wide_panels = (count + width - 1) // width
        for index in range(worker * groups * wide_panels // team,
                           (worker + 1) * groups * wide_panels // team):  # fmt: skip
            group = index // wide_panels
            first = (index - group * wide_panels) * width
            left = min(width, count - first)
            from_ = shift(w, group * w_group + first * w_filter)
            to = shift(dst, index * k * step)
            if w_channel == size and (w_tap == channels * size or taps == 1):
                pack_runs(to, from_, left, k, 1, k, w_filter)
            elif w_tap == size and w_channel == taps * size:
                pack_runs(to, from_, left, k, taps, channels, w_filter)
            else:
                pack_each(to, from_, left, taps, channels, w_filter, w_channel, w_tap)

    return pack_filters
