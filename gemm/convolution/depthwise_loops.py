"""Depthwise convolution: each channel has one filter of its own, so nothing is shared but pixels.

    t[i] = fma(x[i], w, t[i])       i: pixels, one vector each; one tap after the other

Channels last: a vector is `lanes` channels of one pixel, a tile several pixels of an output row
that all read inside the image; at the border one pixel at a time, taps outside reading a zero row.

Channels first: a vector is `lanes` neighbouring outputs of one channel. A band of the channel is
laid out in scratch, zeros around it, in stride x stride planes, so that every tap of every output
is the same plane one constant distance on, across the ends of rows:

    x   0 a b c 0     stride 2:   even columns  0 b 0     output row  o o         flat: o o .
        0 d e f 0                 odd columns   a c .                 o o               o o .

The few columns that only carry a row over to the next are computed and dropped.
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.arithmetic import fill, multiply, subtract
from gemm.microkernels.dtypes import DType, TileShape, int32
from gemm.microkernels.vocabulary import (
    broadcast,
    gather_lanes,
    load,
    load_alternate,
    load_lanes,
    recast,
    rows_accumulate,
    shift,
    store_lanes,
    tile_load,
    tile_store,
    tile_zeros,
)

from ..blocked import make_store
from ..epilogues.write_back import make_write_back

ENTRY = 4  # bytes of an offset


def make_last(tile: TileShape, x_type: DType, out: DType, program):
    """The kernel for channels last; see `channels_last` below."""
    acc, lanes, tall = tile.dtype, tile.lanes, tile.rows
    size, x_size, out_size = acc.size, x_type.size, out.size
    source = x_type.widened_to(acc)
    shifted = acc.kind == "i"  # a zero point is taken off
    half, one = replace(tile, rows=(tall + 2) // 3), replace(tile, rows=1)
    few = half.rows
    hook = make_store(tile, out) if program is None else make_write_back(tile, program)
    plain = program is None
    row = lanes * size

    def make_over_taps(shape):
        def fresh(w, begin, sums, factor, n):
            if shifted:
                v = load_lanes(shift(w, sums), lanes, n)
                store_lanes(begin, multiply(v, fill(v, factor)), lanes)
                return tile_load(shape, begin, 0, 1, lanes)
            else:
                return tile_zeros(shape)

        def some(x, w, nothing, begin, factor, outer, inner, outer_taps, inner_taps, to_next,
                 w_step, n):  # fmt: skip
            t = fresh(w, begin, outer_taps * inner_taps * w_step, factor, n)
            for u in range(outer_taps):
                base = load(shift(outer, u * ENTRY))
                for v in range(inner_taps):
                    offset = load(shift(inner, v * ENTRY))
                    factors = load_lanes(w, lanes, n)
                    if base < 0 or offset < 0:
                        t = rows_accumulate(t, nothing, 0, factors, n)
                    else:
                        at = shift(x, (base + offset) * x_size)
                        t = rows_accumulate(t, at, to_next, factors, n)
                    w = shift(w, w_step)
            return t

        def all_lanes(x, w, nothing, begin, factor, outer, inner, outer_taps, inner_taps, to_next,
                      w_step):  # fmt: skip
            return some(x, w, nothing, begin, factor, outer, inner, outer_taps, inner_taps,
                        to_next, w_step, lanes)  # fmt: skip

        return some, all_lanes

    parts_tall, whole_tall = make_over_taps(tile)
    parts_half, whole_half = make_over_taps(half)
    parts_one, whole_one = make_over_taps(one)

    def make_strip(shape, parts, whole):
        rows = shape.rows

        def strip(x, w, c, nothing, begin, factor, rest, outer, inner, outer_taps, inner_taps,
                  to_next, start, stop, channels, rs, cs, pixel, image, extra):  # fmt: skip
            w_step = channels * size
            for first in range(start, stop, lanes):
                n = min(lanes, stop - first)
                at = shift(c, first * cs)
                here = shift(x, first * x_size)
                if n == lanes:
                    t = whole(here, shift(w, first * size), nothing, begin, factor, outer, inner,
                              outer_taps, inner_taps, to_next, w_step)  # fmt: skip
                else:
                    t = parts(here, shift(w, first * size), nothing, begin, factor, outer, inner,
                              outer_taps, inner_taps, to_next, w_step, n)  # fmt: skip
                if plain and cs == out_size:
                    tile_store(at, rs, t, rows, n)
                else:
                    tile_store(rest, row, t, rows, lanes)
                    hook(tile_load(tile, rest, row, rows, lanes), at, rs, cs, rows, n, pixel, first,
                         image, extra)  # fmt: skip

        return strip

    strip_tall = make_strip(tile, parts_tall, whole_tall)
    strip_half = make_strip(half, parts_half, whole_half)
    strip_one = make_strip(one, parts_one, whole_one)

    def inside(find, h, count, outer_taps):
        for u in range(outer_taps):
            if load(shift(find, (h * outer_taps + u) * ENTRY)) < 0:
                return 0
            if load(shift(find, ((h + count - 1) * outer_taps + u) * ENTRY)) < 0:
                return 0
        return 1

    def tile_height(find, h, most, outer_taps, to_below):
        # Output rows of one vertical tile. An epilogue is told where a row of pixels begins, so it
        # gets single ones.
        if plain and to_below != 0:
            if most >= tall and inside(find, h, tall, outer_taps) == 1:
                return tall
            if most >= few and inside(find, h, few, outer_taps) == 1:
                return few
        return 1

    def channels_last(
        x, w, c, find, space, extra, zero, channels, height, outer_taps, width, inner_taps, images,
        x_image, c_image, c_row, rs, cs, to_next, to_below, worker_room, team, worker,
    ):  # fmt: skip
        """One worker's share of the output rows of all images.

        x: the first pixel that the rule can name; zero: of its integers, and outside; w: (taps,
        channels) of the accumulator's type, then with integers their sums over the taps;
        find: the rule's arithmetic form (packing.py); c_row, rs, cs: bytes from one output row,
        pixel and channel to the next; to_next, to_below: bytes from the pixel that an output's tap
        reads to that of the next output and of the one below (0 where these do not follow evenly).
        """
        rest = recast(shift(space, worker * worker_room), acc)
        begin = shift(rest, tall * row)
        nothing = recast(shift(rest, (tall + 1) * row), source)
        tile_store(begin, 0, tile_zeros(one), 1, lanes)
        if shifted:
            v = load_lanes(begin, lanes, lanes)
            store_lanes(nothing, fill(v, zero), lanes)
        else:
            tile_store(shift(rest, (tall + 1) * row), 0, tile_zeros(one), 1, lanes)
        factor = -zero
        x = recast(x, source)
        find = recast(find, int32)
        inner = shift(find, height * outer_taps * ENTRY)
        bounds = shift(inner, 2 * width * inner_taps * ENTRY)
        low = 0
        high = width
        for v in range(inner_taps):
            low = max(low, load(shift(bounds, 2 * v * ENTRY)))
            high = min(high, load(shift(bounds, (2 * v + 1) * ENTRY)))
        low = min(low, width)
        # Columns whose taps are all inside go in horizontal tiles, as far as whole tiles reach.
        fit = max(0, high - low)
        end = low + fit // tall * tall + fit % tall // few * few
        first = worker * images * height // team
        last = (worker + 1) * images * height // team
        # A few channels at a time: rows of pixels stay near until the rows below have read them.
        for start in range(0, channels, 2 * lanes):
            stop = min(start + 2 * lanes, channels)
            for line in range(first, last):
                image = line // height
                h = line - image * height
                outer = shift(find, h * outer_taps * ENTRY)
                from_ = shift(x, image * x_image)
                column = low
                while column < end:
                    mine = shift(inner, column * inner_taps * ENTRY)
                    at = shift(c, image * c_image + h * c_row + column * rs)
                    pixel = h * width + column
                    if end - column >= tall:
                        strip_tall(from_, w, at, nothing, begin, factor, rest, outer, mine,
                        outer_taps,
                                   inner_taps, to_next, start, stop, channels, rs, cs, pixel, image,
                                   extra)  # fmt: skip
                        column += tall
                    else:
                        strip_half(from_, w, at, nothing, begin, factor, rest, outer, mine,
                        outer_taps,
                                   inner_taps, to_next, start, stop, channels, rs, cs, pixel, image,
                                   extra)  # fmt: skip
                        column += few
            # The other columns go in vertical tiles where rows are inside, else pixel by pixel.
            line = first
            while line < last:
                image = line // height
                h = line - image * height
                count = tile_height(find, h, min(height - h, last - line), outer_taps, to_below)
                outer = shift(find, h * outer_taps * ENTRY)
                from_ = shift(x, image * x_image)
                for column in range(width):
                    if column < low or column >= end:
                        mine = shift(inner, column * inner_taps * ENTRY)
                        at = shift(c, image * c_image + h * c_row + column * rs)
                        pixel = h * width + column
                        if count == tall:
                            strip_tall(from_, w, at, nothing, begin, factor, rest, outer, mine,
                                       outer_taps, inner_taps, to_below, start, stop, channels,
                                       c_row, cs, pixel,
                                       image, extra)  # fmt: skip
                        elif count == few:
                            strip_half(from_, w, at, nothing, begin, factor, rest, outer, mine,
                                       outer_taps, inner_taps, to_below, start, stop, channels,
                                       c_row, cs, pixel,
                                       image, extra)  # fmt: skip
                        else:
                            strip_one(from_, w, at, nothing, begin, factor, rest, outer, mine,
                                      outer_taps, inner_taps, to_next, start, stop, channels, rs,
                                      cs, pixel, image,
                                      extra)  # fmt: skip
                line += count

    return channels_last


def make_first(tile: TileShape, x_type: DType, out: DType, program):
    """The kernel for channels first; see `channels_first` below."""
    acc, lanes, rows = tile.dtype, tile.lanes, tile.rows
    size, x_size, out_size = acc.size, x_type.size, out.size
    source = x_type.widened_to(acc)
    one = replace(tile, rows=1)
    hook = make_store(one, out) if program is None else make_write_back(one, program)
    plain = program is None
    row = lanes * size
    shifted = acc.kind == "i"

    def centred(v, zero):
        if shifted:
            return subtract(v, fill(v, zero))
        else:
            return v

    def fill_row(plane, x, zero, pixel_step, stride, before, extent, columns, plane_size):
        # Every `stride`-th pixel of an input row goes to the same plane.
        for phase in range(stride):
            skip = max(0, (before - phase + stride - 1) // stride)
            start = skip * stride + phase - before
            n = min(columns - skip, (extent - start + stride - 1) // stride)
            to = shift(plane, phase * plane_size + skip * size)
            from_ = shift(x, start * pixel_step * x_size)
            step = stride * pixel_step
            if step == 1:
                for j in range(0, n, lanes):
                    v = load_lanes(shift(from_, j * x_size), lanes, n - j)
                    store_lanes(shift(to, j * size), centred(v, zero), n - j)
            elif step == 2:
                for j in range(0, n, lanes):
                    v = load_alternate(shift(from_, 2 * j * x_size), lanes, n - j)
                    store_lanes(shift(to, j * size), centred(v, zero), n - j)
            else:
                for j in range(0, n, lanes):
                    v = gather_lanes(shift(from_, j * step * x_size), step * x_size, lanes, n - j)
                    store_lanes(shift(to, j * size), centred(v, zero), n - j)

    def channels_first(
        x, w, c, find, space, extra, zero, channels, height, width, taps, images, in_height,
        in_width, before_h, before_w, stride_h, stride_w, x_image, x_channel, x_row, pixel_step,
        c_image, c_channel, c_row, rs, band, plane_rows, columns, flat_room, worker_room, team,
        worker,
    ):  # fmt: skip
        """One worker's share of the channels of all images.

        zero: of integer pixels; find: for each tap its distance in the planes, int32; in_*: extents
        of the input; before_*: zeros before it; x_row: bytes, pixel_step: elements; band: output
        rows at a time; plane_rows x columns: of a plane; flat_room: bytes of the planes with their
        slack.
        """
        planes = recast(shift(space, worker * worker_room), acc)
        flat = shift(planes, flat_room)
        x = recast(x, source)
        find = recast(find, int32)
        plane_size = plane_rows * columns * size
        tap_step = channels * size
        begin = worker * images * channels // team
        end = (worker + 1) * images * channels // team
        for top in range(0, height, band):
            lines = min(band, height - top)
            for at in range(0, flat_room, row):
                tile_store(shift(planes, at), 0, tile_zeros(one), 1, lanes)
            for index in range(begin, end):
                image = index // channels
                channel = index - image * channels
                from_ = shift(x, image * x_image + channel * x_channel)
                for r in range(plane_rows * stride_h):
                    h = top * stride_h + r - before_h
                    to = r % stride_h * stride_w * plane_size + r // stride_h * columns * size
                    if h >= 0 and h < in_height:
                        fill_row(shift(planes, to), shift(from_, h * x_row), zero, pixel_step,
                                 stride_w, before_w, in_width, columns, plane_size)  # fmt: skip
                    else:
                        # Another band's rows may lie here.
                        for phase in range(stride_w):
                            for j in range(0, columns, lanes):
                                there = to + phase * plane_size + j * size
                                tile_store(shift(planes, there), 0, tile_zeros(one), 1, columns - j)
                factors = shift(w, channel * size)
                for first in range(0, lines * columns, rows * lanes):
                    t = tile_zeros(tile)
                    here = shift(planes, first * size)
                    for tap in range(taps):
                        factor = broadcast(load(shift(factors, tap * tap_step)), lanes)
                        distance = load(shift(find, tap * ENTRY))
                        t = rows_accumulate(t, shift(here, distance * size), row, factor, lanes)
                    tile_store(shift(flat, first * size), row, t, rows, lanes)
                for line in range(lines):
                    at = shift(c, image * c_image + channel * c_channel + (top + line) * c_row)
                    result = shift(flat, line * columns * size)
                    for j in range(0, width, lanes):
                        n = min(lanes, width - j)
                        if plain and rs == out_size:
                            v = load_lanes(shift(result, j * size), lanes, lanes)
                            store_lanes(shift(at, j * rs), v, n)
                        else:
                            t = tile_load(one, shift(result, j * size), 0, 1, lanes)
                            hook(t, shift(at, j * rs), 0, rs, 1, n, channel,
                                 (top + line) * width + j, image, extra)  # fmt: skip

    return channels_first
