"""Arithmetic on lanes: the words in which an epilogue or a mathematical function is written.

    v   `lanes` values of a compute type     (float32, float64, int32, int64; complex where said)
    k   a mask: one truth value a lane, from a comparison, for `select`

Each float word rounds once, as IEEE 754 says, so a composition of them has the same bits on
every target that fuses; integers wrap. No word raises a floating-point exception to the caller.
The plain bodies below define them, on NumPy arrays.
"""

from __future__ import annotations

import numpy as np

from .fused import fused_multiply_add
from .vocabulary import Pointer, computed


class Table:
    """What the words below read on the reference target: Pointers and integers."""

    __slots__ = ("slots",)

    def __init__(self, slots):
        self.slots = list(slots)


def table_pointer(table, slot, dtype):
    """The address in slot `slot` of a table of int64, as a pointer to `dtype`."""
    p = table.slots[slot]
    return Pointer(p.memory, p.offset, dtype)


def table_integer(table, slot):
    """The integer in slot `slot` of a table of int64."""
    return table.slots[slot]


def table_number(table, slot, dtype):
    """The number of type `dtype` whose bits slot `slot` of a table begins with."""
    return np.asarray([table.slots[slot]], np.int64).view(computed(dtype))[0]


def _quiet(function, *values):
    with np.errstate(all="ignore"):
        return function(*values)


def fill(v, x):
    """The number x, converted to v's type, in as many lanes as v has."""
    return _quiet(np.full_like, v, x)


def ramp(lanes, dtype):
    """0, 1, 2... in lanes of a 32 or 64 bit integer `dtype`."""
    return np.arange(lanes, dtype=computed(dtype))


def add(a, b):
    """a + b; complex too."""
    return _quiet(np.add, a, b)


def subtract(a, b):
    """a - b; complex too."""
    return _quiet(np.subtract, a, b)


def multiply(a, b):
    """a * b. Complex: (ar br - ai bi, ar bi + ai br), every step rounded."""
    if a.dtype.kind != "c":
        return _quiet(np.multiply, a, b)
    out = np.empty_like(a)
    with np.errstate(all="ignore"):
        out.real = a.real * b.real - a.imag * b.imag
        out.imag = a.real * b.imag + a.imag * b.real
    return out


def divide(a, b):
    """a / b of floats."""
    return _quiet(np.divide, a, b)


def reciprocal(a):
    """1 / a of floats, 1 <= a <= 2^64 or NaN: as `divide` rounds it, without the cases beyond."""
    return np.divide(a.dtype.type(1), a)


def negate(a):
    """-a; of a float only the sign bit changes; complex too."""
    return _quiet(np.negative, a)


def absolute(a):
    """|a|; the sign bit of a float is cleared."""
    return _quiet(np.absolute, a)


def fused(a, b, c):
    """a * b + c of floats, rounded once (twice where the target cannot)."""
    return fused_multiply_add(a, b, c)


def square_root(a):
    """The correctly rounded square root; NaN below zero."""
    return _quiet(np.sqrt, a)


def round_even(a):
    """The nearest whole number, ties to even; the sign stays, of zero too."""
    return _quiet(np.rint, a)


def less(a, b):
    """Mask of a < b; false where either is NaN. Integers are signed."""
    return _quiet(np.less, a, b)


def less_equal(a, b):
    """Mask of a <= b; false where either is NaN."""
    return _quiet(np.less_equal, a, b)


def equal(a, b):
    """Mask of a == b; false where either is NaN."""
    return _quiet(np.equal, a, b)


def both(k, j):
    """Masks: k and j."""
    return k & j


def either(k, j):
    """Masks: k or j."""
    return k | j


def opposite(k):
    """Mask: not k."""
    return ~k


def select(k, a, b):
    """a where k, else b; both are computed."""
    return np.where(k, a, b)


def bits_of(a):
    """The bits of a float as integers of its width."""
    return a.view(f"int{a.dtype.itemsize * 8}")


def from_bits(a):
    """Integers as the bits of floats of their width."""
    return a.view(f"float{a.dtype.itemsize * 8}")


def bit_and(a, b):
    return a & b


def bit_or(a, b):
    return a | b


def bit_xor(a, b):
    return a ^ b


def shift_left(a, count):
    """Integers times 2^count, modulo 2^width; count is a constant."""
    return a << count


def shift_right(a, count):
    """The bits of integers moved down, zeros moved in; count is a constant."""
    unsigned = a.view(f"uint{a.dtype.itemsize * 8}")
    return (unsigned >> unsigned.dtype.type(count)).view(a.dtype)


def to_float(a, dtype):
    """Signed integers as floats of `dtype`, rounded to nearest even."""
    return a.astype(computed(dtype))


def to_integer(a, dtype):
    """Floats truncated toward zero; beyond the range its nearest end, NaN gives 0."""
    kind = computed(dtype)
    info = np.iinfo(kind)
    low, high = a.dtype.type(info.min), -a.dtype.type(info.min)
    inside = (a >= low) & (a < high)
    whole = np.where(inside, a, 0).astype(kind)
    return np.where(a >= high, info.max, np.where(a < low, info.min, whole)).astype(kind)


def evens(a, b):
    """Lanes 0, 2, 4... of a followed by b."""
    return np.ascontiguousarray(np.concatenate([a, b])[::2])


def odds(a, b):
    """Lanes 1, 3, 5... of a followed by b."""
    return np.ascontiguousarray(np.concatenate([a, b])[1::2])


def interleave_low(a, b):
    """The first half of a0, b0, a1, b1..."""
    return np.ascontiguousarray(np.stack([a, b], 1).reshape(-1)[: len(a)])


def interleave_high(a, b):
    """The second half of a0, b0, a1, b1..."""
    return np.ascontiguousarray(np.stack([a, b], 1).reshape(-1)[len(a) :])
