"""Tiles of whole blocks: the tile words on AMX registers, every other word as vectors have it.

A register holds 16 x 16 accumulators, or 16 units of 64 bytes of A, or 16 x 16 pieces of B. The
accumulators have the first numbers, then come the blocks of B and of A: one tile is alive at a
time, and each word takes it from its registers and leaves it there. (LLVM can also allocate them,
but sends them through memory where a tile meets several branches: docs/facts.md.) The kernel's
entry configures the registers and releases them, so that no later context switch saves them.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types

from gemm.microkernels import vocabulary as words

from .. import values
from . import dots
from . import lowering as vectors

I8, I64 = ir.IntType(8), ir.IntType(64)
REGISTERS, ROWS, ROW_BYTES = 8, 16, 64
# Letters of the integer instructions: signed or unsigned of either side.
_SIGNS = {"int8x64": "s", "uint8x64": "u"}


def _call(builder, name, *arguments):
    kind = ir.FunctionType(ir.VoidType(), [x.type for x in arguments])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)


class STATE:
    """The configuration of the registers, around a kernel's entry."""

    @staticmethod
    def used_in(texts) -> bool:
        """Whether a kernel of these IR texts uses the registers."""
        return any("llvm.x86.tile" in text for text in texts)

    @staticmethod
    def begin(builder) -> None:
        """All registers of 16 rows of 64 bytes: palette 1, bytes of a row from 16 on, rows
        from 48."""
        table = bytearray(64)
        table[0] = 1
        for register in range(REGISTERS):
            table[16 + 2 * register] = ROW_BYTES
            table[48 + register] = ROWS
        kind = ir.ArrayType(I8, len(table))
        slot = builder.alloca(kind)
        slot.align = 64
        builder.store(ir.Constant(kind, table), slot)
        _call(builder, "llvm.x86.ldtilecfg", builder.bitcast(slot, values.BYTE_POINTER))

    @staticmethod
    def end(builder) -> None:
        _call(builder, "llvm.x86.tilerelease")


def _number(index: int):
    return ir.Constant(I8, index)


def _load(builder, register: int, p, step):
    _call(builder, "llvm.x86.tileloadd64", _number(register), p, step)


