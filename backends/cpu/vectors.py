"""Vectors between memory and registers as LLVM IR: what the lowerings of the words are made of."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from gemm.microkernels.dtypes import DType

from .. import conversions, values
from ..conversions import splat

I8, I32, I64 = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def int64(value):
    return ir.Constant(I64, value)


def advance(builder, p, nbytes):
    return builder.gep(p, [nbytes if not isinstance(nbytes, int) else int64(nbytes)])


def reserve(builder, kind):
    """Room on the stack; Numba's `alloca_once` would also fill it with zeros each time."""
    with builder.goto_entry_block():
        return builder.alloca(kind)


def raw_type(dtype: DType):
    """LLVM's type of one element as it lies in memory."""
    if dtype.name in values.LLVM_SCALARS:
        return values.LLVM_SCALARS[dtype.name]
    return ir.IntType(dtype.bits)


def read(builder, p, dtype: DType, lanes: int = 0):
    """`lanes` elements (0: one scalar) at p, widened to their compute type."""
    kind = values.vector_type(dtype, lanes) if dtype.kind == "c" else raw_type(dtype)
    if lanes and dtype.kind != "c":
        kind = ir.VectorType(kind, lanes)
    raw = builder.load(builder.bitcast(p, kind.as_pointer()), align=1)
    return widen(builder, raw, dtype)


def widen(builder, raw, dtype: DType):
    """A stored scalar or vector as its compute type."""
    if dtype.name == dtype.compute or dtype.kind == "c":
        return raw
    target = values.LLVM_SCALARS[dtype.compute]
    wide = conversions.like(target, raw.type)
    if dtype.kind == "f":
        if dtype.name in conversions.NARROW:
            raw = conversions.widen(builder, raw, dtype.name)
        return raw if raw.type == wide else builder.fpext(raw, wide)
    if raw.type == wide:
        return raw
    if target in (ir.FloatType(), ir.DoubleType()):
        # An integer operand that a packing program makes a float.
        return builder.sitofp(raw, wide) if dtype.kind == "i" else builder.uitofp(raw, wide)
    return builder.sext(raw, wide) if dtype.kind == "i" else builder.zext(raw, wide)


def narrow(builder, value, dtype: DType):
    """A computed scalar or vector as it is stored."""
    if dtype.kind == "c":
        return value
    if dtype.kind == "f":
        if dtype.name in conversions.NARROW:
            return conversions.narrow(builder, value, dtype.name)
        kind = conversions.like(values.LLVM_SCALARS[dtype.name], value.type)
        return value if kind == value.type else builder.fptrunc(value, kind)
    if dtype.kind == "b":
        truth = builder.icmp_unsigned("!=", value, splat(value.type, 0))
        return builder.zext(truth, conversions.like(I8, value.type))
    kind = conversions.like(ir.IntType(dtype.bits), value.type)
    return value if kind == value.type else builder.trunc(value, kind)


def write(builder, p, value, dtype: DType):
    raw = narrow(builder, value, dtype)
    builder.store(raw, builder.bitcast(p, raw.type.as_pointer()), align=1)


def spread(builder, scalar, lanes: int):
    """A scalar in every lane."""
    kind = ir.VectorType(scalar.type, lanes)
    one = builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
    zeros = ir.Constant(ir.VectorType(I32, lanes), [0] * lanes)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), zeros)


def spread_element(builder, p, dtype: DType, lanes: int):
    """The element at p, widened, in every lane (complex: the pair re, im in every pair)."""
    if dtype.kind != "c":
        return spread(builder, read(builder, p, dtype), lanes)
    pair = read(builder, p, dtype, 1)
    order = ir.Constant(ir.VectorType(I32, 2 * lanes), [0, 1] * lanes)
    return builder.shuffle_vector(pair, ir.Constant(pair.type, ir.Undefined), order)


def has_masked_moves(context, dtype: DType) -> bool:
    features = context.machine_target.features.split(",")
    return dtype.name == dtype.compute and "+avx2" in features


def lane_mask(builder, lanes: int, n):
    index = ir.Constant(ir.VectorType(I32, lanes), list(range(lanes)))
    limit = spread(builder, builder.trunc(n, I32), lanes)
    return builder.icmp_signed("<", index, limit)


def _masked(builder, name, result, arguments):
    kind = ir.FunctionType(result, [a.type for a in arguments])
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    return builder.call(function, arguments)


def _mangle(vector):
    letter = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(vector.element)
    return f"v{vector.count}{letter or 'i' + str(vector.element.width)}"


def read_edge(context, builder, p, dtype: DType, lanes: int, n):
    """The first n lanes (1 <= n < lanes) from p; the rest repeat the last of them."""
    back = builder.mul(builder.sub(n, int64(1)), int64(dtype.size))
    filled = spread_element(builder, advance(builder, p, back), dtype, lanes)
    if has_masked_moves(context, dtype):
        vector = filled.type
        name = f"llvm.masked.load.{_mangle(vector)}.p0"
        typed = builder.bitcast(p, vector.as_pointer())
        mask = lane_mask(builder, vector.count, builder.mul(n, int64(dtype.components)))
        return _masked(builder, name, vector, [typed, ir.Constant(I32, 1), mask, filled])
    slot = reserve(builder, filled.type)
    builder.store(filled, slot, align=1)
    base = builder.bitcast(slot, values.BYTE_POINTER)
    with cgutils.for_range(builder, n, intp=I64) as loop:
        x = read(builder, advance(builder, p, builder.mul(loop.index, int64(dtype.size))), dtype, 1)
        at = advance(builder, base, builder.mul(loop.index, int64(_bytes(x.type))))
        builder.store(x, builder.bitcast(at, x.type.as_pointer()), align=1)
    return builder.load(slot, align=1)


