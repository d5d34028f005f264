"""Narrow float formats to and from float32, in LLVM integer operations.

The same code serves scalars and vectors, and every target: no instruction of a particular
machine and no library call is needed, and the bits are those of ml_dtypes and of IEEE 754.
Widening is exact. Narrowing rounds to nearest, ties to even.
"""

from __future__ import annotations

from llvmlite import ir

I32, F32 = ir.IntType(32), ir.FloatType()


def like(kind, width_of):
    """The scalar type `kind`, as a vector where `width_of` is one."""
    return ir.VectorType(kind, width_of.count) if isinstance(width_of, ir.VectorType) else kind


def splat(kind, value):
    """A constant of scalar or vector type."""
    if isinstance(kind, ir.VectorType):
        return ir.Constant(kind, [ir.Constant(kind.element, value)] * kind.count)
    return ir.Constant(kind, value)


def _bits(x: float) -> int:
    import struct

    return struct.unpack("<I", struct.pack("<f", x))[0]


# name -> exponent bits, mantissa bits, has infinities
FORMATS = {"float16": (5, 10, True), "float8_e5m2": (5, 2, True), "float8_e4m3fn": (4, 3, False)}

NARROW = ("bfloat16", *FORMATS)


def widen(builder, raw, name: str):
    """raw (i8/i16 scalar or vector) as float32."""
    kind = like(I32, raw.type)
    single = like(F32, raw.type)
    x = builder.zext(raw, kind)
    if name == "bfloat16":
        return builder.bitcast(builder.shl(x, splat(kind, 16)), single)
    exponent, mantissa, infinite = FORMATS[name]
    width = exponent + mantissa
    magnitude = builder.and_(x, splat(kind, (1 << width) - 1))
    sign = builder.shl(builder.lshr(x, splat(kind, width)), splat(kind, 31))
    # The bits as a float of the wrong bias; a multiplication by a power of two repairs it and
    # normalises subnormals, exactly.
    shifted = builder.bitcast(builder.shl(magnitude, splat(kind, 23 - mantissa)), single)
    scaled = builder.fmul(shifted, splat(single, 2.0 ** (127 - ((1 << (exponent - 1)) - 1))))
    value = builder.bitcast(scaled, kind)
    if infinite:
        special = builder.icmp_unsigned(
            ">=", magnitude, splat(kind, ((1 << exponent) - 1) << mantissa)
        )
        value = builder.select(special, builder.or_(value, splat(kind, 0x7F800000)), value)
    else:
        special = builder.icmp_unsigned("==", magnitude, splat(kind, (1 << width) - 1))
        value = builder.select(special, splat(kind, 0x7FC00000), value)
    return builder.bitcast(builder.or_(value, sign), single)


def narrow(builder, value, name: str):
    """float32 (scalar or vector) as raw bits i8/i16, rounded to nearest even."""
    kind = like(I32, value.type)
    bits = builder.bitcast(value, kind)
    if name == "bfloat16":
        odd = builder.and_(builder.lshr(bits, splat(kind, 16)), splat(kind, 1))
        rounded = builder.add(bits, builder.add(odd, splat(kind, 0x7FFF)))
        nan = builder.fcmp_unordered("uno", value, value)
        quiet = builder.or_(bits, splat(kind, 0x400000))
        out = builder.lshr(builder.select(nan, quiet, rounded), splat(kind, 16))
        return builder.trunc(out, like(ir.IntType(16), value.type))
    exponent, mantissa, infinite = FORMATS[name]
    width = exponent + mantissa
    bias = (1 << (exponent - 1)) - 1
    drop = 23 - mantissa
    magnitude = builder.and_(bits, splat(kind, 0x7FFFFFFF))
    sign = builder.shl(builder.lshr(bits, splat(kind, 31)), splat(kind, width))
    # Normal results: rebias, add half an ulp less one plus the kept low bit, drop.
    odd = builder.and_(builder.lshr(magnitude, splat(kind, drop)), splat(kind, 1))
    rebias = ((bias - 127) << 23) & 0xFFFFFFFF
    normal = builder.add(builder.add(magnitude, splat(kind, rebias + (1 << (drop - 1)) - 1)), odd)
    normal = builder.lshr(normal, splat(kind, drop))
    # Subnormal results: adding a power of two makes the FPU round at the right place.
    magic = 2.0 ** (1 - bias - mantissa + 23)
    single = like(F32, value.type)
    summed = builder.fadd(builder.bitcast(magnitude, single), splat(single, magic))
    subnormal = builder.sub(builder.bitcast(summed, kind), splat(kind, _bits(magic)))
    small = builder.icmp_unsigned("<", magnitude, splat(kind, _bits(2.0 ** (1 - bias))))
    out = builder.select(small, subnormal, normal)
    top = ((1 << exponent) - 1) << mantissa
    nan = builder.icmp_unsigned(">", magnitude, splat(kind, 0x7F800000))
    if infinite:
        out = builder.select(
            builder.icmp_unsigned(">", out, splat(kind, top)), splat(kind, top), out
        )
        huge = builder.icmp_unsigned(">=", magnitude, splat(kind, _bits(2.0 ** (bias + 1))))
        out = builder.select(huge, splat(kind, top), out)
        out = builder.select(nan, splat(kind, top | (1 << (mantissa - 1))), out)
    else:
        # No infinities: what rounds beyond the largest finite value is NaN, as in ml_dtypes.
        largest = (1 << width) - 1
        over = builder.icmp_unsigned(">", out, splat(kind, largest))
        out = builder.select(over, splat(kind, largest), out)
        huge = builder.icmp_unsigned(">=", magnitude, splat(kind, _bits(2.0 ** (bias + 2))))
        out = builder.select(builder.or_(huge, nan), splat(kind, largest), out)
    raw = ir.IntType(8 if width == 7 else 16)
    return builder.trunc(builder.or_(out, sign), like(raw, value.type))
