"""The loops of a convolution around the micro-kernel: pixels are M, filters N, (taps, channels) K.

    over groups
      over blocks of panels (MR pixels each, never of two images)   packed through the gather rule
        over panels of NR filters, which are packed already
          over the block's panels of pixels
            micro-kernel over all of K: one chain, so no partial result ever rests

Edges take smaller tiles: half the rows where at most half are left, one vector where the filters
fit one. A finished tile passes through a scratch block of the worker: channels-last outputs take
its rows, channels-first ones (`turned`) its transposed squares, so that both store whole vectors.
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.arithmetic import fill, multiply
from gemm.microkernels.dtypes import DType, TileShape, int32, int64, uint8
from gemm.microkernels.outer_product import make_outer_product
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
    tile_zeros,
)

from ..blocked import make_store, share_start
from ..epilogues.write_back import make_write_back
from ..grouping import flips
from .packing import CHUNK, ENTRY, column_step, make_pack_columns, make_pack_rows

LINE = 64  # bytes a prefetch brings at least
NOTE = 64  # bytes noted of a panel
CHANNELS = 32  # of the columns form at a time: their pixels stay near for all taps and panels


def short_rows(tile: TileShape) -> int:
    """Rows of the smaller tile."""
    return (tile.rows + 1) // 2


def squares(tile: TileShape) -> TileShape:
    """The block in which a tile is transposed: rows are filters, columns pixels."""
    return replace(tile, rows=tile.lanes, vectors=1)


def make_over_k(tile: TileShape, form: str, panel: int, columns: int, units=None, unroll: int = 4):
    """over_k(a, b, k, begin, a_row, outer, across): the tile of a panel of pixels and of filters.

    k: values, or units of several. begin: with units, a row that every chain starts from. a_row:
    bytes from one pixel to the next; other than a panel's own where the pixels are read as they
    lie, `across` values from each place that `outer`, offsets by outer tap, names.
    """
    wide = tile.columns
    micro_kernel = make_outer_product(unroll)
    size = tile.dtype.size
    b_step = columns * size
    row = CHUNK * size
    a_step = column_step(panel, tile.lanes) * size
    a_k, chunk = (size, panel * row) if form == "rows" else (a_step, CHUNK * a_step)

    def from_zero(begin):
        return tile_zeros(tile)

    def from_row(begin):
        return tile_load(tile, begin, 0, 1, wide)

    fresh = from_zero if units is None else from_row

    def over_rows(a, b, k, begin, a_row, outer, across):
        t = fresh(begin)
        at = a
        onward = chunk
        left = 0
        while k > 0:
            depth = min(k, CHUNK)
            if across > 0:
                if left == 0:
                    at = shift(a, load(outer) * size)
                    outer = shift(outer, ENTRY)
                    left = across
                depth = min(left, CHUNK)
                left -= depth
                onward = row
                # The next panel's pixels come while this one's are multiplied.
                for i in range(panel):
                    ahead = shift(at, (panel + i) * a_row)
                    for line in range(0, row, LINE):
                        prefetch(shift(ahead, line))
            t = micro_kernel(t, at, a_row, a_k, b, b_step, columns, depth)
            at = shift(at, onward)
            b = shift(b, depth * b_step)
            k -= depth
        return t

    def over_columns(a, b, k, begin, a_row, outer, across):
        t = fresh(begin)
        while k > 0:
            t = micro_kernel(t, a, size, a_k, b, b_step, columns, min(k, CHUNK))
            a = shift(a, chunk)
            b = shift(b, CHUNK * b_step)
            k -= CHUNK
        return t

    return over_rows if form == "rows" else over_columns


def make_finish(tile: TileShape, out: DType, program, turned: bool):
    """finish(rest, c, rs, cs, m, n, pixel, filter, batch, extra): the tile at `rest` into `out`.

    rs, cs: bytes from one pixel and one filter to the next. turned: the hook sees filters as rows.
    """
    shape = squares(tile) if turned else tile
    hook = make_store(shape, out) if program is None else make_write_back(shape, program)
    size, lanes, rows, vectors = tile.dtype.size, tile.lanes, tile.rows, tile.vectors
    columns = tile.columns
    row = columns * size

    def as_it_is(rest, c, rs, cs, m, n, pixel, filter, batch, extra):
        t = tile_load(tile, rest, row, rows, columns)
        hook(t, c, rs, cs, m, n, pixel, filter, batch, extra)

    def transposed(rest, c, rs, cs, m, n, pixel, filter, batch, extra):
        for v in range(vectors):
            filters = min(lanes, n - v * lanes)
            if filters > 0:
                for i in range(0, m, lanes):
                    pixels = min(lanes, m - i)
                    at = shift(rest, i * row + v * lanes * size)
                    t = tile_transpose(tile_load(shape, at, row, pixels, lanes))
                    hook(t, shift(c, i * rs + v * lanes * cs), cs, rs, filters, pixels,
                         filter + v * lanes, pixel + i, batch, extra)  # fmt: skip

    return transposed if turned else as_it_is


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
    MR, NR, acc, size = tile.rows, tile.columns, tile.dtype, tile.dtype.size
    few = short_rows(tile)
    if units is not None:
        pack = make_pack_rows(MR, tile.lanes, uint8, acc, by_table, flips(x_type, units[0]))
        source = uint8
    else:
        make_pack = make_pack_rows if form == "rows" else make_pack_columns
        pack = make_pack(MR, tile.lanes, x_type, acc, by_table)
        source = x_type.widened_to(acc)
    panel_a, panel_b = units or (acc, acc)
    own_row = CHUNK * size
    x_size = source.size
    group = 1 if units is None else units[0].group
    low, one = replace(tile, rows=few), replace(tile, vectors=1)
    over_full = make_over_k(tile, form, MR, NR, units)
    over_low = make_over_k(low, form, MR, NR, units)
    over_one = make_over_k(one, form, MR, NR, units)
    over_least = make_over_k(replace(low, vectors=1), form, MR, NR, units)
    narrow = tile.vectors > 1
    lanes, row = tile.lanes, NR * size
    finish = make_finish(tile, out, program, turned)
    straight = program is None and not turned
    out_size = out.size
    # Channels of the rows form are copied in one go.
    at_once = 1 << 40 if form == "rows" else CHANNELS

    def no_start(begin, panel, factor):
        return panel

    def start(begin, panel, factor):
        # A panel of units begins with the sums of its filters; `factor` is their share of a result.
        for v in range(NR // lanes):
            sums = load_lanes(shift(panel, v * lanes * size), lanes, lanes)
            store_lanes(shift(begin, v * lanes * size), multiply(sums, fill(sums, factor)), lanes)
        return shift(panel, row)

    begin_panel = no_start if units is None else start

    def place(find, pixel, m, height, outer_taps, inner_taps, width, low, high):
        # Where the tap of the lowest inner index reads its first pixel, if a panel's pixels can be
        # read as they lie: a whole panel inside one output row and inside the image, or -1.
        if m < MR or low > high:
            return -1
        h = pixel // width
        w = pixel - h * width
        if w < low or (w + MR > high and high <= width):
            return -1
        for u in range(outer_taps):
            if load(shift(find, (h * outer_taps + u) * ENTRY)) < 0:
                return -1
        return load(shift(find, (height * outer_taps + w * inner_taps) * ENTRY))

    def compute(rest, a, b, m, n, k, begin, a_row, outer, across, c, rs, cs):
        # A wide tile whose filters fit one vector, or a tall one half of whose rows are unused.
        # Returns whether the results are in `out` already.
        if straight:
            if m == MR and n == NR and cs == out_size:
                for i in range(MR):
                    for line in range(0, row, LINE):
                        prefetch(shift(c, i * rs + line))
                tile_store(c, rs, over_full(a, b, k, begin, a_row, outer, across), MR, NR)
                return 1
        if n > lanes or not narrow:
            if m > few:
                tile_store(rest, row, over_full(a, b, k, begin, a_row, outer, across), MR, NR)
            else:
                tile_store(rest, row, over_low(a, b, k, begin, a_row, outer, across), few, NR)
        elif m > few:
            tile_store(rest, row, over_one(a, b, k, begin, a_row, outer, across), MR, lanes)
        else:
            tile_store(rest, row, over_least(a, b, k, begin, a_row, outer, across), few, lanes)
        return 0

    def convolution(
        x, w, c, find, space, extra, begin, pixels, segments, factor, padding, low, high, n,
        channels, height, outer_taps, width, inner_taps, channel_step, pixel_step, c_segment,
        images, groups, x_image, x_group, w_group, w_panel, c_image, c_group, rs, cs, block,
        panel_room, notes_room, worker_room, team_b, team_m, team_n, worker,
    ):  # fmt: skip
        """One worker's share of the pixels begin .. begin + pixels - 1 of every image.

        x: first pixel of channel 0 that the rule can name; w: panels of NR filters, w_panel bytes
        each; find: the rule, for these pixels; n, channels: of one group; height, width: output
        rows (all outer axes) and columns; *_step: elements, the others bytes; segments: equal
        parts of an image, c_segment bytes apart in `c`, no panel being of two; block: panels
        packed together; space: scratch, worker_room bytes a worker: a tile, a row, a line, notes on
        the block's panels (notes_room bytes), then panels of panel_room bytes. low, high: output
        columns whose pixels may be read as they lie (none where low > high; high > width: also
        across the ends of rows). factor, padding: with units, what the sums of a filter are
        multiplied by to start its chains, and four bytes that stand outside the image. The team is
        team_b (groups) x team_m (panels) x team_n (filters).
        """
        rest = recast(shift(space, worker * worker_room), acc)
        begin_row = shift(rest, MR * row)
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
        span = pixels // segments
        apart = (span + MR - 1) // MR
        each = segments * apart
        share_b = worker // (team_m * team_n)
        share_m = worker // team_n % team_m
        top = share_m * images * each // team_m
        bottom = (share_m + 1) * images * each // team_m
        left = share_start(n, NR, team_n, worker % team_n)
        right = share_start(n, NR, team_n, worker % team_n + 1)
        for index in range(share_b * groups // team_b, (share_b + 1) * groups // team_b):
            for start in range(top, bottom, block):
                stop = min(start + block, bottom)
                for begin_channel in range(0, channels, at_once):
                    some = min(at_once, channels - begin_channel)
                    for q in range(start, stop):
                        image = q // each
                        segment = (q - image * each) // apart
                        inside = (q - image * each - segment * apart) * MR
                        m = min(MR, span - inside)
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
                        if at < 0:
                            used = MR
                            if m <= few:
                                used = few
                            pack(shift(packed, (q - start) * panel_room), from_, find, pixel, m,
                                 used, height, outer_taps, inner_taps, channels, width,
                                 channel_step, pixel_step, begin_channel, some,
                                 outside)  # fmt: skip
                for jr in range(left, right, NR):
                    first = recast(shift(w, index * w_group + jr // NR * w_panel), acc)
                    panel = recast(begin_panel(begin_row, first, factor), panel_b)
                    columns = min(NR, n - jr)
                    into = shift(c, index * c_group + jr * cs)
                    for q in range(start, stop):
                        note = recast(shift(notes, (q - start) * NOTE), int64)
                        m = load(shift(note, 8))
                        at = load(shift(note, 32))
                        outer = shift(find, load(shift(note, 40)))
                        to = shift(into, load(note))
                        a = shift(packed, (q - start) * panel_room)
                        a_row = own_row
                        depth = 0
                        if at >= 0:
                            a = recast(shift(x, load(shift(note, 48)) + at * x_size), panel_a)
                            a_row = pixel_step * x_size
                            depth = across
                        done = compute(rest, a, panel, m, columns, k, begin_row, a_row, outer,
                                       depth, to, rs, cs)  # fmt: skip
                        if done == 0:
                            finish(rest, to, rs, cs, m, columns, load(shift(note, 16)), jr,
                                   load(shift(note, 24)), extra)  # fmt: skip

    return convolution
