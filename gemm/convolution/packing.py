"""Packing of a convolution: panels filled through the gather rule, straight from the image.

The rule (gather.py) reaches a kernel as an int32 table `find` of element offsets, -1 for a tap
that reads a zero, in one of two forms:

    arithmetic   outer (output rows x outer taps), inner (width x inner taps), where offset =
                 outer + inner unless one is -1; runs, of the shape of inner: how many taps from
                 this one on move together; for each inner tap, the first output column and the
                 one past the last that it reads inside the image
    table        one entry for each output pixel and tap (Dukhan, arXiv 1907.02129)

'Inner' is the last spatial axis, 'outer' all others as one. k runs over taps and, innermost,
channels. Which of two forms a panel has follows from what is adjacent in memory, so that whole
vectors move and nothing is transposed:

    columns   NR pixels side by side, one k after the other: operand B      (pixels adjacent)
    rows      MR pixels in chunks of CHUNK k, one pixel after the other: A  (channels adjacent)

              chunk 0                     chunk 1
              +-- pixel 0, k 0..63 --+    +-- pixel 0, k 64.. --+
              +-- pixel 1, k 0..63 --+    +-- pixel 1, k 64.. --+
              ...         MR rows

8-bit values of a dot-product instruction go into the rows form as they lie, four k to a unit
(grouping.py), with signed ones moved up by 128; taps outside the image hold the zero point.

Places beyond the last pixel repeat it, so they raise no flag that it does not.
"""

from __future__ import annotations

from gemm.microkernels.arithmetic import bit_xor, fill
from gemm.microkernels.dtypes import DType, TileShape, int32, uint8
from gemm.microkernels.vocabulary import (
    broadcast,
    copy,
    gather_lanes,
    load,
    load_alternate,
    load_lanes,
    prefetch,
    recast,
    shift,
    store,
    store_lanes,
    tile_store,
    tile_zeros,
)

CHUNK = 64  # k of one row in a chunk: row steps are constants that fold into addresses
ENTRY = 4  # bytes of an offset


