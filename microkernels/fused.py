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
