"""What needs the layout of a float: format, sign, rounding to integers and to few digits."""

from __future__ import annotations

import functools

from .arithmetic import (
    absolute,
    bit_and,
    bit_or,
    bits_of,
    fill,
    from_bits,
    less,
    negate,
    round_even,
    select,
    subtract,
)
from .dtypes import DType, float32, float64


class Format:
    """The layout of a float type: exponent and fraction widths, and what follows from them."""

    def __init__(self, dtype: DType):
        self.dtype = dtype
        self.fraction = 23 if dtype is float32 else 52
        self.bias = 127 if dtype is float32 else 1023
        self.magic = 1.5 * 2.0**self.fraction
        self.magic_bits = (self.bias + self.fraction << self.fraction) + (1 << self.fraction - 1)
        self.sign = -(1 << dtype.bits - 1)
        self.half = 1 << 10  # added to an exponent so that it can be halved without its sign
        # ln 2 in two parts; n times the first is exact.
        self.ln2 = (
            (0.693145751953125, 1.428606765330187e-06)
            if dtype is float32
            else (0.6931471805582987, 1.6465949582897082e-12)
        )


def format_of(dtype: DType) -> Format:
    if dtype.name not in ("float32", "float64"):
        raise TypeError(f"mathematical functions exist for float32 and float64, not {dtype}")
    return Format({"float32": float32, "float64": float64}[dtype.name])


def copy_sign(y, x):
    """|y| has the sign of x set: y must be >= 0 or NaN."""
    sign = bit_and(bits_of(x), bits_of(fill(x, -0.0)))
    return from_bits(bit_or(bits_of(y), sign))


@functools.cache
def make_nearest(dtype: DType):
    """The nearest integer, ties to even."""
    return round_even


@functools.cache
def make_floor(dtype: DType):
    """The largest integer <= x."""
    nearest = make_nearest(dtype)

    def floor(x):
        r = nearest(x)
        return select(less(x, r), subtract(r, fill(x, 1.0)), r)

    return floor


@functools.cache
def make_ceil(dtype: DType):
    """The smallest integer >= x."""
    floor = make_floor(dtype)

    def ceil(x):
        return negate(floor(negate(x)))

    return ceil


@functools.cache
def make_trunc(dtype: DType):
    """x without its fraction."""
    floor = make_floor(dtype)

    def trunc(x):
        return copy_sign(floor(absolute(x)), x)

    return trunc


@functools.cache
def make_significant(dtype: DType, bits: int):
    """x with its first `bits` fraction bits and zeros after: rounded toward zero; 0 bits leave
    a power of two."""
    mask = -(1 << format_of(dtype).fraction - bits)

    def significant(x):
        i = bits_of(x)
        return from_bits(bit_and(i, fill(i, mask)))

    return significant