def _places(builder, shape, p, step):
    """(register, address) of each block of a tile whose rows are `step` bytes apart."""
    for i in range(shape.rows // ROWS):
        row = vectors.advance(builder, p, builder.mul(vectors.int64(i * ROWS), step))
        for v in range(shape.vectors):
            yield i * shape.vectors + v, vectors.advance(builder, row, v * ROW_BYTES)


def _read(builder, shape, p, step):
    for register, at in _places(builder, shape, p, step):
        _load(builder, register, at, step)


def _write(builder, shape, p, step):
    for register, at in _places(builder, shape, p, step):
        _call(builder, "llvm.x86.tilestored64", _number(register), at, step)


def _slot(builder, shape):
    """(address, row step) of room for a tile on the stack."""
    count = shape.rows * shape.columns * shape.dtype.size
    with builder.goto_entry_block():
        slot = builder.alloca(ir.ArrayType(I8, count))
    slot.align = ROW_BYTES
    step = vectors.int64(shape.columns * shape.dtype.size)
    return builder.bitcast(slot, values.BYTE_POINTER), step


def tile_zeros(context, builder, sig, args):
    for register in range(sig.return_type.shape.registers):
        _call(builder, "llvm.x86.tilezero", _number(register))
    return ir.Constant(I8, 0)


def _edges(context, builder, sig, args, first):
    """The row step, at `first`, and the counts of rows and columns, last, as integers."""
    step, m, n = (
        context.cast(builder, args[i], sig.args[i], types.intp)
        for i in (first, len(args) - 2, len(args) - 1)
    )
    return step, m, n


def _whole(builder, shape, m, n):
    return builder.and_(
        builder.icmp_signed(">=", m, vectors.int64(shape.rows)),
        builder.icmp_signed(">=", n, vectors.int64(shape.columns)),
    )


def _is_accumulator(shape, dtype) -> bool:
    return dtype.name == shape.dtype.name


def _parts(shape):
    """(vector, its first column, its bytes into a row of accumulators)."""
    size = shape.dtype.size
    return [(v, v * shape.lanes, v * shape.lanes * size) for v in range(shape.vectors)]


def tile_load(context, builder, sig, args):
    """Whole tiles directly; at an edge, rows by way of the stack."""
    shape, dtype, p = sig.return_type.shape, sig.args[1].dtype, args[1]
    if not _is_accumulator(shape, dtype):
        raise TypeError(f"a tile of blocks is read as {shape.dtype}, not {dtype}")
    step, m, n = _edges(context, builder, sig, args, 2)
    with builder.if_else(_whole(builder, shape, m, n), likely=True) as (then, otherwise):
        with then:
            _read(builder, shape, p, step)
        with otherwise:
            slot, slot_step = _slot(builder, shape)
            one = vectors.int64(1)
            with cgutils.for_range(builder, vectors.int64(shape.rows), intp=I64) as loop:
                inside = builder.icmp_signed("<", loop.index, m)
                i = builder.select(inside, loop.index, builder.sub(m, one))
                row = vectors.advance(builder, p, builder.mul(i, step))
                to = vectors.advance(builder, slot, builder.mul(loop.index, slot_step))
                for _, column, offset in _parts(shape):
                    start = vectors.int64(column)
                    last = builder.sub(n, one)
                    start = builder.select(builder.icmp_signed("<", start, n), start, last)
                    at = builder.mul(start, vectors.int64(dtype.size))
                    vector = vectors.read_lanes(
                        context, builder, vectors.advance(builder, row, at), dtype, shape.lanes,
                        builder.sub(n, start),
                    )  # fmt: skip
                    vectors.write(builder, vectors.advance(builder, to, offset), vector, dtype)
            _read(builder, shape, slot, slot_step)
    return ir.Constant(I8, 0)


def _has_pairs(context, shape, dtype) -> bool:
    """Whether one instruction narrows two vectors of accumulators to `dtype`."""
    features = context.machine_target.features
    pairs = shape.vectors % 2 == 0 and shape.dtype.kind == "f"
    return dtype.name == "bfloat16" and pairs and dots.has(features, "avx512bf16")


def _narrowed_rows(builder, shape, p, step):
    """A whole tile as bfloat16 by way of the stack, two vectors an instruction. It takes subnormal
    numbers as zero, and the products that fill accumulators of floats leave none."""
    slot, slot_step = _slot(builder, shape)
    _write(builder, shape, slot, slot_step)
    narrow = ir.VectorType(dots.BFloat(), 2 * shape.lanes)
    bits = shape.lanes * shape.dtype.bits
    for i in range(shape.rows):
        at = vectors.advance(builder, slot, i * slot_step.constant)
        row = vectors.advance(builder, p, builder.mul(vectors.int64(i), step))
        for v in range(0, shape.vectors, 2):
            low, high = (
                vectors.read(
                    builder,
                    vectors.advance(builder, at, (v + j) * ROW_BYTES),
                    shape.dtype,
                    shape.lanes,
                )
                for j in (0, 1)
            )
            both = dots.call(
                builder, f"llvm.x86.avx512bf16.cvtne2ps2bf16.{bits}", narrow, [high, low]
            )
            to = vectors.advance(builder, row, v * shape.lanes * 2)
            builder.store(both, builder.bitcast(to, narrow.as_pointer()), align=1)


def tile_store(context, builder, sig, args):
    """Whole tiles of accumulators directly; else, rows by way of the stack."""
    dtype, shape, p = sig.args[0].dtype, sig.args[2].shape, args[0]
    step, m, n = _edges(context, builder, sig, args, 1)

    def by_rows():
        slot, slot_step = _slot(builder, shape)
        _write(builder, shape, slot, slot_step)
        rows = vectors.int64(shape.rows)
        count = builder.select(builder.icmp_signed("<", m, rows), m, rows)
        with cgutils.for_range(builder, count, intp=I64) as loop:
            row = vectors.advance(builder, p, builder.mul(loop.index, step))
            at = vectors.advance(builder, slot, builder.mul(loop.index, slot_step))
            for _, column, offset in _parts(shape):
                here = vectors.advance(builder, at, offset)
                vector = vectors.read(builder, here, shape.dtype, shape.lanes)
                to = vectors.advance(builder, row, column * dtype.size)
                left = builder.sub(n, vectors.int64(column))
                vectors.write_lanes(context, builder, to, vector, dtype, left)

    if _is_accumulator(shape, dtype):
        write_whole = _write
    elif _has_pairs(context, shape, dtype):
        write_whole = _narrowed_rows
    else:
        by_rows()
        return
    with builder.if_else(_whole(builder, shape, m, n), likely=True) as (then, otherwise):
        with then:
            write_whole(builder, shape, p, step)
        with otherwise:
            by_rows()


def tile_spill(context, builder, sig, args):
    slot, step = _slot(builder, sig.args[0].shape)
    _write(builder, sig.args[0].shape, slot, step)
    return slot


def outer_accumulate(context, builder, sig, args):
    shape = sig.args[0].shape
    t, a, _, b, _ = args
    step = context.cast(builder, args[2], sig.args[2], types.intp)
    left, right = sig.args[1].dtype.name, sig.args[3].dtype.name
    letters = "bf16ps" if left == "bfloat16x32" else f"b{_SIGNS[left]}{_SIGNS[right]}d"
    line = vectors.int64(4 * shape.columns)
    for v in range(shape.vectors):
        _load(builder, shape.registers + v, vectors.advance(builder, b, v * ROW_BYTES), line)
    for i in range(shape.rows // ROWS):
        at = vectors.advance(builder, a, builder.mul(vectors.int64(i * ROWS), step))
        factor = shape.registers + shape.vectors + i
        _load(builder, factor, at, step)
        for v in range(shape.vectors):
            operands = (i * shape.vectors + v, factor, shape.registers + v)
            _call(builder, f"llvm.x86.tdp{letters}", *(_number(x) for x in operands))
    return t


def _either(of_blocks, of_vectors, tile):
    """The lowering for a word's tile: of blocks or of vectors. tile: index of its argument."""

    def lower(context, builder, sig, args):
        shape = (sig.return_type if tile is None else sig.args[tile]).shape
        return (of_blocks if shape.block > 1 else of_vectors)(context, builder, sig, args)

    return lower


_TILES = (
    (words.tile_zeros, tile_zeros, None),
    (words.tile_load, tile_load, None),
    (words.tile_store, tile_store, 2),
    (words.tile_spill, tile_spill, 0),
    (words.outer_accumulate, outer_accumulate, 0),
)
RULES = vectors.RULES
LOWERINGS = vectors.LOWERINGS | {
    word: _either(of_blocks, vectors.LOWERINGS[word], tile) for word, of_blocks, tile in _TILES
}
