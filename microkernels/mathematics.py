"""exp, log, tanh, erf and their kin on lanes, written once in words: no C library on any target.

Every function is made for float32 or float64 and is exact at the edges of IEEE 754: infinities,
NaN, signed zeros, overflow to infinity, gradual underflow. With fused multiply-adds the bits are
the same on every target and in plain Python. Largest errors, in units in the last place, as
tests/epilogues/test_mathematics.py measures them against 60-digit arithmetic:

                float32   float64                           float32   float64
    exp           1.0       1.0          tanh                 2.5       2.5
    exp2          1.0       1.0          erf                  1.5       1.5
    log           1.0       1.0          sigmoid              2.5       2.5
    log2, log10   2.5       2.5          rsqrt                1.0       1.0
    log1p         3.0       3.0

Methods: argument reduction by Cody and Waite (1980) for exp; the atanh form of log as in Tang
(1990); erf beyond 1 as 1 - exp(log erfc). The coefficients are Chebyshev fits made with 60
digits (polynomials.py).
"""

from __future__ import annotations

import functools

from .arithmetic import (
    absolute,
    add,
    bit_xor,
    bits_of,
    both,
    divide,
    either,
    equal,
    fill,
    from_bits,
    fused,
    less,
    less_equal,
    multiply,
    negate,
    opposite,
    reciprocal,
    select,
    shift_left,
    shift_right,
    square_root,
    subtract,
    to_float,
)
from .dtypes import DType, float32
from .polynomials import ERF, ERFC, EXP, LOG, TANH, make_polynomial
from .rounding import (
    copy_sign,
    format_of,
    make_ceil,
    make_floor,
    make_nearest,
    make_trunc,
)

INFINITY, NAN = float("inf"), float("nan")
LOG2_E = 1.4426950408889634


@functools.cache
def make_scale(dtype: DType):
    """scale(p, z): p times 2^n, where z = n + 1.5 * 2^fraction; underflow rounds once."""
    form = format_of(dtype)
    fraction, bias, magic_bits, half = form.fraction, form.bias, form.magic_bits, form.half

    def scale(p, z):
        bits = bits_of(z)
        n = subtract(bits, fill(bits, magic_bits))
        first = shift_right(add(n, fill(n, 2 * half)), 1)
        first = subtract(first, fill(n, half))
        second = subtract(n, first)
        p = multiply(p, from_bits(shift_left(add(first, fill(n, bias)), fraction)))
        return multiply(p, from_bits(shift_left(add(second, fill(n, bias)), fraction)))

    return scale


@functools.cache
def make_exp(dtype: DType):
    """e^x."""
    form = format_of(dtype)
    polynomial, scale = make_polynomial(EXP[dtype.name]), make_scale(dtype)
    low, high = (-104.0, 89.0) if form.dtype is float32 else (-746.0, 710.0)
    magic, (ln2, ln2_low) = form.magic, form.ln2

    def exp(x):
        x = select(less(fill(x, high), x), fill(x, high), x)
        x = select(less(x, fill(x, low)), fill(x, low), x)
        z = fused(x, fill(x, LOG2_E), fill(x, magic))
        n = subtract(z, fill(x, magic))
        r = fused(n, fill(x, -ln2), x)
        r = fused(n, fill(x, -ln2_low), r)
        p = fused(multiply(r, r), polynomial(r), r)
        return scale(add(p, fill(x, 1.0)), z)

    return exp


@functools.cache
def make_exp2(dtype: DType):
    """2^x."""
    form = format_of(dtype)
    polynomial, scale = make_polynomial(EXP[dtype.name]), make_scale(dtype)
    low, high = (-151.0, 129.0) if form.dtype is float32 else (-1076.0, 1025.0)
    magic, ln2 = form.magic, sum(form.ln2)

    def exp2(x):
        x = select(less(fill(x, high), x), fill(x, high), x)
        x = select(less(x, fill(x, low)), fill(x, low), x)
        z = add(x, fill(x, magic))
        r = multiply(subtract(x, subtract(z, fill(x, magic))), fill(x, ln2))
        p = fused(multiply(r, r), polynomial(r), r)
        return scale(add(p, fill(x, 1.0)), z)

    return exp2


@functools.cache
def make_log(dtype: DType):
    """The natural logarithm: -inf at zero, NaN below."""
    form = format_of(dtype)
    polynomial = make_polynomial(LOG[dtype.name])
    fraction, (ln2, ln2_low) = form.fraction, form.ln2
    tiny = 2.0 ** (1 - form.bias)
    lift = 2.0 ** (fraction + 1)
    lifted = float(fraction + 1)
    # Bits of sqrt(1/2): mantissas run from there to sqrt(2). An offset keeps exponents positive.
    root = 0x3F3504F3 if form.dtype is float32 else 0x3FE6A09E667F3BCD
    shifted = form.bias - 1
    offset = shifted << fraction
    kind = form.dtype

    def log(given):
        small = less(given, fill(given, tiny))
        x = select(small, multiply(given, fill(given, lift)), given)
        bits = bits_of(x)
        k = add(subtract(bits, fill(bits, root)), fill(bits, offset))
        k = subtract(shift_right(k, fraction), fill(bits, shifted))
        f = subtract(from_bits(subtract(bits, shift_left(k, fraction))), fill(x, 1.0))
        e = to_float(k, kind)
        e = select(small, subtract(e, fill(e, lifted)), e)
        s = divide(f, add(fill(x, 2.0), f))
        z = multiply(s, s)
        half = multiply(fill(x, 0.5), multiply(f, f))
        tail = multiply(s, fused(z, polynomial(z), half))
        tail = fused(e, fill(x, ln2_low), tail)
        y = fused(e, fill(x, ln2), subtract(f, subtract(half, tail)))
        y = select(equal(given, fill(x, INFINITY)), given, y)
        y = select(less(given, fill(x, 0.0)), fill(x, NAN), y)
        y = select(equal(given, fill(x, 0.0)), fill(x, -INFINITY), y)
        return select(equal(given, given), y, given)

    return log


