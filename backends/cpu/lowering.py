"""The vocabulary as LLVM vector IR. Widths and features come from the target, nothing else.

Every access states an alignment of one byte, since operands may lie anywhere; the machines
served here load unaligned vectors at full speed. Edges are decided at run time, and a constant
count folds the decision away.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from gemm.microkernels import vocabulary as words
from gemm.microkernels.dtypes import DType

from .. import values
from ..conversions import splat
from . import address_lowering, dots, window_lowering
from .vectors import (
    I32,
    advance,
    int64,
    multiply_add,
    narrow,
    raw_type,
    read,
    read_lanes,
    reserve,
    spread,
    widen,
    write,
    write_each,
    write_lanes,
)

# -- memory --------------------------------------------------------------------------------------


def lower_shift(context, builder, sig, args):
    return advance(builder, args[0], args[1])


def lower_recast(context, builder, sig, args):
    return args[0]


def lower_load(context, builder, sig, args):
    return read(builder, args[0], sig.args[0].dtype)


def lower_store(context, builder, sig, args):
    from numba.core.types import unliteral

    value = context.cast(builder, args[1], sig.args[1], unliteral(sig.args[1]))
    write(builder, args[0], value, sig.args[0].dtype)


def lower_copy(context, builder, sig, args):
    kind = ir.IntType(sig.args[1].dtype.bits)
    raw = builder.load(builder.bitcast(args[1], kind.as_pointer()), align=1)
    builder.store(raw, builder.bitcast(args[0], kind.as_pointer()), align=1)


def _lower_prefetch(locality: int):
    def lower(context, builder, sig, args):
        kind = ir.FunctionType(ir.VoidType(), [args[0].type, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [args[0], *(ir.Constant(I32, x) for x in (0, locality, 1))])

    return lower


# -- lanes ---------------------------------------------------------------------------------------


def lower_load_lanes(context, builder, sig, args):
    p, lanes, n = sig.args
    n = context.cast(builder, args[2], n, _intp())
    return read_lanes(context, builder, args[0], p.dtype, values.constant(lanes), n)


def _intp():
    from numba.core.types import intp

    return intp


def lower_store_lanes(context, builder, sig, args):
    n = context.cast(builder, args[2], sig.args[2], _intp())
    write_lanes(context, builder, args[0], args[1], sig.args[0].dtype, n)


def lower_scatter_lanes(context, builder, sig, args):
    p, step, vector, n = args
    dtype = sig.args[0].dtype
    lanes = vector.type.count // dtype.components
    n = context.cast(builder, n, sig.args[3], _intp())
    step = context.cast(builder, step, sig.args[1], _intp())
    count = builder.select(builder.icmp_signed("<", n, int64(lanes)), n, int64(lanes))
    write_each(builder, p, step, narrow(builder, vector, dtype), dtype, count)


def lower_gather_lanes(context, builder, sig, args):
    dtype, lanes = sig.args[0].dtype, values.constant(sig.args[2])
    n = context.cast(builder, args[3], sig.args[3], _intp())
    step = context.cast(builder, args[1], sig.args[1], _intp())
    last = builder.sub(n, int64(1))
    out = ir.Constant(ir.VectorType(raw_type(dtype), lanes), ir.Undefined)
    for lane in range(lanes):
        index = builder.select(builder.icmp_signed("<", int64(lane), n), int64(lane), last)
        at = advance(builder, args[0], builder.mul(index, step))
        raw = builder.load(builder.bitcast(at, out.type.element.as_pointer()), align=1)
        out = builder.insert_element(out, raw, ir.Constant(I32, lane))
    if dtype.kind == "c":
        return builder.bitcast(out, values.vector_type(dtype, lanes))
    return widen(builder, out, dtype)


def lower_load_alternate(context, builder, sig, args):
    """Two vectors side by side, every other element of both; the second may lie beyond the end."""
    p, dtype, lanes = args[0], sig.args[0].dtype, values.constant(sig.args[1])
    n = context.cast(builder, args[2], sig.args[2], _intp())
    n = builder.select(builder.icmp_signed("<", n, int64(lanes)), n, int64(lanes))
    count = builder.sub(builder.add(n, n), int64(1))
    low = read_lanes(context, builder, p, dtype, lanes, count)
    rest = builder.sub(count, int64(lanes))
    some = builder.icmp_signed(">", rest, int64(0))
    # Where nothing is left the last element stands for it.
    start = builder.select(some, int64(lanes), builder.sub(count, int64(1)))
    at = advance(builder, p, builder.mul(start, int64(dtype.size)))
    high = read_lanes(context, builder, at, dtype, lanes, builder.select(some, rest, int64(1)))
    parts = dtype.components
    order = [parts * 2 * lane + part for lane in range(lanes) for part in range(parts)]
    mask = ir.Constant(ir.VectorType(I32, lanes * parts), order)
    return builder.shuffle_vector(low, high, mask)


def lower_broadcast(context, builder, sig, args):
    from numba.core.types import unliteral

    kind = unliteral(sig.args[0])
    value = context.cast(builder, args[0], sig.args[0], kind)
    return spread(builder, value, sig.return_type.lanes)


# -- tiles ---------------------------------------------------------------------------------------


def lower_tile_zeros(context, builder, sig, args):
    return ir.Constant(sig.return_type.llvm, None)


def _minus(builder, i, j: int):
    return int64(i.constant - j) if isinstance(i, ir.Constant) else builder.sub(i, int64(j))


def _is_whole(builder, shape, m, n):
    """Whether m x n is all of a tile: True where constants say so, else a condition."""
    conditions = [
        builder.icmp_signed(">=", extent, int64(whole))
        for extent, whole in ((m, shape.rows), (n, shape.columns))
        if not (isinstance(extent, ir.Constant) and extent.constant >= whole)
    ]
    if len(conditions) == 2:
        return builder.and_(*conditions)
    return conditions[0] if conditions else True


def lower_tile_load(context, builder, sig, args):
    tile, dtype = sig.return_type, sig.args[1].dtype
    shape = tile.shape
    p = args[1]
    step, m, n = (context.cast(builder, args[i], sig.args[i], _intp()) for i in (2, 3, 4))
    whole = _is_whole(builder, shape, m, n)
    if whole is True:
        return _load_whole(builder, tile, p, dtype, step)
    # Whole tiles are the rule and take no decision a row.
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then:
            fast, fast_end = _load_whole(builder, tile, p, dtype, step), builder.block
        with otherwise:
            slow = _load_edge(context, builder, tile, p, dtype, step, m, n)
            slow_end = builder.block
    out = builder.phi(tile.llvm)
    out.add_incoming(fast, fast_end)
    out.add_incoming(slow, slow_end)
    return out


def _load_whole(builder, tile, p, dtype: DType, step):
    shape, out = tile.shape, ir.Constant(tile.llvm, ir.Undefined)
    for i in range(shape.rows):
        row = advance(builder, p, builder.mul(int64(i), step))
        for v in range(shape.vectors):
            at = advance(builder, row, v * shape.lanes * dtype.size)
            vector = read(builder, at, dtype, shape.lanes)
            out = builder.insert_value(out, vector, i * shape.vectors + v)
    return out


def _load_edge(context, builder, tile, p, dtype: DType, step, m, n):
    """m x n elements; beyond them the last real row and the last real element of a row."""
    shape, out = tile.shape, ir.Constant(tile.llvm, ir.Undefined)
    for i in range(shape.rows):
        inside = builder.icmp_signed("<", int64(i), m)
        row = builder.select(inside, int64(i), builder.sub(m, int64(1)))
        at = advance(builder, p, builder.mul(row, step))
        for v in range(shape.vectors):
            column = v * shape.lanes
            if isinstance(n, ir.Constant):
                start = int64(min(column, n.constant - 1))
                left = _minus(builder, n, start.constant)
            else:
                # A vector wholly beyond n repeats the last real element.
                inside = builder.icmp_signed("<", int64(column), n)
                start = builder.select(inside, int64(column), builder.sub(n, int64(1)))
                left = builder.sub(n, start)
            here = advance(builder, at, builder.mul(start, int64(dtype.size)))
            vector = read_lanes(context, builder, here, dtype, shape.lanes, left)
            out = builder.insert_value(out, vector, i * shape.vectors + v)
    return out


def lower_tile_store(context, builder, sig, args):
    dtype, shape = sig.args[0].dtype, sig.args[2].shape
    p, t = args[0], args[2]
    step, m, n = (context.cast(builder, args[i], sig.args[i], _intp()) for i in (1, 3, 4))
    whole = _is_whole(builder, shape, m, n)
    if whole is True:
        _store_rows(context, builder, p, t, shape, dtype, step, int64(shape.rows), n)
        return
    with builder.if_else(whole, likely=True) as (then, otherwise):
        with then:
            extents = int64(shape.rows), int64(shape.columns)
            _store_rows(context, builder, p, t, shape, dtype, step, *extents)
        with otherwise:
            _store_rows(context, builder, p, t, shape, dtype, step, m, n)


def _store_rows(context, builder, p, t, shape, dtype: DType, step, m, n):
    done = builder.append_basic_block("stored")
    for i in range(shape.rows):
        if i and not (isinstance(m, ir.Constant) and m.constant > i):
            go_on = builder.append_basic_block("row")
            builder.cbranch(builder.icmp_signed("<", int64(i), m), go_on, done)
            builder.position_at_end(go_on)
        row = advance(builder, p, builder.mul(int64(i), step))
        for v in range(shape.vectors):
            column = v * shape.lanes
            vector = builder.extract_value(t, i * shape.vectors + v)
            at = advance(builder, row, column * dtype.size)
            write_lanes(context, builder, at, vector, dtype, _minus(builder, n, column))
    builder.branch(done)
    builder.position_at_end(done)


def lower_tile_spill(context, builder, sig, args):
    tile = sig.args[0]
    slot = reserve(builder, tile.llvm)
    for index in range(tile.llvm.count):
        vector = builder.extract_value(args[0], index)
        at = builder.gep(slot, [int64(0), int64(index)])
        builder.store(vector, at, align=1)
    return builder.bitcast(slot, values.BYTE_POINTER)


def lower_tile_transpose(context, builder, sig, args):
    """Butterfly of two-input shuffles: log2(lanes) stages on a square block."""
    shape = sig.args[0].shape
    n, parts = shape.lanes, shape.dtype.components
    if shape.rows != n or shape.vectors != 1 or n & (n - 1):
        raise TypeError(f"tile_transpose takes a square block of a power of two, got {shape}")
    rows = [builder.extract_value(args[0], i) for i in range(n)]

    def mask(pick):
        order = [parts * pick(lane) + part for lane in range(n) for part in range(parts)]
        return ir.Constant(ir.VectorType(I32, n * parts), order)

    block = 1
    while block < n:
        low = mask(lambda lane, b=block: lane if not lane & b else n + lane - b)
        high = mask(lambda lane, b=block: lane + b if not lane & b else n + lane)
        for i in range(n):
            if not i & block:
                a, b = rows[i], rows[i + block]
                rows[i] = builder.shuffle_vector(a, b, low)
                rows[i + block] = builder.shuffle_vector(a, b, high)
        block *= 2
    out = ir.Constant(sig.return_type.llvm, ir.Undefined)
    for i, row in enumerate(rows):
        out = builder.insert_value(out, row, i)
    return out


def lower_outer_accumulate(context, builder, sig, args):
    shape = sig.args[0].shape
    a_type, b_type = (sig.args[i].dtype for i in (1, 3))
    if shape.dtype.kind != "c":
        a_type, b_type = a_type.widened_to(shape.dtype), b_type.widened_to(shape.dtype)
    t, a, _, b, _ = args
    step = context.cast(builder, args[2], sig.args[2], _intp())
    n = context.cast(builder, args[4], sig.args[4], _intp())
    lanes, vectors = shape.lanes, shape.vectors
    grouped = sig.args[3].dtype.group > 1
    if grouped:
        a_type, b_type = sig.args[1].dtype, sig.args[3].dtype
    row = []
    for v in range(vectors):
        at = advance(builder, b, v * lanes * b_type.size)
        row.append(read_lanes(context, builder, at, b_type, lanes, _minus(builder, n, v * lanes)))

    def update(t, i, factor, row):
        for v, operand in enumerate(row):
            index = i * vectors + v
            old = builder.extract_value(t, index)
            new = multiply_add(context, builder, factor, operand, old)
            if shape.dtype.kind in "iu":
                new = dots.in_order(context, builder, new)
            t = builder.insert_value(t, new, index)
        return t

    def of_row(i, kind, offset=0):
        at = advance(builder, a, builder.mul(int64(i), step))
        x = read(builder, advance(builder, at, offset), kind)
        return spread(builder, x, lanes * shape.dtype.components)

    if grouped:
        for i in range(shape.rows):
            factor = of_row(i, a_type)
            for v, operand in enumerate(row):
                index = i * vectors + v
                old = builder.extract_value(t, index)
                new = dots.accumulate(context, builder, b_type.name, factor, operand, old)
                t = builder.insert_value(t, new, index)
        return t
    if sig.args[1].dtype.kind != "c":
        for i in range(shape.rows):
            t = update(t, i, of_row(i, a_type), row)
        return t
    part = shape.dtype.real
    for i in range(shape.rows):
        t = update(t, i, of_row(i, part), row)
    # (re, im) -> (-im, re): the second half of every chain.
    swap = [lane ^ 1 for lane in range(2 * lanes)]
    turned = []
    for operand in row:
        mask = ir.Constant(ir.VectorType(I32, 2 * lanes), swap)
        other = builder.shuffle_vector(operand, ir.Constant(operand.type, ir.Undefined), mask)
        keep = ir.Constant(ir.VectorType(I32, 2 * lanes), [
            lane if lane % 2 else 2 * lanes + lane for lane in range(2 * lanes)
        ])  # fmt: skip
        turned.append(builder.shuffle_vector(other, builder.fneg(other), keep))
    for i in range(shape.rows):
        t = update(t, i, of_row(i, part, part.size), turned)
    return t


def lower_rows_accumulate(context, builder, sig, args):
    t, a, _, x, _ = args
    shape, dtype = sig.args[0].shape, sig.args[1].dtype
    step = context.cast(builder, args[2], sig.args[2], _intp())
    n = context.cast(builder, args[4], sig.args[4], _intp())
    for i in range(shape.rows):
        at = advance(builder, a, builder.mul(int64(i), step))
        values_ = read_lanes(context, builder, at, dtype, shape.lanes, n)
        new = multiply_add(context, builder, values_, x, builder.extract_value(t, i))
        t = builder.insert_value(t, new, i)
    return t


def lower_tile_multiply_add(context, builder, sig, args):
    t, x, y = args
    for index in range(t.type.count):
        new = multiply_add(context, builder, builder.extract_value(t, index), x, y)
        t = builder.insert_value(t, new, index)
    return t


def lower_tile_add_shifted(context, builder, sig, args):
    t, u = args[:2]
    bits = values.constant(sig.args[2])
    for index in range(t.type.count):
        vector = builder.extract_value(u, index)
        moved = builder.shl(vector, splat(vector.type, bits))
        t = builder.insert_value(t, builder.add(builder.extract_value(t, index), moved), index)
    return t


def _choose(relation):
    def lower(context, builder, sig, args):
        i, j = (context.cast(builder, a, t, _intp()) for a, t in zip(args, sig.args, strict=True))
        return builder.select(builder.icmp_signed(relation, i, j), i, j)

    return lower


RULES = {**address_lowering.RULES, **window_lowering.RULES}
LOWERINGS = {
    **address_lowering.LOWERINGS,
    **window_lowering.LOWERINGS,
    words.shift: lower_shift,
    words.recast: lower_recast,
    words.load: lower_load,
    words.store: lower_store,
    words.copy: lower_copy,
    words.prefetch: _lower_prefetch(3),
    words.prefetch_far: _lower_prefetch(2),
    words.load_lanes: lower_load_lanes,
    words.store_lanes: lower_store_lanes,
    words.scatter_lanes: lower_scatter_lanes,
    words.gather_lanes: lower_gather_lanes,
    words.load_alternate: lower_load_alternate,
    words.broadcast: lower_broadcast,
    words.tile_zeros: lower_tile_zeros,
    words.tile_load: lower_tile_load,
    words.tile_store: lower_tile_store,
    words.tile_spill: lower_tile_spill,
    words.tile_transpose: lower_tile_transpose,
    words.outer_accumulate: lower_outer_accumulate,
    words.rows_accumulate: lower_rows_accumulate,
    words.tile_multiply_add: lower_tile_multiply_add,
    words.tile_add_shifted: lower_tile_add_shifted,
    words.lesser: _choose("<"),
    words.greater: _choose(">"),
}
