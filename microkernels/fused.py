"""The fused multiply-add of the numerics contract, exactly, in plain Python.

float64 uses the C library's fma, float32 its fmaf (both correctly rounded by the C standard);
integers wrap modulo 2^width. `rounding_twice()` switches to the product-then-sum of machines
without the instruction.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import math
import sys

import numpy as np

_twice = False


def _c_function(name: str, real):
    library = ctypes.util.find_library("msvcrt" if sys.platform == "win32" else "m")
    function = getattr(ctypes.CDLL(library), name)
    function.restype, function.argtypes = real, [real] * 3
    return function


_fma = math.fma if hasattr(math, "fma") else _c_function("fma", ctypes.c_double)
_fmaf = _c_function("fmaf", ctypes.c_float)


@contextlib.contextmanager
def rounding_twice(on: bool = True):
    """Within the block the product is rounded before it is added, as on machines without fma."""
    global _twice
    before, _twice = _twice, on
    try:
        yield
    finally:
        _twice = before


def fused_multiply_add(a, b, c):
    """a * b + c elementwise, rounded once; arrays of one dtype that broadcast together."""
    a, b, c = np.broadcast_arrays(a, b, c)
    with np.errstate(all="ignore"):
        if c.dtype.kind not in "f" or _twice:
            return (a * b + c).astype(c.dtype)
    function = _fma if c.dtype == np.float64 else _fmaf
    flat = [
        function(x, y, z)
        for x, y, z in zip(a.ravel().tolist(), b.ravel().tolist(), c.ravel().tolist(), strict=True)
    ]
    return np.asarray(flat, c.dtype).reshape(c.shape)


_LEAST = 2.0**-126  # the smallest normal float32


def _flushed(x):
    """float32 as float64, subnormals as zero of their sign."""
    return np.where(abs(x) < np.float32(_LEAST), np.copysign(np.float32(0), x), x).astype("f8")


def flushing_multiply_add(a, b, c):
    """float32 a * b + c, rounded once to nearest even; subnormal operands and results are zero.

    Tininess is found after rounding, as x86 does. The sum is formed in float64 with its last bit
    odd where it is inexact, so that the second rounding is as if it were the only one (Boldo and
    Melquiond, "When double rounding is odd", 2005).
    """
    a, b, c = (_flushed(x) for x in np.broadcast_arrays(a, b, c))
    with np.errstate(all="ignore"):
        product = a * b
        total = product + c
        back = total - product
        error = (product - (total - back)) + (c - back)
        bits = total.view(np.int64)
        even = np.isfinite(total) & np.isfinite(error) & (error != 0) & (bits & 1 == 0)
        toward = np.where((error > 0) == (total > 0), 1, -1)
        odd = np.where(even, bits + toward, bits).view("f8")
        tiny = abs((odd * 2.0**64).astype("f4")) < np.float32(_LEAST * 2.0**64)
        return np.where(tiny, np.copysign(np.float32(0), total), odd).astype("f4")