def _bytes(vector) -> int:
    width = {ir.FloatType(): 4, ir.DoubleType(): 8}.get(vector.element)
    return vector.count * (width or vector.element.width // 8)


def read_lanes(context, builder, p, dtype: DType, lanes: int, n):
    """As the word load_lanes: full loads where n >= lanes, else the edge."""
    if isinstance(n, ir.Constant) and n.constant >= lanes:
        return read(builder, p, dtype, lanes)
    full = builder.icmp_signed(">=", n, int64(lanes))
    with builder.if_else(full, likely=True) as (then, otherwise):
        with then:
            whole = read(builder, p, dtype, lanes)
            from_full = builder.block
        with otherwise:
            part = read_edge(context, builder, p, dtype, lanes, n)
            from_edge = builder.block
    out = builder.phi(whole.type)
    out.add_incoming(whole, from_full)
    out.add_incoming(part, from_edge)
    return out


def read_raw(builder, p, dtype: DType, lanes: int):
    """`lanes` elements at p as they lie in memory; real types."""
    kind = ir.VectorType(raw_type(dtype), lanes)
    return builder.load(builder.bitcast(p, kind.as_pointer()), align=1)


def read_between(context, builder, p, dtype: DType, lanes: int, mask, bounds, outside):
    """Lanes bounds[0] <= j < bounds[1] from p, those that `mask` has, and the others of `outside`;
    nothing else is read. All as they lie in memory.
    """
    features = context.machine_target.features.split(",")
    if has_masked_moves(context, dtype) or "+avx512bw" in features:
        name = f"llvm.masked.load.{_mangle(outside.type)}.p0"
        typed = builder.bitcast(p, outside.type.as_pointer())
        return _masked(builder, name, outside.type, [typed, ir.Constant(I32, 1), mask, outside])
    slot = reserve(builder, outside.type)
    builder.store(outside, slot, align=1)
    base = builder.bitcast(slot, values.BYTE_POINTER)
    low, high = bounds
    low = builder.select(builder.icmp_signed(">", low, int64(0)), low, int64(0))
    high = builder.select(builder.icmp_signed("<", high, int64(lanes)), high, int64(lanes))
    kind = outside.type.element.as_pointer()
    with cgutils.for_range_slice(builder, low, high, int64(1), intp=I64) as (j, _):
        offset = builder.mul(j, int64(dtype.size))
        x = builder.load(builder.bitcast(advance(builder, p, offset), kind), align=1)
        builder.store(x, builder.bitcast(advance(builder, base, offset), kind), align=1)
    return builder.load(slot, align=1)


def write_lanes(context, builder, p, vector, dtype: DType, n):
    """As the word store_lanes, but n <= 0 writes nothing."""
    lanes = vector.type.count // dtype.components
    if isinstance(n, ir.Constant) and n.constant >= lanes:
        write(builder, p, vector, dtype)
        return
    full = builder.icmp_signed(">=", n, int64(lanes))
    with builder.if_else(full, likely=True) as (then, otherwise):
        with then:
            write(builder, p, vector, dtype)
        with otherwise:
            if has_masked_moves(context, dtype) and narrow(builder, vector, dtype) is vector:
                name = f"llvm.masked.store.{_mangle(vector.type)}.p0"
                typed = builder.bitcast(p, vector.type.as_pointer())
                count = builder.mul(n, int64(dtype.components))
                mask = lane_mask(builder, vector.type.count, count)
                _masked(builder, name, ir.VoidType(), [vector, typed, ir.Constant(I32, 1), mask])
            else:
                raw = narrow(builder, vector, dtype)
                write_each(builder, p, int64(dtype.size), raw, dtype, n)


def write_each(builder, p, step, raw, dtype: DType, n):
    """Elements 0..n of a stored vector, `step` bytes apart."""
    slot = reserve(builder, raw.type)
    builder.store(raw, slot, align=1)
    kind = ir.VectorType(raw.type.element, dtype.components).as_pointer()
    base = builder.bitcast(slot, values.BYTE_POINTER)
    with cgutils.for_range(builder, n, intp=I64) as loop:
        at = advance(builder, base, builder.mul(loop.index, int64(dtype.size)))
        x = builder.load(builder.bitcast(at, kind), align=1)
        to = advance(builder, p, builder.mul(loop.index, step))
        builder.store(x, builder.bitcast(to, kind), align=1)


def multiply_add(context, builder, a, b, c):
    """a * b + c: fused where the target fuses, rounded twice elsewhere, exact for integers."""
    element = c.type.element if isinstance(c.type, ir.VectorType) else c.type
    if isinstance(element, ir.IntType):
        return builder.add(builder.mul(a, b), c)
    if not context.machine_target.fused:
        return builder.fadd(builder.fmul(a, b), c)
    name = "llvm.fma." + (
        _mangle(c.type)
        if isinstance(c.type, ir.VectorType)
        else "f32"
        if element == ir.FloatType()
        else "f64"
    )
    kind = ir.FunctionType(c.type, [c.type] * 3)
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), [a, b, c])
