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
digits; each polynomial's error is well below half a unit of its result.
"""

from __future__ import annotations

import functools

from .arithmetic import (
    absolute,
    add,
    bit_and,
    bit_or,
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
    select,
    shift_left,
    shift_right,
    square_root,
    subtract,
    to_float,
)
from .dtypes import DType, float32, float64

INFINITY, NAN = float("inf"), float("nan")
LOG2_E = 1.4426950408889634

EXP = {
    "float32": (0.0013926250831497611, 0.008363232883682618, 0.04166655421298415,
                0.16666576666119928, 0.5),
    "float64": (2.5100472505694996e-08, 2.7620201591031547e-07, 2.7557268276905696e-06,
                2.4801521057868204e-05, 0.00019841269863171557, 0.0013888888917367081,
                0.008333333333330039, 0.041666666666623824, 0.16666666666666669, 0.5),
}  # fmt: skip
LOG = {
    "float32": (0.23341943388714562, 0.28550396959618013, 0.40000125594554364, 0.6666666654988318),
    "float64": (0.1463003136412286, 0.15330617306743305, 0.18182922513515942, 0.22222210674238516,
                0.28571428628810996, 0.3999999999989322, 0.666666666666667),
}  # fmt: skip
TANH = {
    "float32": (-0.006610227831114734, 0.021309388664443474, -0.05390942882746055,
                0.1333311372902087, -0.3333333200797698),
    "float64": (-2.060276537636634e-05, 8.511313685577672e-05, -0.0002346347410887237,
                0.0005889360520074057, -0.001455661830100716, 0.003592110378689024,
                -0.008863234397814355, 0.021869488493666944, -0.053968253967434016,
                0.13333333333332714, -0.3333333333333333),
}  # fmt: skip
ERF = {
    "float32": (7.875875062685488e-05, -0.000801686428716587, 0.005189087423433974,
                -0.026854212010626412, 0.11283594715160218, -0.37612626666720334,
                0.12837916584835093),
    "float64": (-4.230945824295338e-12, 8.709045129053106e-11, -1.216456005728345e-09,
                1.4792401209404813e-08, -1.6364642158167616e-07, 1.6462045441468418e-06,
                -1.4925647567519332e-05, 0.00012055332902888736, -0.000854832702193483,
                0.0052239776254232985, -0.02686617064512984, 0.1128379167095512,
                -0.37612638903183754, 0.1283791670955126),
}  # fmt: skip
# -log erfc(1 + h u) on u in [0, 1]: h = 3 (to 4) and h = 5 (to 6).
ERFC = {
    "float32": (0.0014924992921010257, -0.01731607472348775, 0.08410030213024282,
                -0.24522534000743237, 0.5058608960796352, -0.8184936856238126,
                1.1229423448707023, 7.587907642264634, 7.916904224085197, 1.8496055015912543),
    "float64": (0.010891439790511905, -0.1728881973391945, 1.3013805507145202,
                -6.18826858399652, 20.890328277879554, -53.32968595391811, 107.04895846982483,
                -173.33941788048185, 230.21188892374883, -253.032986531132, 230.16813116348536,
                -170.6420229783697, 97.79319503954144, -35.218460982044725, -4.043983806923692,
                19.53422963183285, -18.67943609031702, 10.598958597222065, -2.0521018198363263,
                -3.708216737685638, 6.18094782007144, -6.27114092531096, 5.195137256404812,
                21.077681408955684, 13.194837571173984, 1.8496055099332482),
}  # fmt: skip


def make_polynomial(coefficients):
    """The polynomial with these coefficients, highest power first, by Estrin's scheme.

    Neighbouring terms join in fused steps by x, then x^2, x^4...: a chain of log2(degree) steps
    where Horner's has `degree`, which is what the time of a function on lanes consists of.
    """
    terms = [f"fill(x, {c!r})" for c in reversed(coefficients)]
    lines, power, count = [], "x", 0
    while len(terms) > 1:
        joined = []
        for low, high in zip(terms[::2], terms[1::2], strict=False):
            lines.append(f"t{count} = fused({high}, {power}, {low})")
            joined.append(f"t{count}")
            count += 1
        terms = joined + terms[len(terms) // 2 * 2 :]
        if len(terms) > 1:
            lines.append(f"p{count} = multiply({power}, {power})")
            power = f"p{count}"
    scope = {"fused": fused, "fill": fill, "multiply": multiply}
    body = "\n    ".join([*lines, f"return {terms[0]}"])
    exec(f"def polynomial(x):\n    {body}\n", scope)
    return scope["polynomial"]


class _Format:
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


def _format(dtype: DType) -> _Format:
    if dtype.name not in ("float32", "float64"):
        raise TypeError(f"mathematical functions exist for float32 and float64, not {dtype}")
    return _Format({"float32": float32, "float64": float64}[dtype.name])


def copy_sign(y, x):
    """|y| has the sign of x set: y must be >= 0 or NaN."""
    sign = bit_and(bits_of(x), bits_of(fill(x, -0.0)))
    return from_bits(bit_or(bits_of(y), sign))


@functools.cache
def make_scale(dtype: DType):
    """scale(p, z): p times 2^n, where z = n + 1.5 * 2^fraction; underflow rounds once."""
    form = _format(dtype)
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
    form = _format(dtype)
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
    form = _format(dtype)
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
    form = _format(dtype)
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
    form = _format(dtype)
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
        s = divide(one, add(one, e))
        return select(less(x, fill(x, 0.0)), multiply(e, s), s)

    return sigmoid


@functools.cache
def make_rsqrt(dtype: DType):
    """1 / sqrt(x), two roundings."""

    def rsqrt(x):
        return divide(fill(x, 1.0), square_root(x))

    return rsqrt


@functools.cache
def make_nearest(dtype: DType):
    """The nearest integer, ties to even."""
    whole = 2.0 ** _format(dtype).fraction

    def nearest(x):
        a = absolute(x)
        w = fill(x, whole)
        r = copy_sign(subtract(add(a, w), w), x)
        return select(less(a, w), r, x)

    return nearest


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


@functools.cache
def make_significant(dtype: DType, bits: int):
    """x with its first `bits` fraction bits and zeros after: rounded toward zero; 0 bits leave
    a power of two."""
    mask = -(1 << _format(dtype).fraction - bits)

    def significant(x):
        i = bits_of(x)
        return from_bits(bit_and(i, fill(i, mask)))

    return significant


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
