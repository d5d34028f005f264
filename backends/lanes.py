"""Typing rules and LLVM vector IR of microkernels/arithmetic.py, the same for every target."""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models, register_default

from gemm.microkernels import arithmetic as words
from gemm.microkernels.dtypes import DTYPES

from . import values
from .conversions import splat
from .values import Lanes, constant

I32, I64 = ir.IntType(32), ir.IntType(64)
_TWIN = {"float32": "int32", "float64": "int64", "int32": "float32", "int64": "float64"}


class Mask(types.Type):
    """One truth value a lane."""

    def __init__(self, lanes: int):
        self.lanes = lanes
        self.llvm = ir.VectorType(ir.IntType(1), lanes)
        super().__init__(f"Mask({lanes})")


@register_default(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


def _same(a, *rest):
    for b in rest:
        if b != a:
            raise TypeError(f"lanes of one type expected, got {a} and {b}")
    return a


def _mask(a, b):
    return Mask(_same(a, b).lanes)


def _twin(a):
    return Lanes(DTYPES[_TWIN[a.dtype.name]], a.lanes)


RULES: dict[Callable, Callable] = {
    words.table_pointer: lambda t, s, d: values.Pointer(constant(d), t.space),
    words.table_integer: lambda t, s: types.intp,
    words.table_number: lambda t, s, d: values.scalar(constant(d)),
    words.fill: lambda v, x: v,
    words.ramp: lambda n, d: Lanes(constant(d), constant(n)),
    words.add: _same,
    words.subtract: _same,
    words.multiply: _same,
    words.divide: _same,
    words.negate: lambda a: a,
    words.absolute: lambda a: a,
    words.fused: _same,
    words.reciprocal: lambda a: a,
    words.square_root: lambda a: a,
    words.round_even: lambda a: a,
    words.less: _mask,
    words.less_equal: _mask,
    words.equal: _mask,
    words.both: _same,
    words.either: _same,
    words.opposite: lambda k: k,
    words.select: lambda k, a, b: _same(a, b),
    words.bits_of: _twin,
    words.from_bits: _twin,
    words.bit_and: _same,
    words.bit_or: _same,
    words.bit_xor: _same,
    words.shift_left: lambda a, n: a,
    words.shift_right: lambda a, n: a,
    words.to_float: lambda a, d: Lanes(constant(d), a.lanes),
    words.to_integer: lambda a, d: Lanes(constant(d), a.lanes),
    words.evens: _same,
    words.odds: _same,
    words.interleave_low: _same,
    words.interleave_high: _same,
}


def _slot(context, builder, sig, args):
    at = context.cast(builder, args[1], sig.args[1], types.intp)
    p = builder.gep(args[0], [builder.mul(at, ir.Constant(I64, 8))])
    return builder.load(builder.bitcast(p, I64.as_pointer(sig.args[0].space)), align=8)


def lower_table_pointer(context, builder, sig, args):
    kind = ir.IntType(8).as_pointer(sig.return_type.space)
    return builder.inttoptr(_slot(context, builder, sig, args), kind)


def lower_table_number(context, builder, sig, args):
    at = context.cast(builder, args[1], sig.args[1], types.intp)
    p = builder.gep(args[0], [builder.mul(at, ir.Constant(I64, 8))])
    kind = values.LLVM_SCALARS[constant(sig.args[2]).name]
    return builder.load(builder.bitcast(p, kind.as_pointer(sig.args[0].space)), align=8)


def lower_fill(context, builder, sig, args):
    dtype, kind = sig.args[0].dtype, sig.args[0].llvm
    x = context.cast(builder, args[1], sig.args[1], types.unliteral(sig.args[1]))
    x = context.cast(builder, x, types.unliteral(sig.args[1]), values.scalar(dtype.real))
    one = builder.insert_element(ir.Constant(kind, None), x, ir.Constant(I32, 0))
    # A real number in complex lanes: lane 1 of `one` is the imaginary zero.
    order = [lane % dtype.components for lane in range(kind.count)]
    mask = ir.Constant(ir.VectorType(I32, kind.count), order)
    return builder.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)


