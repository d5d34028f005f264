"""Dot-product steps on units of several k, by the instruction a level has or by plain integers."""

from __future__ import annotations

from llvmlite import ir
from llvmlite.ir.types import Type
from numba.core import cgutils

from ..conversions import splat

I16, I32 = ir.IntType(16), ir.IntType(32)


class BFloat(Type):
    """LLVM's bfloat, which llvmlite does not name."""

    null = "0.0"
    intrinsic_name = "bf16"

    def __str__(self):
        return "bfloat"

    def __eq__(self, other):
        return isinstance(other, BFloat)

    def __hash__(self):
        return hash(BFloat)

    def format_constant(self, value):
        return str(value)


def has(features: str, *wanted: str) -> bool:
    present = features.split(",")
    return all(f"+{name}" in present for name in wanted)


def call(builder, name, result, arguments):
    kind = ir.FunctionType(result, [x.type for x in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


WIDTHS = {"float": 32, "i32": 32}


def in_order(context, builder, x):
    """x, opaque to the compiler: free to regroup an integer chain, it would hold the products of
    several steps at once and spill accumulators. Costs no instruction."""
    return _opaque(context, builder, x, "", False)


def hold(context, builder, x):
    """The same, and loads that follow stay behind it: the compiler would begin with all loads of a
    long straight stretch and spill what they bring."""
    return _opaque(context, builder, x, ",~{memory}", True)


def _opaque(context, builder, x, clobbers: str, side_effect: bool):
    if (
        not context.machine_target.triple.startswith("x86_64")
        or x.type.count * WIDTHS.get(str(x.type.element), 64) < 128
    ):
        return x
    register = "v" if has(context.machine_target.features, "avx512f") else "x"
    kind = ir.FunctionType(x.type, [x.type])
    return builder.asm(kind, "", f"={register},0{clobbers}", [x], side_effect=side_effect)


def accumulate(context, builder, unit: str, a, b, acc):
    """acc plus the products of the units of a and b, lane by lane."""
    features = context.machine_target.features
    lanes = acc.type.count
    bits = lanes * 32
    if unit == "bfloat16x2":
        kind = ir.VectorType(BFloat(), 2 * lanes)
        pair = [builder.bitcast(x, kind) for x in (a, b)]
        return call(builder, f"llvm.x86.avx512bf16.dpbf16ps.{bits}", acc.type, [acc, *pair])
    if unit == "int8x4":
        kind = ir.VectorType(ir.IntType(8), 4 * lanes)
        quads = [builder.bitcast(x, kind) for x in (a, b)]
        return call(builder, f"llvm.x86.avx512.vpdpbusd.{bits}", acc.type, [acc, *quads])
    kind = ir.VectorType(I16, 2 * lanes)
    name = None
    if has(features, "avx512vnni") and bits == 512:
        halves = [builder.bitcast(x, kind) for x in (a, b)]
        return call(builder, f"llvm.x86.avx512.vpdpwssd.{bits}", acc.type, [acc, *halves])
    if context.machine_target.triple.startswith("x86_64"):
        name = {128: "sse2.pmadd.wd", 256: "avx2.pmadd.wd", 512: "avx512.pmaddw.d.512"}.get(bits)
    if name is not None:
        halves = [builder.bitcast(x, kind) for x in (a, b)]
        product = call(builder, f"llvm.x86.{name}", acc.type, halves)
        return in_order(context, builder, builder.add(acc, product))
    sixteen = splat(acc.type, 16)
    for part in ("low", "high"):
        x, y = (
            builder.ashr(builder.shl(v, sixteen) if part == "low" else v, sixteen) for v in (a, b)
        )
        acc = builder.add(acc, builder.mul(x, y))
    return acc
