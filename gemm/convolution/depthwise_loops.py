"""Depthwise convolution: each channel has one filter of its own, so nothing is shared but pixels.

    t[i] = fma(x[i], w, t[i])       one tap after the other

Channels last: a vector is `lanes` channels of one pixel, a tile some pixels of an output row, over
which a window of input pixels slides. Channels first: a vector is `lanes` neighbouring outputs of
one channel, a tile some output rows, over which a window of input rows slides. Either way an input
vector is loaded once for all the taps of one kernel row (channels first: of a kernel column) that
read it, and pixels outside the image are read from zeros in scratch.

Kernels of few taps without dilation are unrolled, `taps` and `steps` (rows, columns) being
constants. For all others these are 1 and the kernels loop over the taps.
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.arithmetic import fill, multiply
from gemm.microkernels.dtypes import DType, TileShape, int32
from gemm.microkernels.vocabulary import (
    broadcast,
    load,
    load_lanes,
    prefetch,
    recast,
    shift,
    store_lanes,
    tile_load,
    tile_store,
    tile_zeros,
)
from gemm.microkernels.windows import stencil_accumulate, window_accumulate

from ..blocked import make_store
from ..epilogues.write_back import make_write_back
from .specs import reach_of

ENTRY, LINE = 4, 64  # bytes of an offset and of a cache line
Pair = tuple[int, int]


def make_last(tile: TileShape, x_type: DType, out: DType, program, taps: Pair, steps: Pair):
    """The kernel for channels last; see `channels_last` below."""
    acc, lanes, tall = tile.dtype, tile.lanes, tile.rows
    size, x_size, out_size = acc.size, x_type.size, out.size
    source = x_type.widened_to(acc)
    shifted = acc.kind == "i"  # a zero point is taken off
    one = replace(tile, rows=1)
    hook = make_store(tile, out) if program is None else make_write_back(tile, program)
    plain = program is None
    row = lanes * size
    wide, step = taps[1], steps[1]
    unrolled = wide > 1
    reach = (tall - 1) * step + wide

    def make_over_taps(edge):
        def some(x, w, nothing, begin, factor, outer, inner, column, outer_taps, inner_parts,
                 x_step, x_row, fresh, w_step, n):  # fmt: skip
            if unrolled:
                inner_parts = 1
            t = tile_zeros(tile)
            if shifted:
                v = load_lanes(shift(w, outer_taps * inner_parts * wide * w_step), lanes, n)
                store_lanes(begin, multiply(v, fill(v, factor)), lanes)
                t = tile_load(tile, begin, 0, 1, lanes)
            # What the outputs below are the first to read.
            ahead = shift(x, load(shift(outer, (outer_taps - 1) * ENTRY)) * x_size)
            for _ in range(fresh):
                ahead = shift(ahead, x_row)
                for i in range(tall * step):
                    prefetch(shift(ahead, i * x_step))
            for u in range(outer_taps):
                base = load(shift(outer, u * ENTRY))
                for v in range(inner_parts):
                    part = shift(inner, 3 * v * ENTRY)
                    at = nothing
                    apart = 0
                    low = 0
                    high = reach
                    if base >= 0:
                        at = shift(x, (base + load(part)) * x_size)
                        apart = x_step
                        if edge:
                            low = load(shift(part, ENTRY)) - column
                            high = load(shift(part, 2 * ENTRY)) - column
                    t = window_accumulate(t, at, apart, low, high, nothing, w, w_step, wide, step,
                                          n)  # fmt: skip
                    w = shift(w, wide * w_step)
            return t

        def all_lanes(x, w, nothing, begin, factor, outer, inner, column, outer_taps, inner_parts,
                      x_step, x_row, fresh, w_step):  # fmt: skip
            return some(x, w, nothing, begin, factor, outer, inner, column, outer_taps,
                        inner_parts, x_step, x_row, fresh, w_step, lanes)  # fmt: skip

        return some, all_lanes

    def make_strip(edge):
        parts, whole = make_over_taps(edge)

        def strip(x, w, c, nothing, begin, factor, rest, outer, inner, column, outer_taps,
                  inner_parts, x_step, x_row, fresh, start, stop, channels, rs, cs, m, pixel, image,
                  extra):  # fmt: skip
            w_step = channels * size
            for first in range(start, stop, lanes):
                n = min(lanes, stop - first)
                at = shift(c, first * cs)
                here = shift(x, first * x_size)
                if n == lanes:
                    t = whole(here, shift(w, first * size), nothing, begin, factor,
                              outer, inner, column, outer_taps, inner_parts, x_step,
                              x_row, fresh, w_step)  # fmt: skip
                else:
                    t = parts(here, shift(w, first * size), nothing, begin, factor,
                              outer, inner, column, outer_taps, inner_parts, x_step,
                              x_row, fresh, w_step, n)  # fmt: skip
                if plain and cs == out_size:
                    tile_store(at, rs, t, m, n)
                else:
                    tile_store(rest, row, t, tall, lanes)
                    hook(tile_load(tile, rest, row, tall, lanes), at, rs, cs, m, n, pixel, first,
                         image, extra)  # fmt: skip

        return strip

    strip_inside, strip_edge = make_strip(False), make_strip(True)

    def channels_last(
        x, w, c, find, space, extra, zero, channels, height, outer_taps, width, inner_parts, low,
        high, unit, images, x_image, c_image, c_row, rs, cs, to_next, x_step, x_row, fresh, some,
        worker_room, team, worker,
    ):  # fmt: skip
        """One worker's share of the output rows of all images.

        x: the first pixel that the rule can name; zero: of its integers, and outside; w: (taps,
        channels) of the accumulator's type, then with integers their sums over the taps. find: an
        offset for each output row and outer tap, -1 outside; then for each part of a kernel row
        the offset of its first pixel from there and the places low .. high - 1 of the pixels in
        the image, counted `unit` an output and from output 0 on. low, high: outputs of a row all
        of whose taps are inside. c_row, rs, cs: bytes from one output row, pixel and channel to
        the next; to_next, x_step: from what an output reads to what the next does, and from one
        pixel of a window to the next; x_row: from one row of the image to the next; fresh: how
        many rows an output row is the first to read, 0 where they are near anyway; some: channels
        that are done together.
        """
        rest = recast(shift(space, worker * worker_room), acc)
        begin = shift(rest, tall * row)
        nothing = recast(shift(rest, (tall + 1) * row), source)
        if shifted:
            tile_store(begin, 0, tile_zeros(one), 1, lanes)
            v = load_lanes(begin, lanes, lanes)
            store_lanes(nothing, fill(v, zero), lanes)
        else:
            tile_store(shift(rest, (tall + 1) * row), 0, tile_zeros(one), 1, lanes)
        factor = -zero
        x = recast(x, source)
        find = recast(find, int32)
        inner = shift(find, height * outer_taps * ENTRY)
        first = worker * images * height // team
        last = (worker + 1) * images * height // team
        # So many channels that the rows of the kernel stay near.
        for start in range(0, channels, some):
            stop = min(start + some, channels)
            for line in range(first, last):
                image = line // height
                h = line - image * height
                outer = shift(find, h * outer_taps * ENTRY)
                for column in range(0, width, tall):
                    m = min(tall, width - column)
                    from_ = shift(x, image * x_image + column * to_next)
                    at = shift(c, image * c_image + h * c_row + column * rs)
                    pixel = h * width + column
                    if column >= low and column + tall <= high:
                        strip_inside(from_, w, at, nothing, begin, factor, rest, outer, inner, 0,
                                     outer_taps, inner_parts, x_step, x_row, fresh, start, stop,
                                     channels, rs, cs, m, pixel, image, extra)  # fmt: skip
                    else:
                        strip_edge(from_, w, at, nothing, begin, factor, rest, outer, inner, column
                                   * unit, outer_taps, inner_parts, x_step, x_row, fresh, start,
                                   stop, channels, rs, cs, m, pixel, image, extra)  # fmt: skip

    return channels_last


def make_first(tile: TileShape, x_type: DType, out: DType, program, taps: Pair, steps: Pair):
    """The kernel for channels first; see `channels_first` below."""
    acc, lanes, rows = tile.dtype, tile.lanes, tile.rows
    size, x_size, out_size = acc.size, x_type.size, out.size
    source = x_type.widened_to(acc)
    one = replace(tile, rows=1)
    hook = make_store(one, out) if program is None else make_write_back(one, program)
    plain = program is None
    row = lanes * size
    shifted = acc.kind == "i"
    (tall, wide), (down, along) = taps, steps
    unrolled = tall * wide > 1
    reach = reach_of(lanes, taps, steps)

    def fresh(w, begin, sums, factor):
        if shifted:
            v = broadcast(load(shift(w, sums)), lanes)
            store_lanes(begin, multiply(v, fill(v, factor)), lanes)
            return tile_load(tile, begin, 0, 1, lanes)
        else:
            return tile_zeros(tile)

    def channels_first(
        x, w, c, find, space, extra, zero, channels, height, width, outer_parts, inner_parts,
        images, in_width, unit, stride, x_image, x_channel, x_row, x_step, ahead, c_image,
        c_channel, c_row, rs, worker_room, team, worker,
    ):  # fmt: skip
        """One worker's share of the channels of all images.

        zero: of integer pixels, and outside; find, int32: for each part of the kernel's rows its
        first row and the places low .. high - 1 of the rows in the image, counted `unit` an output
        and from output 0 on, then for each part of its columns its first column; stride: rows from
        one output to the next; x_row, x_step: bytes from one row to the next, of the image and of
        a window; ahead: to the channel that is asked for meanwhile, 0 where it is near anyway; the
        others as above.
        """
        if unrolled:
            outer_parts = 1
            inner_parts = 1
        rest = recast(shift(space, worker * worker_room), acc)
        begin = shift(rest, rows * row)
        nothing = recast(shift(begin, row), source)
        tile_store(begin, 0, tile_zeros(one), 1, lanes)
        for at in range(0, reach, lanes):
            if shifted:
                v = load_lanes(begin, lanes, lanes)
                store_lanes(shift(nothing, at * x_size), fill(v, zero), lanes)
            else:
                tile_store(shift(begin, row + at * size), 0, tile_zeros(one), 1, lanes)
        factor = -zero
        x = recast(x, source)
        find = recast(find, int32)
        columns = shift(find, 3 * outer_parts * ENTRY)
        w_step = channels * size
        for index in range(worker * images * channels // team,
                           (worker + 1) * images * channels // team):  # fmt: skip
            image = index // channels
            channel = index - image * channels
            from_ = shift(x, image * x_image + channel * x_channel)
            to = shift(c, image * c_image + channel * c_channel)
            factors = shift(w, channel * size)
            for top in range(0, height, rows):
                m = min(rows, height - top)
                for column in range(0, width, lanes):
                    if ahead != 0:
                        later = shift(from_, top * stride * x_row + column * along * x_size + ahead)
                        for r in range(rows * down):
                            for line in range(along):
                                prefetch(shift(later, r * x_step + line * LINE))
                    t = fresh(factors, begin, outer_parts * inner_parts * tall * wide * w_step,
                              factor)  # fmt: skip
                    here = factors
                    for u in range(outer_parts):
                        part = shift(find, 3 * u * ENTRY)
                        low = load(shift(part, ENTRY)) - top * unit
                        high = load(shift(part, 2 * ENTRY)) - top * unit
                        line = shift(from_, (top * stride + load(part)) * x_row)
                        for v in range(inner_parts):
                            begins = column * along + load(shift(columns, v * ENTRY))
                            at = shift(line, begins * x_size)
                            if begins >= 0 and begins + reach <= in_width:
                                t = stencil_accumulate(t, at, x_step, low, high, 0, reach, nothing,
                                                       here, w_step, tall, wide, down,
                                                       along)  # fmt: skip
                            else:
                                t = stencil_accumulate(t, at, x_step, low, high, -begins,
                                                       in_width - begins, nothing, here, w_step,
                                                       tall, wide, down, along)  # fmt: skip
                            here = shift(here, tall * wide * w_step)
                    n = min(lanes, width - column)
                    at = shift(to, top * c_row + column * rs)
                    if plain and rs == out_size:
                        tile_store(at, c_row, t, m, n)
                    else:
                        tile_store(rest, row, t, rows, lanes)
                        for i in range(m):
                            hook(tile_load(one, shift(rest, i * row), 0, 1, lanes),
                                 shift(at, i * c_row), 0, rs, 1, n, channel,
                                 (top + i) * width + column, image, extra)  # fmt: skip

    return channels_first