def lower_ramp(context, builder, sig, args):
    return ir.Constant(sig.return_type.llvm, list(range(sig.return_type.lanes)))


def _is_float(vector) -> bool:
    return not isinstance(vector.element, ir.IntType)


def _arithmetic(of_floats, of_integers):
    def lower(context, builder, sig, args):
        name = of_floats if _is_float(sig.args[0].llvm) else of_integers
        return getattr(builder, name)(*args)

    return lower


def lower_multiply(context, builder, sig, args):
    a, b = args
    if sig.args[0].dtype.kind != "c":
        return builder.fmul(a, b) if _is_float(a.type) else builder.mul(a, b)
    count = a.type.count
    nothing = ir.Constant(a.type, ir.Undefined)

    def pick(v, order):
        return builder.shuffle_vector(v, nothing, ir.Constant(ir.VectorType(I32, count), order))

    every = range(count)
    real, imaginary = (pick(a, [i & ~1 | part for i in every]) for part in (0, 1))
    straight = builder.fmul(real, b)
    crossed = builder.fmul(imaginary, pick(b, [i ^ 1 for i in every]))
    order = [i + count * (i & 1) for i in every]
    less, more = builder.fsub(straight, crossed), builder.fadd(straight, crossed)
    return builder.shuffle_vector(less, more, ir.Constant(ir.VectorType(I32, count), order))


def lower_negate(context, builder, sig, args):
    return builder.fneg(args[0]) if _is_float(args[0].type) else builder.neg(args[0])


