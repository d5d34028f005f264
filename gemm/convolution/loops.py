"""The loops of a convolution around the micro-kernel; K runs over (taps, channels).

    over groups
      over blocks of panels of pixels, none of two images   packed through the gather rule
        over panels of filters, which are packed already
          over the block's panels of pixels
            micro-kernel over all of K: one chain, so no partial result ever rests

Which operand is which follows from what is adjacent in memory (packing.py):

    rows      out[pixels, filters] = gathered[pixels, K] x filters[K, filters]     (channels)
    columns   out[filters, pixels] = filters[filters, K] x gathered[K, pixels]     (pixels)

Edges take smaller tiles: one vector where the columns fit one; of rows of pixels, half of them
where at most half are left. Outputs of the operand's own kind take a tile's rows, those of the
other kind its transposed squares, so that both store whole vectors.
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.arithmetic import fill, multiply
from gemm.microkernels.dtypes import DType, TileShape, int32, int64, uint8
from gemm.microkernels.outer_product import make_outer_product
from gemm.microkernels.vocabulary import (
    load,
    load_lanes,
    outer_accumulate,
    prefetch,
    recast,
    shift,
    store,
    store_lanes,
    tile_load,
    tile_store,
    tile_transpose,
    tile_zeros,
)

from ..blocked import make_store, share_start
from ..epilogues.write_back import make_write_back
from ..grouping import flips
from ..packing import make_pack
from .packing import CHUNK, ENTRY, make_pack_columns, make_pack_rows

LINE = 64  # bytes a prefetch brings at least
NOTE = 64  # bytes noted of a panel
AHEAD = 64  # k from those multiplied to those asked for
CHANNELS = 32  # of the columns form at a time: their pixels stay near for all taps and panels


def short_rows(tile: TileShape) -> int:
    """Rows of the smaller tile."""
    return (tile.rows + 1) // 2


def squares(tile: TileShape) -> TileShape:
    """The block in which a tile is transposed."""
    return replace(tile, rows=tile.lanes, vectors=1, block=1)


def make_streamed(unroll: int, columns: int, lines: int):
    """The outer product (gemm/microkernels/outer_product.py) of (t, a, row_step, a_step, b, b_step,
    k, ahead), which asks for `lines` lines `ahead` bytes behind each row of b: it comes from far.
    """

    def streamed(t, a, row_step, a_step, b, b_step, k, ahead):
        for _ in range(k // unroll):
            for u in range(unroll):
                at = shift(b, u * b_step)
                t = outer_accumulate(t, shift(a, u * a_step), row_step, at, columns)
                for line in range(lines):
                    prefetch(shift(at, ahead + line * LINE))
            a = shift(a, unroll * a_step)
            b = shift(b, unroll * b_step)
        for _ in range(k % unroll):
            t = outer_accumulate(t, a, row_step, b, columns)
            a = shift(a, a_step)
            b = shift(b, b_step)
        return t

    return streamed


def make_over_rows(tile: TileShape, panel: int, columns: int, units=None, unroll: int = 4):
    """over_k(a, b, k, begin, a_row, outer, across): the tile of a panel of pixels and of filters.

    k: values, or units of several. begin: with units, a row that every chain starts from. a_row:
    bytes from one pixel to the next; other than a panel's own where the pixels are read as they
    lie, `across` values from each place that `outer`, offsets by outer tap, names.
    """
    wide = tile.columns
    size = tile.dtype.size
    # Where units are read as they lie, values are bytes.
    group = 1 if units is None else units[0].group
    value = size // group
    b_step = columns * size
    beyond = AHEAD * b_step
    micro_kernel = make_streamed(unroll, columns, b_step // LINE)
    row = CHUNK * size
    chunk = panel * row

    def from_zero(begin):
        return tile_zeros(tile)

    def from_row(begin):
        return tile_load(tile, begin, 0, 1, wide)

    fresh = from_zero if units is None else from_row

    def over_k(a, b, k, begin, a_row, outer, across):
        t = fresh(begin)
        at = a
        onward = chunk
        left = 0
        while k > 0:
            depth = min(k, CHUNK)
            if across > 0:
                if left == 0:
                    at = shift(a, load(outer) * value)
                    outer = shift(outer, ENTRY)
                    left = across // group
                depth = min(left, CHUNK)
                left -= depth
                onward = row
                # The next panel's pixels come while this one's are multiplied.
                for i in range(panel):
                    ahead = shift(at, (panel + i) * a_row)
                    for line in range(0, row, LINE):
                        prefetch(shift(ahead, line))
            t = micro_kernel(t, at, a_row, size, b, b_step, depth, beyond)
            at = shift(at, onward)
            b = shift(b, depth * b_step)
            k -= depth
        return t

    return over_k


def make_over_blocks(tile: TileShape, panel: int, columns: int, units):
    """The same for whole blocks, whose units are 64 bytes of a pixel: packed one pixel after the
    other, or as they lie."""
    tall, wide = tile.rows, tile.columns
    unit = units[0].size
    b_step = columns * unit
    micro_kernel = make_outer_product(1)

    def over_k(a, b, k, begin, a_row, outer, across):
        t = tile_load(tile, begin, 0, tall, wide)
        if across > 0:
            depth = across // unit
            while k > 0:
                at = shift(a, load(outer))
                t = micro_kernel(t, at, a_row, unit, b, b_step, columns, depth)
                outer = shift(outer, ENTRY)
                b = shift(b, depth * b_step)
                k -= depth
        else:
            t = micro_kernel(t, a, unit, panel * unit, b, b_step, columns, k)
        return t

    return over_k


def make_turn(tile: TileShape, hook, plain: bool, size_out: int):
    """turn(rest, c, rs, cs, m, n, row, column, batch, extra): the tile at `rest`, transposed in
    squares, through the hook. m, n: rows and columns of the tile, which become columns and rows;
    rs, cs: bytes from one of its rows and columns to the next in the output. plain: nothing but a
    store. Behind the tile lies memory that a square may read."""
    square = squares(tile)
    size, lanes, vectors, tall = tile.dtype.size, tile.lanes, tile.vectors, tile.rows
    row = tile.columns * size
    last = tall - (tall - 1) // lanes * lanes  # rows of the last square

    def turn(rest, c, rs, cs, m, n, first_row, first_column, batch, extra):
        for v in range(vectors):
            high = min(lanes, n - v * lanes)
            if high > 0:
                for i in range(0, m, lanes):
                    wide = min(lanes, m - i)
                    at = shift(rest, i * row + v * lanes * size)
                    to = shift(c, i * rs + v * lanes * cs)
                    t = tile_transpose(tile_load(square, at, row, lanes, lanes))
                    if plain and high == lanes and wide == last and rs == size_out:
                        tile_store(to, cs, t, lanes, last)
                    else:
                        hook(t, to, cs, rs, high, wide, first_column + v * lanes, first_row + i,
                             batch, extra)  # fmt: skip

    return turn


def make_hook(tile: TileShape, out: DType, program, turned: bool):
    """(the write-back hook, what passes the tile at `rest` to it); see `make_turn`."""
    if program is not None and not turned:
        return make_write_back(tile, program, True)
    shape = squares(tile) if turned else tile
    hook = make_store(shape, out) if program is None else make_write_back(shape, program)
    row, rows, columns = tile.columns * tile.dtype.size, tile.rows, tile.columns

    def as_it_is(rest, c, rs, cs, m, n, first_row, first_column, batch, extra):
        t = tile_load(tile, rest, row, rows, columns)
        hook(t, c, rs, cs, m, n, first_row, first_column, batch, extra)

    return make_turn(tile, hook, program is None, out.size) if turned else as_it_is


def make_rows_tile(tile: TileShape, out: DType, program, turned: bool, units):
    """emit(rest, pixels, filters, m, n, k, begin, step, outer, across, c, by_pixel, by_filter,
    pixel, filter, batch, extra): m pixels x n filters of the output, at c.

    by_pixel, by_filter: bytes from one to the next; the rest as of `make_over_rows`.
    """
    MR, NR, lanes, size = tile.rows, tile.columns, tile.lanes, tile.dtype.size
    few = short_rows(tile)
    low, one = replace(tile, rows=few), replace(tile, vectors=1)
    make = make_over_blocks if tile.block > 1 else make_over_rows
    over_full, over_low = make(tile, MR, NR, units), make(low, MR, NR, units)
    # Whole blocks read whole panels of filters.
    narrow = tile.vectors > 1 and tile.block == 1
    over_one, over_least = over_full, over_low
    if narrow:
        over_one, over_least = (
            make(one, MR, NR, units),
            make(replace(low, vectors=1), MR, NR, units),
        )
    finish = make_hook(tile, out, program, turned)
    straight = program is None and not turned
    row, out_size = NR * size, out.size

    def into_rest(rest, a, b, m, n, k, begin, a_row, outer, across):
        # A wide tile whose filters fit one vector, or a tall one half of whose rows are unused.
        if n > lanes or not narrow:
            if m > few:
                tile_store(rest, row, over_full(a, b, k, begin, a_row, outer, across), MR, NR)
            else:
                tile_store(rest, row, over_low(a, b, k, begin, a_row, outer, across), few, NR)
        elif m > few:
            tile_store(rest, row, over_one(a, b, k, begin, a_row, outer, across), MR, lanes)
        else:
            tile_store(rest, row, over_least(a, b, k, begin, a_row, outer, across), few, lanes)

    def emit(rest, a, b, m, n, k, begin, a_row, outer, across, c, by_pixel, by_filter, pixel,
             filter, batch, extra):  # fmt: skip
        if straight and m == MR and n == NR and by_filter == out_size:
            for i in range(MR):
                for line in range(0, row, LINE):
                    prefetch(shift(c, i * by_pixel + line))
            tile_store(c, by_pixel, over_full(a, b, k, begin, a_row, outer, across), MR, NR)
        else:
            into_rest(rest, a, b, m, n, k, begin, a_row, outer, across)
            finish(rest, c, by_pixel, by_filter, m, n, pixel, filter, batch, extra)

    return emit


def make_columns_tile(tile: TileShape, out: DType, program, turned: bool):
    """The same for the columns form: a tile's rows are filters. step: bytes from one k to the
    next of the pixels, packed or as they lie; across: above 0 where the next panel, which lies
    beside, should be asked for. turned: the hook sees filters as rows."""
    MR, NR, lanes, size = tile.rows, tile.columns, tile.lanes, tile.dtype.size
    one = replace(tile, vectors=1)
    micro_kernel = make_outer_product(4)
    finish = make_hook(tile, out, program, not turned)
    straight = program is None and turned
    narrow = tile.vectors > 1
    a_step, row = MR * size, NR * size

    def emit(rest, b, a, n, m, k, begin, b_step, outer, across, c, by_pixel, by_filter, pixel,
             filter, batch, extra):  # fmt: skip
        if across > 0:
            for p in range(k):
                for line in range(0, row, LINE):
                    prefetch(shift(b, p * b_step + row + line))
        if n > lanes or not narrow:
            if straight:
                for i in range(MR):
                    for line in range(0, row, LINE):
                        prefetch(shift(c, i * by_filter + line))
            t = micro_kernel(tile_zeros(tile), a, size, a_step, b, b_step, NR, k)
            if straight:
                tile_store(c, by_filter, t, m, n)
            else:
                tile_store(rest, row, t, MR, NR)
        else:
            u = micro_kernel(tile_zeros(one), a, size, a_step, b, b_step, lanes, k)
            if straight:
                tile_store(c, by_filter, u, m, n)
            else:
                tile_store(rest, row, u, MR, lanes)
        if not straight:
            finish(rest, c, by_filter, by_pixel, m, n, filter, pixel, batch, extra)

    return emit


def no_pack(dst, src, along, across, count, k):
    """The rows form has no runs of adjacent pixels."""


def make_convolution(
    tile: TileShape,
    x_type: DType,
    out: DType,
    form: str,
    by_table: bool,
    turned: bool,
    program,
    units: tuple[DType, DType] | None = None,
):
    """The whole convolution for one worker of a team; see the parameters of `convolution` below.

    form: of the panels, 'rows' or 'columns' (packing.py); by_table: how `find` is read. units:
    element types of the panels for a dot-product instruction, None for values.
    """
    acc, size, lanes = tile.dtype, tile.dtype.size, tile.lanes
    rows = form == "rows"
    # Pixels and filters of a panel, and the fewest pixels that are worth a whole one.
    P, F = (tile.rows, tile.columns) if rows else (tile.columns, tile.rows)
    few = short_rows(tile) if rows else lanes
    if units is not None:
        # Bytes of a pixel in a chunk: of all that one instruction takes at once.
        chunk = units[0].size if tile.block > 1 else CHUNK * size
        pack = make_pack_rows(P, lanes, uint8, acc, by_table, flips(x_type, units[0]), chunk)
        source = uint8
    else:
        make_packing = make_pack_rows if rows else make_pack_columns
        pack = make_packing(P, lanes, x_type, acc, by_table)
        source = x_type.widened_to(acc)
    pack_adjacent = no_pack if rows else make_pack(P, lanes, x_type, acc)
    panel_a, panel_b = units or (acc, acc)
    own_row = CHUNK * size if rows else P * size
    if tile.block > 1:
        own_row = panel_a.size
    x_size = source.size
    group = 1 if units is None else units[0].group
    row, high_rows = tile.columns * size, tile.rows
    if rows:
        emit = make_rows_tile(tile, out, program, turned, units)
    else:
        emit = make_columns_tile(tile, out, program, turned)
    # Channels of the rows form are copied in one go.
    at_once = 1 << 40 if rows else CHANNELS

    def no_start(begin, panel, factor):
        return panel

    def start(begin, panel, factor):
        # A panel of units begins with the sums of its filters; `factor` is their share of a result.
        for v in range(F // lanes):
            sums = load_lanes(shift(panel, v * lanes * size), lanes, lanes)
            store_lanes(shift(begin, v * lanes * size), multiply(sums, fill(sums, factor)), lanes)
        return shift(panel, row)

    begin_panel = no_start if units is None else start

    def place(find, pixel, m, height, outer_taps, inner_taps, width, low, high):
        # Where the tap of the lowest inner index reads its first pixel, if a panel's pixels can be
        # read as they lie: a whole panel inside one output row and inside the image, or -1.
        if m < P or low > high:
            return -1
        if rows:
            h = pixel // width
            w = pixel - h * width
            if w < low or (w + P > high and high <= width):
                return -1
            for u in range(outer_taps):
                if load(shift(find, (h * outer_taps + u) * ENTRY)) < 0:
                    return -1
            return load(shift(find, (height * outer_taps + w * inner_taps) * ENTRY))
        else:
            return pixel

    def pack_all(packed, x, start, stop, each, span, x_image, channels, channel_step, room):
        # Panels start .. stop - 1 of adjacent pixels that each read one, channel by channel.
        q = start
        while q < stop:
            image = q // each
            first = (q - image * each) * P
            end = min(stop, (image + 1) * each)
            pack_adjacent(shift(packed, (q - start) * room), shift(x, image * x_image
                          + first * x_size), x_size, channel_step * x_size,
                          min((end - q) * P, span - first), channels)  # fmt: skip
            q = end

    def convolution(
        x, w, c, find, space, extra, begin, pixels, segments, factor, padding, low, high, n,
        channels, height, outer_taps, width, inner_taps, channel_step, pixel_step, c_segment,
        images, groups, x_image, x_group, w_group, w_panel, c_image, c_group, rs, cs, block,
        panel_room, notes_room, worker_room, team_b, team_m, team_n, worker,
    ):  # fmt: skip
        """One worker's share of the pixels begin .. begin + pixels - 1 of every image.

        x: first pixel of channel 0 that the rule can name; w: panels of filters, w_panel bytes
        each; find: the rule, for these pixels; n, channels: of one group; height, width: output
        rows (all outer axes) and columns; *_step: elements, the others bytes (rs, cs: from one
        pixel and one filter to the next); segments: equal parts of an image, c_segment bytes apart
        in `c`, no panel being of two; block: panels packed together; space: scratch, worker_room
        bytes a worker: a tile, a row, a line, notes on the block's panels (notes_room bytes), then
        panels of panel_room bytes. factor, padding: with units, what the sums of a filter are
        multiplied by to start its chains, and four bytes that stand outside the image. The team is
        team_b (groups) x team_m (panels) x team_n (filters).

        low, high: of the rows form, output columns whose pixels may be read as they lie (none
        where low > high; high > width: also across the ends of rows). Of the columns form, which
        reads each pixel once and finds them adjacent where high > 0: whole panels are read as they
        lie where low is 0 and packed together where it is above high. high == 0: by the rule.
        """
        rest = recast(shift(space, worker * worker_room), acc)
        begin_row = shift(rest, high_rows * row)
        outside = shift(begin_row, row)
        for i in range(16):
            store(recast(shift(outside, i * 4), int32), 0)
        store(recast(outside, int32), padding)
        notes = shift(outside, 64)
        packed = recast(shift(notes, notes_room), panel_a)
        x = recast(x, source)
        find = recast(find, int32)
        across = inner_taps * channels
        k = (outer_taps * across + group - 1) // group
        once = at_once
        if high > 0:
            once = channels
        span = pixels // segments
        apart = (span + P - 1) // P
        each = segments * apart
        share_b = worker // (team_m * team_n)
        share_m = worker // team_n % team_m
        top = share_m * images * each // team_m
        bottom = (share_m + 1) * images * each // team_m
        left = share_start(n, F, team_n, worker % team_n)
        right = share_start(n, F, team_n, worker % team_n + 1)
        for index in range(share_b * groups // team_b, (share_b + 1) * groups // team_b):
            for start in range(top, bottom, block):
                stop = min(start + block, bottom)
                ready = 0
                if not rows and high > 0 and low > high:
                    pack_all(packed, shift(x, index * x_group), start, stop, each, span, x_image,
                             channels, channel_step, panel_room)  # fmt: skip
                    ready = 1
                for begin_channel in range(0, channels, once):
                    some = min(once, channels - begin_channel)
                    for q in range(start, stop):
                        image = q // each
                        segment = (q - image * each) // apart
                        inside = (q - image * each - segment * apart) * P
                        m = min(P, span - inside)
                        pixel = segment * span + inside
                        from_ = shift(x, image * x_image + index * x_group)
                        note = recast(shift(notes, (q - start) * NOTE), int64)
                        at = place(find, pixel, m, height, outer_taps, inner_taps, width, low, high)
                        store(note, image * c_image + segment * c_segment + inside * rs)
                        store(shift(note, 8), m)
                        store(shift(note, 16), begin + pixel)
                        store(shift(note, 24), index * images + image)
                        store(shift(note, 32), at)
                        store(shift(note, 40), pixel // width * outer_taps * ENTRY)
                        store(shift(note, 48), image * x_image + index * x_group)
                        if at < 0 and ready == 0:
                            used = P
                            if m <= few:
                                used = few
                            to = shift(packed, (q - start) * panel_room)
                            if not rows and high > 0:
                                pack_adjacent(to, shift(from_, pixel * x_size), x_size,
                                              channel_step * x_size, m, channels)  # fmt: skip
                            else:
                                pack(to, from_, find, pixel, m, used, height, outer_taps,
                                     inner_taps, channels, width, channel_step, pixel_step,
                                     begin_channel, some, outside)  # fmt: skip
                for jr in range(left, right, F):
                    first = recast(shift(w, index * w_group + jr // F * w_panel), acc)
                    panel = recast(begin_panel(begin_row, first, factor), panel_b)
                    count = min(F, n - jr)
                    into = shift(c, index * c_group + jr * cs)
                    for q in range(start, stop):
                        note = recast(shift(notes, (q - start) * NOTE), int64)
                        m = load(shift(note, 8))
                        at = load(shift(note, 32))
                        outer = shift(find, load(shift(note, 40)))
                        a = shift(packed, (q - start) * panel_room)
                        step = own_row
                        depth = 0
                        if at >= 0:
                            a = recast(shift(x, load(shift(note, 48)) + at * x_size), panel_a)
                            if rows:
                                step = pixel_step * x_size
                                depth = across
                            else:
                                step = channel_step * x_size
                                if jr == left:
                                    depth = 1
                        emit(rest, a, panel, m, count, k, begin_row, step, outer, depth,
                             shift(into, load(note)), rs, cs, load(shift(note, 16)), jr,
                             load(shift(note, 24)), extra)  # fmt: skip

    return convolution