def make_runs(panel: int, lanes: int, source: DType, wide: DType):
    """(copy_run, zero_run): n values of a row of the rows form, from position p on.

    copy_run(to, p, src, n, ahead), zero_run(to, p, n, outside); ahead: bytes to what the next panel
    will read here; outside: what taps outside the image hold, four bytes (here zeros).
    """
    size, wide_size = source.size, wide.size
    row = CHUNK * wide_size
    zeros = TileShape(1, 1, lanes, wide)

    def copy_run(to, p, src, n, ahead):
        while n > 0:
            at = shift(to, p // CHUNK * (panel * row) + p % CHUNK * wide_size)
            take = min(n, CHUNK - p % CHUNK)
            if take == CHUNK:
                for v in range(CHUNK // lanes):
                    x = load_lanes(shift(src, v * lanes * size), lanes, lanes)
                    prefetch(shift(src, v * lanes * size + ahead))
                    store_lanes(shift(at, v * lanes * wide_size), x, lanes)
            elif take >= lanes:
                # The last vector overlaps the one before it.
                for v in range(0, take - lanes, lanes):
                    x = load_lanes(shift(src, v * size), lanes, lanes)
                    store_lanes(shift(at, v * wide_size), x, lanes)
                x = load_lanes(shift(src, (take - lanes) * size), lanes, lanes)
                prefetch(shift(src, ahead))
                store_lanes(shift(at, (take - lanes) * wide_size), x, lanes)
            else:
                store_lanes(at, load_lanes(src, lanes, take), take)
            src = shift(src, take * size)
            p += take
            n -= take

    def zero_run(to, p, n, outside):
        while n > 0:
            at = shift(to, p // CHUNK * (panel * row) + p % CHUNK * wide_size)
            take = min(n, CHUNK - p % CHUNK)
            for v in range(0, take, lanes):
                tile_store(shift(at, v * wide_size), 0, tile_zeros(zeros), 1, take - v)
            p += take
            n -= take

    return copy_run, zero_run


def make_byte_runs(panel: int, lanes: int, flip: bool, row: int):
    """The same for bytes in units of four; flip: they are signed and move up by 128. row: bytes
    of a pixel in a chunk."""
    vector = lanes * 4

    def moved(v):
        if flip:
            return bit_xor(v, fill(v, -0x7F7F7F80))
        else:
            return v

    def copy_words(at, src, n):
        store_lanes(at, moved(load_lanes(recast(src, int32), lanes, n)), n)

    def copy_run(to, p, src, n, ahead):
        while n > 0:
            at = recast(shift(to, p // row * (panel * row) + p % row), int32)
            take = min(n, row - p % row)
            prefetch(shift(src, ahead))
            if take >= vector:
                # The last vector overlaps the one before it.
                for v in range(0, take - vector, vector):
                    copy_words(shift(at, v), shift(src, v), lanes)
                copy_words(shift(at, take - vector), shift(src, take - vector), lanes)
            elif take >= 4:
                words = take // 4
                copy_words(at, src, words)
                if take > words * 4:
                    copy_words(shift(at, take - 4), shift(src, take - 4), 1)
            else:
                for j in range(take):
                    x = load(recast(shift(src, j), uint8))
                    if flip:
                        x = x ^ 128
                    store(recast(shift(at, j), uint8), x)
            src = shift(src, take)
            p += take
            n -= take

    def zero_run(to, p, n, outside):
        four = load(recast(outside, int32))
        v = broadcast(four, lanes)
        while n > 0:
            at = recast(shift(to, p // row * (panel * row) + p % row), int32)
            take = min(n, row - p % row)
            words = take // 4
            for j in range(0, words, lanes):
                store_lanes(shift(at, j * 4), v, words - j)
            for j in range(words * 4, take):
                store(recast(shift(at, j), uint8), four)
            p += take
            n -= take

    return copy_run, zero_run


def make_pack_rows(
    panel: int,
    lanes: int,
    source: DType,
    wide: DType,
    by_table: bool,
    flip: bool | None = None,
    chunk: int = 0,
):
    """pack(...) into the rows form; channels are adjacent in memory.

    pack(dst, x, find, first, left, used, height, outer_taps, inner_taps, channels, width,
    channel_step, pixel_step, begin, some, outside): `left` pixels from `first` on, `used` rows of
    the panel; steps in elements; of the channels `some` from `begin` on (here all of them);
    outside: see `make_runs`. flip, chunk: of bytes in units, None for values.
    """
    size = source.size
    row_bytes = CHUNK * wide.size
    if flip is None:
        copy_run, zero_run = make_runs(panel, lanes, source, wide)
    else:
        row_bytes = chunk
        copy_run, zero_run = make_byte_runs(panel, lanes, flip, chunk)

    def by_arithmetic(dst, x, find, first, left, used, height, outer_taps, inner_taps, channels,
                      width, channel_step, pixel_step, begin, some, outside):  # fmt: skip
        inner = shift(find, height * outer_taps * ENTRY)
        to_runs = width * inner_taps * ENTRY
        across = inner_taps * channels
        ahead = panel * pixel_step * size
        h = first // width
        w = first - h * width
        for i in range(used):
            outer = shift(find, h * outer_taps * ENTRY)
            mine = shift(inner, w * inner_taps * ENTRY)
            to = shift(dst, i * row_bytes)
            p = 0
            for u in range(outer_taps):
                base = load(shift(outer, u * ENTRY))
                if base < 0:
                    zero_run(to, p, across, outside)
                    p += across
                else:
                    tap = 0
                    while tap < inner_taps:
                        offset = load(shift(mine, tap * ENTRY))
                        together = load(shift(mine, tap * ENTRY + to_runs))
                        n = together * channels
                        if offset < 0:
                            zero_run(to, p, n, outside)
                        else:
                            copy_run(to, p, shift(x, (base + offset) * size), n, ahead)
                        p += n
                        tap += together
            if i + 1 < left:
                w += 1
                if w == width:
                    w = 0
                    h += 1

    def through_table(dst, x, find, first, left, used, height, outer_taps, inner_taps, channels,
                      width, channel_step, pixel_step, begin, some, outside):  # fmt: skip
        taps = outer_taps * inner_taps
        ahead = panel * pixel_step * size
        for i in range(used):
            mine = shift(find, (first + min(i, left - 1)) * taps * ENTRY)
            to = shift(dst, i * row_bytes)
            p = 0
            tap = 0
            while tap < taps:
                # Taps whose pixels follow each other in memory, or are all outside.
                offset = load(shift(mine, tap * ENTRY))
                step = 0
                if offset >= 0:
                    step = channels
                end = tap + 1
                while end < taps and load(shift(mine, end * ENTRY)) == offset + (end - tap) * step:
                    end += 1
                n = (end - tap) * channels
                if offset < 0:
                    zero_run(to, p, n, outside)
                else:
                    copy_run(to, p, shift(x, offset * size), n, ahead)
                p += n
                tap = end

    return through_table if by_table else by_arithmetic


def make_pack_columns(panel: int, lanes: int, source: DType, wide: DType, by_table: bool):
    """pack(...) into the columns form, with the parameters of `make_pack_rows`; any strides.

    panel: whole vectors. Of a panel `used` columns are filled, whole vectors too.
    """
    size, wide_size = source.size, wide.size
    step = panel * wide_size
    zeros = TileShape(1, 1, lanes, wide)

    def move(at, src, n):
        # n > lanes neighbours and nothing beside them: the last vector overlaps the one before.
        for j in range(0, n - lanes, lanes):
            x = load_lanes(shift(src, j * size), lanes, lanes)
            store_lanes(shift(at, j * wide_size), x, lanes)
        x = load_lanes(shift(src, (n - lanes) * size), lanes, lanes)
        store_lanes(shift(at, (n - lanes) * wide_size), x, lanes)

    def adjacent(at, src, channels, channel_step, n):
        if n == panel:
            for _ in range(channels):
                for j in range(0, panel, lanes):
                    x = load_lanes(shift(src, j * size), lanes, lanes)
                    store_lanes(shift(at, j * wide_size), x, lanes)
                src = shift(src, channel_step * size)
                at = shift(at, step)
        elif n > lanes:
            for _ in range(channels):
                move(at, src, n)
                src = shift(src, channel_step * size)
                at = shift(at, step)
        else:
            for _ in range(channels):
                store_lanes(at, load_lanes(src, lanes, n), n)
                src = shift(src, channel_step * size)
                at = shift(at, step)

    def alone(at, src, outside, channels, channel_step, lead, n, count):
        # One row of the output fills the panel, `lead` pixels and those after n more are outside:
        # whole vectors move, then zeros go over what does not belong there. What a vector writes
        # beyond its k is overwritten by the next; the last channel moves exactly.
        to = shift(at, lead * wide_size)
        done = 0
        if channel_step >= panel:
            while done < channels - 1:
                for j in range(0, panel, lanes):
                    x = load_lanes(shift(src, j * size), lanes, lanes)
                    store_lanes(shift(to, j * wide_size), x, lanes)
                for j in range(lead):
                    copy(shift(at, j * wide_size), outside)
                for j in range(lead + n, count):
                    copy(shift(at, j * wide_size), outside)
                src = shift(src, channel_step * size)
                at = shift(at, step)
                to = shift(to, step)
                done += 1
        clear(at, channels - done, panel)
        adjacent(to, src, channels - done, channel_step, n)

    def alternate(at, src, channels, channel_step, n):
        if n >= lanes:
            # The last vector overlaps the one before.
            for _ in range(channels):
                for j in range(0, n - lanes, lanes):
                    x = load_alternate(shift(src, 2 * j * size), lanes, lanes)
                    store_lanes(shift(at, j * wide_size), x, lanes)
                x = load_alternate(shift(src, 2 * (n - lanes) * size), lanes, lanes)
                store_lanes(shift(at, (n - lanes) * wide_size), x, lanes)
                src = shift(src, channel_step * size)
                at = shift(at, step)
        else:
            for _ in range(channels):
                store_lanes(at, load_alternate(src, lanes, n), n)
                src = shift(src, channel_step * size)
                at = shift(at, step)

    def stepped(at, src, channels, channel_step, pixel_step, n):
        for _ in range(channels):
            for j in range(0, n, lanes):
                from_ = shift(src, j * pixel_step * size)
                x = gather_lanes(from_, pixel_step * size, lanes, n - j)
                store_lanes(shift(at, j * wide_size), x, n - j)
            src = shift(src, channel_step * size)
            at = shift(at, step)

    def clear(at, channels, n):
        for c in range(channels):
            for j in range(0, n, lanes):
                to = shift(at, c * step + j * wide_size)
                tile_store(to, 0, tile_zeros(zeros), 1, n - j)

    def repeat_last(dst, left, used, k):
        if used > left:
            begin = (left - 1) // lanes * lanes
            for p in range(k):
                row = shift(dst, p * step)
                x = load_lanes(shift(row, begin * wide_size), lanes, left - begin)
                store_lanes(shift(row, begin * wide_size), x, lanes)
                for j in range(begin + lanes, used, lanes):
                    x = load_lanes(shift(row, (left - 1) * wide_size), lanes, 1)
                    store_lanes(shift(row, j * wide_size), x, lanes)

    def by_arithmetic(dst, x, find, first, left, used, height, outer_taps, inner_taps, channels,
                      width, channel_step, pixel_step, begin_channel, some,
                      outside):  # fmt: skip
        inner = shift(find, height * outer_taps * ENTRY)
        bounds = shift(inner, 2 * width * inner_taps * ENTRY)
        x = shift(x, begin_channel * channel_step * size)
        dst = shift(dst, begin_channel * step)
        skip = channels * step
        zero = recast(outside, wide)
        j = 0
        while j < left:
            h = (first + j) // width
            column = first + j - h * width
            count = min(left - j, width - column)
            outer = shift(find, h * outer_taps * ENTRY)
            at = shift(dst, j * wide_size)
            for u in range(outer_taps):
                base = load(shift(outer, u * ENTRY))
                for v in range(inner_taps):
                    begin = max(column, load(shift(bounds, 2 * v * ENTRY)))
                    end = min(column + count, load(shift(bounds, (2 * v + 1) * ENTRY)))
                    n = 0
                    if base >= 0:
                        n = end - begin
                    whole = count == panel and pixel_step == 1 and n > 0
                    if n < count and not whole:
                        clear(at, some, count)
                    if n > 0:
                        off = base + load(shift(inner, (begin * inner_taps + v) * ENTRY))
                        to = shift(at, (begin - column) * wide_size)
                        src = shift(x, off * size)
                        if whole and n < count:
                            alone(at, src, zero, some, channel_step, begin - column, n, count)
                        elif pixel_step == 1:
                            adjacent(to, src, some, channel_step, n)
                        elif pixel_step == 2:
                            alternate(to, src, some, channel_step, n)
                        else:
                            stepped(to, src, some, channel_step, pixel_step, n)
                    at = shift(at, skip)
            j += count
        for tap in range(outer_taps * inner_taps):
            repeat_last(shift(dst, tap * skip), left, used, some)

    def through_table(dst, x, find, first, left, used, height, outer_taps, inner_taps, channels,
                      width, channel_step, pixel_step, begin_channel, some,
                      outside):  # fmt: skip
        taps = outer_taps * inner_taps
        x = shift(x, begin_channel * channel_step * size)
        dst = shift(dst, begin_channel * step)
        for i in range(left):
            at = shift(dst, i * wide_size)
            for tap in range(taps):
                off = load(shift(find, ((first + i) * taps + tap) * ENTRY))
                if off < 0:
                    clear(at, some, 1)
                else:
                    for c in range(some):
                        src = shift(x, (off + c * channel_step) * size)
                        store(shift(at, c * step), load(src))
                at = shift(at, channels * step)
        for tap in range(taps):
            repeat_last(shift(dst, tap * channels * step), left, used, some)

    return through_table if by_table else by_arithmetic
