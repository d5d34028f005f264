"""Words of the door: memory and C functions by plain address, in this process only.

Not part of the tile vocabulary: kernels never use them. The plain-Python bodies work too, on
the process's own memory, so the door can be stepped through.
"""

from __future__ import annotations

import ctypes

from llvmlite import ir
from numba.core import cgutils, types

I32, I64 = ir.IntType(32), ir.IntType(64)


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


_kept: list = []

RULES = {
    peek: lambda p: types.intp,
    peek32: lambda p: types.intp,
    poke: lambda p, x: types.none,
    scratch: lambda: types.intp,
    call: lambda f, a, b, c, d, e: types.intp,
    atomic_load: lambda p: types.intp,
    atomic_store: lambda p, x: types.none,
    atomic_add: lambda p, x: types.intp,
    atomic_exchange: lambda p, x: types.intp,
    pause: lambda: types.none,
}


def _integers(context, builder, sig, args):
    return [context.cast(builder, a, t, types.intp) for a, t in zip(args, sig.args, strict=True)]


def lower_peek(context, builder, sig, args):
    (p,) = _integers(context, builder, sig, args)
    return builder.load(builder.inttoptr(p, I64.as_pointer()))


def lower_peek32(context, builder, sig, args):
    (p,) = _integers(context, builder, sig, args)
    return builder.sext(builder.load(builder.inttoptr(p, I32.as_pointer())), I64)


def lower_poke(context, builder, sig, args):
    p, x = _integers(context, builder, sig, args)
    builder.store(x, builder.inttoptr(p, I64.as_pointer()))


def lower_scratch(context, builder, sig, args):
    block = cgutils.alloca_once(builder, ir.ArrayType(I64, 64))
    return builder.ptrtoint(block, I64)


def lower_call(context, builder, sig, args):
    function, *rest = _integers(context, builder, sig, args)
    kind = ir.FunctionType(I64, [I64] * len(rest))
    return builder.call(builder.inttoptr(function, kind.as_pointer()), rest)


def lower_atomic_load(context, builder, sig, args):
    (p,) = _integers(context, builder, sig, args)
    return builder.load_atomic(builder.inttoptr(p, I64.as_pointer()), "seq_cst", 8)


def lower_atomic_store(context, builder, sig, args):
    p, x = _integers(context, builder, sig, args)
    builder.store_atomic(x, builder.inttoptr(p, I64.as_pointer()), "seq_cst", 8)


def _lower_update(operation):
    def lower(context, builder, sig, args):
        p, x = _integers(context, builder, sig, args)
        return builder.atomic_rmw(operation, builder.inttoptr(p, I64.as_pointer()), x, "seq_cst")

    return lower


def lower_pause(context, builder, sig, args):
    x86 = context.machine_target.triple.startswith("x86_64")
    parameters = [] if x86 else [I32]
    kind = ir.FunctionType(ir.VoidType(), parameters)
    name = "llvm.x86.sse2.pause" if x86 else "llvm.aarch64.hint"
    function = cgutils.get_or_insert_function(builder.module, kind, name)
    builder.call(function, [ir.Constant(I32, 1)] * len(parameters))


LOWERINGS = {
    peek: lower_peek,
    peek32: lower_peek32,
    poke: lower_poke,
    scratch: lower_scratch,
    call: lower_call,
    atomic_load: lower_atomic_load,
    atomic_store: lower_atomic_store,
    atomic_add: _lower_update("add"),
    atomic_exchange: _lower_update("xchg"),
    pause: lower_pause,
}
