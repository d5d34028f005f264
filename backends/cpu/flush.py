"""Calls machine code with subnormal operands and results taken as zero, in source.

Multiply-adds of some machines take a hundred times as long where a number is subnormal. The
control word is the caller's again afterwards, flags included; workers of a team compute under
the word of whoever gives them work, so they need nothing of their own.
"""

from __future__ import annotations

import ctypes
import functools

from . import kernels
from .addresses import call, float_control, flushing, set_float_control


def make_flushed():
    """flushed(function, a, b, c, d): the C function at an address, flushing."""

    def flushed(function, a, b, c, d):
        word = float_control()
        set_float_control(flushing(word))
        call(function, a, b, c, d, 0)
        set_float_control(word)
        return 0

    flushed.label = "flushed call"  # type: ignore[attr-defined]
    return flushed, ("integer",) * 5


@functools.cache
def flushed(level):
    """`flushed` of make_flushed as a callable, for a CPU level."""
    address = kernels.load(level, "flushed call", make_flushed, entry="raw")
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(address)