def _scaled_log(dtype: DType, factor: float):
    log = make_log(dtype)

    def scaled_log(x):
        return multiply(log(x), fill(x, factor))

    return scaled_log


@functools.cache
def make_log2(dtype: DType):
    """The logarithm to base 2."""
    return _scaled_log(dtype, LOG2_E)


@functools.cache
def make_log10(dtype: DType):
    """The logarithm to base 10."""
    return _scaled_log(dtype, 0.4342944819032518)


@functools.cache
def make_log1p(dtype: DType):
    """log(1 + x), accurate near zero: the rounding of 1 + x is divided out (Kahan)."""
    log = make_log(dtype)

    def log1p(x):
        one = fill(x, 1.0)
        u = add(x, one)
        y = multiply(log(u), divide(x, subtract(u, one)))
        y = select(equal(u, fill(x, INFINITY)), log(x), y)
        y = select(equal(u, fill(x, 0.0)), fill(x, -INFINITY), y)
        return select(equal(u, one), x, y)

    return log1p


@functools.cache
def make_tanh(dtype: DType):
    """The hyperbolic tangent."""
    exp, polynomial = make_exp(dtype), make_polynomial(TANH[dtype.name])

    def tanh(x):
        a = absolute(x)
        z = multiply(a, a)
        near = fused(multiply(a, z), polynomial(z), a)
        one = fill(x, 1.0)
        e = exp(add(a, a))
        far = subtract(one, divide(fill(x, 2.0), add(e, one)))
        return copy_sign(select(less(a, fill(x, 0.55)), near, far), x)

    return tanh


@functools.cache
def make_erf(dtype: DType):
    """The error function."""
    form = format_of(dtype)
    exp = make_exp(dtype)
    near_polynomial = make_polynomial(ERF[dtype.name])
    far_polynomial = make_polynomial(ERFC[dtype.name])
    width = 3.0 if form.dtype is float32 else 5.0
    end = 1.0 + width

    def erf(x):
        a = absolute(x)
        near = fused(a, near_polynomial(multiply(a, a)), a)
        t = select(less(fill(x, end), a), fill(x, end), a)
        u = multiply(subtract(t, fill(x, 1.0)), fill(x, 1.0 / width))
        far = subtract(fill(x, 1.0), exp(negate(far_polynomial(u))))
        return copy_sign(select(less(a, fill(x, 1.0)), near, far), x)

    return erf


@functools.cache
def make_sigmoid(dtype: DType):
    """1 / (1 + exp(-x)), with full relative accuracy for negative x too."""
    exp = make_exp(dtype)

    def sigmoid(x):
        one = fill(x, 1.0)
        e = exp(negate(absolute(x)))
        s = reciprocal(add(one, e))
        return select(less(x, fill(x, 0.0)), multiply(e, s), s)

    return sigmoid


@functools.cache
def make_rsqrt(dtype: DType):
    """1 / sqrt(x), two roundings."""

    def rsqrt(x):
        return divide(fill(x, 1.0), square_root(x))

    return rsqrt


def mix(x):
    """A bijection of 32-bit integers in which every input bit changes every output bit about
    half of the time: multiply and xor-shift rounds (constants of Wellons' hash prospector)."""
    x = bit_xor(x, shift_right(x, 16))
    x = multiply(x, fill(x, 0x7FEB352D))
    x = bit_xor(x, shift_right(x, 15))
    x = multiply(x, fill(x, 0x846CA68B - (1 << 32)))
    return bit_xor(x, shift_right(x, 16))


@functools.cache
def make_uniform(dtype: DType):
    """uniform(seed, row, column): int32 lanes to numbers in [0, 1), 24 bits of them.

    A counter-based generator: each value is a hash of its place and the seed, so it can be
    computed again anywhere, in any order.
    """

    def uniform(seed, row, column):
        h = mix(add(seed, fill(seed, 0x3C6EF372)))
        h = mix(bit_xor(h, row))
        h = mix(bit_xor(add(h, fill(h, 0x1B873593)), column))
        x = to_float(shift_right(h, 8), dtype)
        return multiply(x, fill(x, 2.0**-24))

    return uniform


def larger(a, b):
    """Python's max(a, b): b where b > a, else a."""
    return select(less(a, b), b, a)


def smaller(a, b):
    """Python's min(a, b): b where b < a, else a."""
    return select(less(b, a), b, a)


def keep_largest(s, x):
    """The running maximum s joined by x; a NaN stays."""
    return select(either(less(s, x), opposite(equal(x, x))), x, s)


def between(x, low, high):
    """Mask of low <= x <= high."""
    return both(less_equal(low, x), less_equal(x, high))


MAKERS = {
    "exp": make_exp,
    "exp2": make_exp2,
    "log": make_log,
    "log2": make_log2,
    "log10": make_log10,
    "log1p": make_log1p,
    "tanh": make_tanh,
    "erf": make_erf,
    "sigmoid": make_sigmoid,
    "rsqrt": make_rsqrt,
    "nearest": make_nearest,
    "floor": make_floor,
    "ceil": make_ceil,
    "trunc": make_trunc,
}
