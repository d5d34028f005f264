"""Words of the door: memory and C functions by plain address, in this process only.

Not part of the tile vocabulary: kernels never use them. The plain-Python bodies work too, on
the process's own memory, so the door can be stepped through. Their lowering is in
address_lowering.py, so that a process that compiles nothing imports no compiler.
"""

from __future__ import annotations

import ctypes


def peek(address):
    """The int64 at an address."""
    return ctypes.c_int64.from_address(address).value


def peek32(address):
    """The int32 at an address."""
    return ctypes.c_int32.from_address(address).value


def poke(address, value):
    """Writes an int64."""
    ctypes.c_int64.from_address(address).value = value


def scratch():
    """The address of 64 int64 of the caller's own."""
    block = (ctypes.c_int64 * 64)()
    _kept.append(block)
    return ctypes.addressof(block)


def call(function, a, b, c, d, e):
    """Calls the C function at an address with up to five integer or pointer arguments."""
    return ctypes.PYFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 5)(function)(a, b, c, d, e)


def atomic_load(address):
    """The int64 at an address, in one order with every other atomic access."""
    return peek(address)


def atomic_store(address, value):
    poke(address, value)


def atomic_add(address, value):
    """Adds and returns what was there before."""
    before = peek(address)
    poke(address, before + value)
    return before


def atomic_exchange(address, value):
    """Writes and returns what was there before."""
    before = peek(address)
    poke(address, value)
    return before


def pause():
    """Tells the core that it spins."""


def float_control():
    """The calling thread's floating-point control word: rounding, flushing, traps."""
    return 0


def set_float_control(word):
    """Gives the calling thread a control word that `float_control` returned."""


def flushing(word):
    """The control word with subnormal operands and results taken as zero."""
    return word


_kept: list = []
