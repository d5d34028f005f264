"""The words of addresses.py as LLVM IR, for every CPU."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types

from .addresses import (
    atomic_add,
    atomic_exchange,
    atomic_load,
    atomic_store,
    call,
    float_control,
    flushing,
    pause,
    peek,
    peek32,
    poke,
    scratch,
    set_float_control,
)

I32, I64 = ir.IntType(32), ir.IntType(64)

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
    float_control: lambda: types.intp,
    set_float_control: lambda word: types.none,
    flushing: lambda word: types.intp,
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


def _is_x86(context) -> bool:
    return context.machine_target.triple.startswith("x86_64")


def _intrinsic(builder, name, result, arguments):
    kind = ir.FunctionType(result, [x.type for x in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


def lower_float_control(context, builder, sig, args):
    if not _is_x86(context):
        return _intrinsic(builder, "llvm.aarch64.get.fpcr", I64, [])
    slot = cgutils.alloca_once(builder, I32)
    at = builder.bitcast(slot, ir.IntType(8).as_pointer())
    _intrinsic(builder, "llvm.x86.sse.stmxcsr", ir.VoidType(), [at])
    return builder.zext(builder.load(slot), I64)


def lower_set_float_control(context, builder, sig, args):
    (word,) = _integers(context, builder, sig, args)
    if not _is_x86(context):
        _intrinsic(builder, "llvm.aarch64.set.fpcr", ir.VoidType(), [word])
        return
    slot = cgutils.alloca_once(builder, I32)
    builder.store(builder.trunc(word, I32), slot)
    at = builder.bitcast(slot, ir.IntType(8).as_pointer())
    _intrinsic(builder, "llvm.x86.sse.ldmxcsr", ir.VoidType(), [at])


FLUSHING = {True: 0x8040, False: 1 << 24}  # x86: MXCSR.FTZ and DAZ; aarch64: FPCR.FZ


def lower_flushing(context, builder, sig, args):
    (word,) = _integers(context, builder, sig, args)
    return builder.or_(word, ir.Constant(I64, FLUSHING[_is_x86(context)]))


def lower_pause(context, builder, sig, args):
    x86 = _is_x86(context)
    parameters = [] if x86 else [I32]
    name = "llvm.x86.sse2.pause" if x86 else "llvm.aarch64.hint"
    _intrinsic(builder, name, ir.VoidType(), [ir.Constant(kind, 1) for kind in parameters])


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
    float_control: lower_float_control,
    set_float_control: lower_set_float_control,
    flushing: lower_flushing,
}
