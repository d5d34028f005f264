"""The five loops around the micro-kernel, after Goto and BLIS, for outputs stored by rows.

    loop 5   ic over M in steps of MC        rows of A, MC high
    loop 4     pc over K in steps of KC        A block MC x KC packed            (third level cache)
    loop 3       jc over N in steps of NC        B block KC x NC packed          (second level)
    loop 2         ir over MC in steps of MR       A micro-panel MR x KC         (first level)
    loop 1           jr over NC in steps of NR       B micro-panel KC x NR
                       micro-kernel: MR x NR tile in registers

The narrow panel stays in the first level while the wide ones stream past it, and the innermost
loop walks along rows of the output, so a row's memory pages are used up before the next.

Where workers share no first-level cache and rows of A are adjacent along k and of the
accumulator's type, A is not packed at all: MR of them, few enough for the ways of the first
level, are read where they lie, and the micro-kernel asks for the next MR meanwhile. Blocks of K
are deeper then, since both panels stream anyway.

K blocks continue each element's chain: between them the partial tile rests at its `home`, which
is `out` itself where that holds the accumulator type with adjacent columns and nothing of its
old content is needed, else a scratch block; then columns go in bands of at most `band`, so that
the scratch is bounded. After the last K block the write-back hook runs once for each tile.

Each worker of a team owns a rectangle of the output and shares nothing: any number of workers,
any partition, gives the same bits.
"""

from __future__ import annotations

from dataclasses import replace

from gemm.microkernels.dtypes import DType, TileShape, int32
from gemm.microkernels.outer_product import make_outer_product, make_outer_product_ahead
from gemm.microkernels.vocabulary import (
    copy,
    load_lanes,
    outer_accumulate,
    prefetch,
    recast,
    scatter_lanes,
    shift,
    store,
    store_lanes,
    tile_add_shifted,
    tile_load,
    tile_spill,
    tile_store,
    tile_zeros,
)

from .batch import offset
from .block_packing import make_pack_blocks
from .components import make_pack_parts, make_pack_turned
from .epilogues.prepare import make_prepare, pack_nothing
from .epilogues.write_back import make_announce, make_write_back, silent
from .grouping import flips, make_pack_groups
from .halves import in_halves, make_pack_halves, rows_of, values_of
from .packing import make_pack

LINE = 64  # bytes a prefetch brings at least
PIECES = 7  # of k, between which a program's memory is asked for


def make_store(shape: TileShape, out: DType):
    """Write-back without an epilogue: the tile, narrowed to `out`, into any strides.

    A write-back hook is write_back(t, c, rs, cs, m, n, row, column, batch, extra): tile t holds
    m x n results whose first stands at (row, column) of matrix `batch`; `extra` is the table of
    the epilogue's operands.
    """
    acc, size, out_size = shape.dtype, shape.dtype.size, out.size
    vectors, lanes = shape.vectors, shape.lanes
    row_size = shape.columns * size

    def scatter_complex(c, cs, row, n):
        for j in range(n):
            copy(shift(c, j * cs), shift(row, j * size))

    def scatter(c, cs, row, n):
        for v in range(vectors):
            left = n - v * lanes
            if left > 0:
                x = load_lanes(shift(row, v * lanes * size), lanes, lanes)
                scatter_lanes(shift(c, v * lanes * cs), cs, x, left)

    scatter_row = scatter_complex if acc.kind == "c" else scatter

    def store_tile(t, c, rs, cs, m, n, row, column, batch, extra):
        if cs == out_size:
            tile_store(c, rs, t, m, n)
        else:
            rows = tile_spill(t, acc)
            for i in range(m):
                scatter_row(shift(c, i * rs), cs, shift(rows, i * row_size), n)

    return store_tile


def every_column(columns, row, column):
    """How many of `columns` columns from `column` on are computed for the panel at `row`."""
    return columns


def make_lower(panel: int):
    """The same where only tiles on and below the diagonal are computed (symmetric.py)."""

    def lower(columns, row, column):
        return max(0, min(columns, row + panel - column))

    return lower