def _intrinsic(builder, name, result, arguments):
    kind = ir.FunctionType(result, [a.type for a in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def _mangle(vector) -> str:
    element = {ir.FloatType(): "f32", ir.DoubleType(): "f64"}.get(vector.element)
    return f"v{vector.count}{element or 'i' + str(vector.element.width)}"


def lower_absolute(context, builder, sig, args):
    (a,) = args
    if _is_float(a.type):
        return _intrinsic(builder, f"llvm.fabs.{_mangle(a.type)}", a.type, [a])
    return builder.select(builder.icmp_signed("<", a, splat(a.type, 0)), builder.neg(a), a)


def lower_fused(context, builder, sig, args):
    a, b, c = args
    if not _is_float(a.type):
        return builder.add(builder.mul(a, b), c)
    if not context.machine_target.fused:
        return builder.fadd(builder.fmul(a, b), c)
    return _intrinsic(builder, f"llvm.fma.{_mangle(a.type)}", a.type, [a, b, c])


def lower_reciprocal(context, builder, sig, args):
    return builder.fdiv(ir.Constant(args[0].type, [1.0] * args[0].type.count), args[0])


def lower_square_root(context, builder, sig, args):
    return _intrinsic(builder, f"llvm.sqrt.{_mangle(args[0].type)}", args[0].type, args)


def _compare(relation):
    def lower(context, builder, sig, args):
        if _is_float(args[0].type):
            return builder.fcmp_ordered(relation, *args)
        return builder.icmp_signed(relation, *args)

    return lower


def lower_opposite(context, builder, sig, args):
    return builder.xor(args[0], splat(args[0].type, 1))


def lower_select(context, builder, sig, args):
    return builder.select(*args)


def lower_bits(context, builder, sig, args):
    return builder.bitcast(args[0], sig.return_type.llvm)


def _shift(name):
    def lower(context, builder, sig, args):
        return getattr(builder, name)(args[0], splat(args[0].type, constant(sig.args[1])))

    return lower


def lower_to_float(context, builder, sig, args):
    if _is_float(args[0].type):
        kind = sig.return_type.llvm
        if kind == args[0].type:
            return args[0]
        wider = sig.return_type.dtype.bits > sig.args[0].dtype.bits
        return builder.fpext(args[0], kind) if wider else builder.fptrunc(args[0], kind)
    return builder.sitofp(args[0], sig.return_type.llvm)


def lower_to_integer(context, builder, sig, args):
    kind, x = sig.return_type.llvm, args[0]
    if not _on_x86(context):
        name = f"llvm.fptosi.sat.{_mangle(kind)}.{_mangle(x.type)}"
        return _intrinsic(builder, name, kind, args)
    # No instruction of x86, and LLVM takes it apart lane by lane.
    bits, digits = kind.element.width, 24 if x.type.element == ir.FloatType() else 53
    end = 2.0 ** (bits - 1)
    low, high = splat(x.type, -end), splat(x.type, end - max(1.0, 2.0 ** (bits - 1 - digits)))
    above = builder.select(builder.fcmp_ordered(">", x, low), x, low)
    inside = builder.select(builder.fcmp_ordered("<", above, high), above, high)
    whole = builder.fptosi(inside, kind)
    beyond = builder.fcmp_ordered(">=", x, splat(x.type, end))
    whole = builder.select(beyond, splat(kind, (1 << bits - 1) - 1), whole)
    return builder.select(builder.fcmp_unordered("uno", x, x), splat(kind, 0), whole)


def _on_x86(context) -> bool:
    return context.machine_target.triple.startswith("x86_64")


def lower_round_even(context, builder, sig, args):
    """One instruction where the target has it; else 2^fraction is added and taken off again."""
    x, kind = args[0], args[0].type
    features = context.machine_target.features.split(",")
    if {"+sse4.2", "+neon"} & set(features):
        return _intrinsic(builder, f"llvm.roundeven.{_mangle(kind)}", kind, [x])
    element = kind.element if isinstance(kind, ir.VectorType) else kind
    whole = splat(kind, 2.0 ** (23 if element == ir.FloatType() else 52))
    size = _intrinsic(builder, f"llvm.fabs.{_mangle(kind)}", kind, [x])
    rounded = builder.fsub(builder.fadd(size, whole), whole)
    rounded = _intrinsic(builder, f"llvm.copysign.{_mangle(kind)}", kind, [rounded, x])
    return builder.select(builder.fcmp_ordered("<", size, whole), rounded, x)


def _shuffle(order_of):
    def lower(context, builder, sig, args):
        order = [order_of(lane, sig.args[0].lanes) for lane in range(sig.args[0].lanes)]
        mask = ir.Constant(ir.VectorType(I32, len(order)), order)
        return builder.shuffle_vector(*args, mask)

    return lower


LOWERINGS: dict[Callable, Callable] = {
    words.table_pointer: lower_table_pointer,
    words.table_integer: _slot,
    words.table_number: lower_table_number,
    words.fill: lower_fill,
    words.ramp: lower_ramp,
    words.add: _arithmetic("fadd", "add"),
    words.subtract: _arithmetic("fsub", "sub"),
    words.multiply: lower_multiply,
    words.divide: _arithmetic("fdiv", "sdiv"),
    words.negate: lower_negate,
    words.absolute: lower_absolute,
    words.fused: lower_fused,
    words.reciprocal: lower_reciprocal,
    words.square_root: lower_square_root,
    words.less: _compare("<"),
    words.less_equal: _compare("<="),
    words.equal: _compare("=="),
    words.both: lambda context, builder, sig, args: builder.and_(*args),
    words.either: lambda context, builder, sig, args: builder.or_(*args),
    words.opposite: lower_opposite,
    words.select: lower_select,
    words.bits_of: lower_bits,
    words.from_bits: lower_bits,
    words.bit_and: lambda context, builder, sig, args: builder.and_(*args),
    words.bit_or: lambda context, builder, sig, args: builder.or_(*args),
    words.bit_xor: lambda context, builder, sig, args: builder.xor(*args),
    words.shift_left: _shift("shl"),
    words.shift_right: _shift("lshr"),
    words.to_float: lower_to_float,
    words.to_integer: lower_to_integer,
    words.round_even: lower_round_even,
    words.evens: _shuffle(lambda lane, n: 2 * lane),
    words.odds: _shuffle(lambda lane, n: 2 * lane + 1),
    words.interleave_low: _shuffle(lambda lane, n: lane // 2 + n * (lane & 1)),
    words.interleave_high: _shuffle(lambda lane, n: (n + lane) // 2 + n * (n + lane & 1)),
}