def make_macro_kernel(shape: TileShape, write_back, unroll: int, flip: bool = False, units=None,
                      announce=silent, halves: bool = False, unpacked_a: bool = False,
                      reach=every_column, out: DType | None = None):  # fmt: skip
    """Loops 2 and 1: an MC x NC block of the output from a packed block of A and one of B.

    halves: panels are as in halves.py. unpacked_a: `a` are rows where they lie, `a_rs` bytes apart,
    and `rest` has room for one panel of them. reach: columns that a row panel needs. out: type of
    the output, None for that of the tile.
    flip: each tile first loses the surplus `sums` of its columns. (row, column): where the block
    starts in matrix `batch` of the output. announce: is told of each tile while it is computed.
    """
    MR, NR, size = shape.rows, shape.columns, shape.dtype.size
    micro_kernel = multiply = make_outer_product(unroll)
    ahead = make_outer_product_ahead(unroll)
    factor, value = (size, size) if units is None else (units[0].size, units[1].size)
    a_step = MR * factor
    b_step = NR * value
    tile_row = NR * size
    out = out or shape.dtype
    out_row = NR * out.size

    def by_halves(t, a, a_row, a_step, b, b_step, n, rows):
        k = values_of(rows)
        high = micro_kernel(tile_zeros(shape), a, a_row, a_step, b, b_step, n, k)
        t = tile_add_shifted(t, high, 16)
        return micro_kernel(t, shift(a, k * a_step), a_row, a_step, shift(b, k * b_step), b_step,
                            n, rows - k)  # fmt: skip

    if halves:
        multiply = by_halves

    def lose(t, minus, sums):
        store(minus, -1)
        return outer_accumulate(t, minus, 0, sums, NR)

    without_surplus = lose if flip else lambda t, minus, sums: t

    def expect_home(home, home_rs, c, rs, first, last):
        for i in range(MR):
            for line in range(0, tile_row, LINE):
                prefetch(shift(home, i * home_rs + line))

    def expect_resting(home, home_rs, c, rs, first, last):
        if not (first and last):
            expect_home(home, home_rs, c, rs, first, last)

    def expect_either(home, home_rs, c, rs, first, last):
        if last:
            for i in range(MR):
                for line in range(0, out_row, LINE):
                    prefetch(shift(c, i * rs + line))
        else:
            expect_home(home, home_rs, c, rs, first, last)

    expect = expect_home if out is shape.dtype else expect_either
    if announce is not silent:
        expect = expect_resting  # a program's results go elsewhere

    if unpacked_a:
        panel_of_a, a_step = make_rows_of_a(MR, shape.lanes, factor), factor
    else:

        def panel_of_a(a, a_rs, rest, ir, m, kb):
            return shift(a, ir * kb * factor), factor

    def product_in_place(t, a, a_row, b, jr, kb):
        # Two rows a tile of the next panel, until it is all there.
        beyond = shift(a, (MR + min(jr // NR * 2, MR - 2)) * a_row)
        return ahead(t, a, a_row, a_step, b, b_step, NR, kb, beyond)

    def product_of_panels(t, a, a_row, b, jr, kb):
        return multiply(t, a, a_row, a_step, b, b_step, NR, kb)

    product = product_in_place if unpacked_a else product_of_panels

    def announced(t, a, a_row, b, jr, kb, last, m, row, column, batch, extra):
        # A little at a time: more requests than the core can have open would make it wait.
        pieces = 1
        if last and not halves:  # whose panels are no sequence in k
            pieces = max(1, min(PIECES, kb // (2 * unroll)))
        step = (kb + pieces * unroll - 1) // (pieces * unroll) * unroll
        for piece in range(pieces):
            at = piece * step
            if last:
                announce(piece, pieces, m, row, column, batch, extra)
            t = product(t, shift(a, at * a_step), a_row, shift(b, at * b_step), jr,
                        max(0, min(step, kb - at)))  # fmt: skip
        return t

    def unannounced(t, a, a_row, b, jr, kb, last, m, row, column, batch, extra):
        return product(t, a, a_row, b, jr, kb)

    whole = unannounced if announce is silent else announced

    def macro_kernel(a, a_rs, rest, b, sums, home, home_rs, c, rs, cs, mc, nc, kb, first, last,
                     row, column, batch, extra):  # fmt: skip
        for ir in range(0, mc, MR):
            m = min(MR, mc - ir)
            a_panel, a_row = panel_of_a(a, a_rs, rest, ir, m, kb)
            for jr in range(0, reach(nc, row + ir, column), NR):
                n = min(NR, nc - jr)
                b_panel = shift(b, jr * kb * value)
                resting = shift(home, ir * home_rs + jr * size)
                # Where the next tile goes, while this one is computed.
                expect(shift(resting, tile_row), home_rs, shift(c, ir * rs + (jr + NR) * cs), rs,
                       first, last)  # fmt: skip
                if first:
                    t = tile_zeros(shape)
                else:
                    t = tile_load(shape, resting, home_rs, m, n)
                t = without_surplus(t, shift(sums, -128), shift(sums, jr * size))
                t = whole(t, a_panel, a_row, b_panel, jr, kb, last, m, row + ir, column + jr, batch,
                          extra)  # fmt: skip
                if last:
                    at = shift(c, ir * rs + jr * cs)
                    write_back(t, at, rs, cs, m, n, row + ir, column + jr, batch, extra)
                else:
                    tile_store(resting, home_rs, t, m, n)

    return macro_kernel


def make_rows_of_a(MR: int, lanes: int, size: int):
    """The panel of A in place: (first of its rows, bytes between rows); size: of a value.

    Rows that do not fill a panel are copied, the last of them repeated.
    """

    def copy_rows(rest, rows, a_rs, m, kb):
        for i in range(MR):
            to = shift(rest, i * kb * size)
            row = shift(rows, min(i, m - 1) * a_rs)
            for p in range(0, kb, lanes):
                n = min(lanes, kb - p)
                store_lanes(shift(to, p * size), load_lanes(shift(row, p * size), lanes, n), n)

    def rows_of_a(a, a_rs, rest, ir, m, kb):
        rows = shift(a, ir * a_rs)
        step = a_rs
        if m < MR:
            copy_rows(rest, rows, a_rs, m, kb)
            rows = rest
            step = kb * size
        return rows, step

    return rows_of_a


def make_packs(shape: TileShape, a: DType, b: DType, units: tuple[DType, DType] | None):
    """(pack-A, pack-B, values of k in a row of a panel)."""
    if units is None:
        pack_a = make_pack(shape.rows, shape.lanes, a, shape.dtype)
        return pack_a, make_pack(shape.columns, shape.lanes, b, shape.dtype), 1
    if in_halves(a, units):
        pack_a = make_pack_halves(shape.rows, shape.lanes, a, True)
        return pack_a, make_pack_halves(shape.columns, shape.lanes, b, False), 1
    if shape.dtype.kind == "c":
        return make_pack_parts(shape), make_pack_turned(shape), 1
    if shape.block > 1:
        pack_a = make_pack_blocks(shape.rows, shape.lanes, a, units[0], True)
        pack_b = make_pack_blocks(shape.columns, shape.lanes, b, units[1], False)
        return pack_a, pack_b, units[0].group
    pack_a = make_pack_groups(shape.rows, shape.lanes, a, units[0])
    return pack_a, make_pack_groups(shape.columns, shape.lanes, b, units[1]), units[0].group


def make_surplus(shape: TileShape, units: tuple[DType, DType] | None, unroll: int):
    """Column sums of a packed B, times 128, for A's values that packing moved up by 128.

    surplus(row, b, columns, kb): row[j] = 128 * sum of column j, in panels like B's.
    """
    if units is None:
        return lambda row, b, columns, kb: None
    one_row = replace(shape, rows=1)
    micro_kernel = make_outer_product(unroll)
    NR, size = shape.columns, shape.dtype.size
    a_unit, b_unit = units

    def surplus(row, b, columns, kb):
        middle = shift(row, -64)
        store(recast(middle, int32), -0x7F7F7F80)  # 128 in each byte
        for jr in range(0, columns, NR):
            panel = recast(shift(b, jr * kb * size), b_unit)
            t = micro_kernel(tile_zeros(one_row), recast(middle, a_unit), 0, 0, panel, NR * size,
                             NR, kb)  # fmt: skip
            tile_store(shift(row, jr * size), 0, t, 1, NR)

    return surplus


def make_blocked(
    shape: TileShape,
    a_type: DType,
    b_type: DType,
    out: DType,
    unroll: int = 4,
    program=None,
    units: tuple[DType, DType] | None = None,
    ready_b: bool = False,
    resume: bool = False,
    unpacked_a: bool = False,
    triangle: bool = False,
):
    """The whole product for one worker of a team; see the parameters of `blocked` below.

    program: the write-back's (gemm/epilogues), None for the plain store. units: element types of
    the panels for a dot-product instruction (grouping.py) or of a complex product's components
    (components.py), None for values as they are. ready_b: b lies in panels already (packed.py):
    brs is the step of a unit of k over all columns, bcs 0. unpacked_a: rows of A, adjacent along k
    and of the accumulator's type, are read where they lie. triangle: only the tiles on and below
    the diagonal, with workers over rows alone.
    """
    MR, NR, acc, size = shape.rows, shape.columns, shape.dtype, shape.dtype.size
    pack_a, pack_b, group = make_packs(shape, a_type, b_type, units)
    halves = in_halves(a_type, units)
    flip = units is not None and flips(a_type, units[0])
    surplus = make_surplus(shape, units if flip else None, unroll)
    panel_a, panel_b = units or (acc, acc)
    wide = panel_b.size
    write_back = make_store(shape, out) if program is None else make_write_back(shape, program)
    announce = make_announce(shape, program)
    reach = make_lower(MR) if triangle else every_column
    macro_kernel = make_macro_kernel(shape, write_back, unroll, flip, units, announce, halves,
                                     unpacked_a, reach, out)  # fmt: skip
    start = triangle_start if triangle else share_start
    rows_of_k = shape.dtype.components if units else 1

    def rows_of_values(depth):
        return (depth + group - 1) // group * rows_of_k

    # How many rows a panel has for `depth` values of k.
    rows_of_panel = rows_of if halves else rows_of_values
    change_a = None if program is None else program.pack_a
    change_b = None if program is None else program.pack_b
    prepare_a = make_prepare(MR, shape.lanes, change_a)
    prepare_b = make_prepare(NR, shape.lanes, change_b)
    if change_a is not None and not change_a.reads_acc:
        pack_a = pack_nothing
    if change_b is not None and not change_b.reads_acc:
        pack_b = pack_nothing

    if unpacked_a:

        def block_of_a(packed_a, a, ars, acs, ic, pc, height, depth, row, batch, extra):
            return recast(shift(a, ic * ars + pc * acs), panel_a)
    else:

        def block_of_a(packed_a, a, ars, acs, ic, pc, height, depth, row, batch, extra):
            pack_a(packed_a, shift(a, ic * ars + pc * acs), ars, acs, height, depth)
            prepare_a(packed_a, height, depth, row, pc, batch, extra)
            return packed_a

    fresh = -1 if resume else 0  # the block of K that begins a chain

    # All of B as one block is packed once for all blocks of rows, where nothing else changes it.
    keep_b = shape.block > 1 and change_b is None and not triangle

    def packed_panels(packed_b, b, brs, bcs, pc, beside, column, width, depth, kb, kept):
        pack_b(packed_b, shift(b, pc * brs + beside * bcs), bcs, brs, width, depth)
        return packed_b

    def ready_panels(packed_b, b, brs, bcs, pc, beside, column, width, depth, kb, kept):
        return recast(shift(b, pc // group * brs + column * kb * wide), panel_b)

    def kept_panels(packed_b, b, brs, bcs, pc, beside, column, width, depth, kb, kept):
        if not kept:
            pack_b(packed_b, shift(b, pc * brs + beside * bcs), bcs, brs, width, depth)
        return packed_b

    panels_of_b = ready_panels if ready_b else kept_panels if keep_b else packed_panels

    def rectangle(a, b, c, home, m, n, k, ars, acs, brs, bcs, rs, cs, hrs, mc, kc, nc, band,
                  packed_a, packed_b, first_row, first_column, batch, extra):  # fmt: skip
        blocks = max(1, (k + kc - 1) // kc)
        sums = recast(shift(packed_b, nc * ((kc + group - 1) // group) * size + 1024), acc)
        for left in range(0, n, band):
            beyond = min(band, n - left)
            for ic in range(0, m, mc):
                height = min(mc, m - ic)
                columns = reach(beyond, first_row + ic + height - MR, first_column + left)
                if hrs == 0:
                    resting = recast(shift(c, ic * rs + left * cs), acc)
                    resting_rs = rs
                else:
                    resting = home
                    resting_rs = hrs
                for block in range(blocks):
                    pc = block * kc
                    depth = min(kc, k - pc)
                    kb = rows_of_panel(depth)
                    rows = block_of_a(packed_a, a, ars, acs, ic, pc, height, depth,
                                      first_row + ic, batch, extra)  # fmt: skip
                    for jc in range(0, columns, nc):
                        width = min(nc, columns - jc)
                        beside = left + jc
                        first = first_column + beside
                        kept = ic > 0 and blocks == 1 and n <= nc
                        panels = panels_of_b(packed_b, b, brs, bcs, pc, beside, first, width,
                                             depth, kb, kept)  # fmt: skip
                        prepare_b(panels, width, depth, first, pc, batch, extra)
                        if flip:
                            surplus(sums, panels, width, kb)
                        macro_kernel(
                            rows,
                            ars,
                            packed_a,
                            panels,
                            sums,
                            shift(resting, jc * size),
                            resting_rs,
                            shift(c, ic * rs + beside * cs),
                            rs,
                            cs,
                            height,
                            width,
                            kb,
                            block == fresh,
                            block == blocks - 1,
                            first_row + ic,
                            first_column + beside,
                            batch,
                            extra,
                        )

    def blocked(
        a, b, c, space, m, n, k, ars, acs, brs, bcs, rs, cs, hrs, mc, kc, nc, band,
        a_room, b_room, worker_room, batch, dims, team_b, team_m, team_n, extra, worker,
    ):  # fmt: skip
        """One worker's share of out = a @ b over a batch.

        a (m x k), b (k x n), c (m x n): first matrices; ?rs, ?cs: row and column steps in bytes;
        hrs: row step of the scratch home, 0 where the home is `out`; mc, kc, nc, band: block
        sizes; space: scratch, `worker_room` bytes a worker: packed A (`a_room`), packed B
        (`b_room`), home. batch: number of matrices, laid out by `dims` (see batch.py). The team
        is team_b x team_m x team_n workers. extra: the epilogue's operands.
        """
        mine = shift(space, worker * worker_room)
        packed_a = recast(mine, panel_a)
        packed_b = recast(shift(mine, a_room), panel_b)
        home = recast(shift(mine, a_room + b_room), acc)
        share_b = worker // (team_m * team_n)
        top = start(m, MR, team_m, worker // team_n % team_m)
        left = share_start(n, NR, team_n, worker % team_n)
        rows = start(m, MR, team_m, worker // team_n % team_m + 1) - top
        columns = share_start(n, NR, team_n, worker % team_n + 1) - left
        if rows > 0 and columns > 0:
            for index in range(share_b * batch // team_b, (share_b + 1) * batch // team_b):
                at_a = shift(a, top * ars + offset(dims, index, 8))
                at_b = shift(b, left * bcs + offset(dims, index, 16))
                at_c = shift(c, top * rs + left * cs + offset(dims, index, 24))
                rectangle(
                    at_a, at_b, at_c, home, rows, columns, k, ars, acs, brs, bcs, rs, cs, hrs,
                    mc, kc, nc, band, packed_a, packed_b, top, left, index, extra,
                )  # fmt: skip

    return blocked


def share_start(extent, unit, shares, index):
    """Where share `index` of `shares` begins: whole units, the last share takes what is left."""
    each = ((extent + unit - 1) // unit + shares - 1) // shares * unit
    return min(extent, index * each)


def triangle_start(extent, unit, shares, index):
    """As share_start for the rows of a triangle: shares of one area."""
    start = 0
    while start < extent and start * start * shares < index * extent * extent:
        start += unit
    return min(start, extent)
