"""Small steps of lowering: inline PTX, lane numbers, shared addresses."""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils

from gemm.microkernels.cooperative import StageShape

I8, I16, I32, I64 = (ir.IntType(n) for n in (8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()
VOID = ir.VoidType()
GROUP_LANES = 128

# Letter of an inline PTX constraint for a value of this LLVM type.
LETTERS = {I16: "h", I32: "r", I64: "l", F32: "f", F64: "d"}


def i32(value: int):
    return ir.Constant(I32, value)


def capability(context) -> int:
    """90 for sm_90a."""
    return int("".join(c for c in context.machine_target.cpu if c.isdigit()))


def ptx(builder, text: str, arguments=(), results=(), tied=0, memory=False, effect=True):
    """Emits PTX. $0.. are the results, then the arguments; the first `tied` arguments share the
    registers of the results. Returns the list of results.

    effect=False lets LLVM move or drop it; memory=True orders it with memory accesses.
    """
    letters = ["=" + LETTERS[t] for t in results]
    letters += [str(i) if i < tied else LETTERS[a.type] for i, a in enumerate(arguments)]
    if memory:
        letters.append("~{memory}")
    result = VOID
    if len(results) == 1:
        result = results[0]
    elif results:
        result = ir.LiteralStructType(results)
    kind = ir.FunctionType(result, [a.type for a in arguments])
    call = builder.asm(kind, text, ",".join(letters), list(arguments), effect)
    call.attributes.add("convergent")
    call.attributes.add("nounwind")
    if len(results) == 1:
        return [call]
    return [builder.extract_value(call, i) for i in range(len(results))]


def special(builder, name: str):
    """A special register by its intrinsic's name, e.g. 'tid.x'."""
    kind = ir.FunctionType(I32, [])
    function = cgutils.get_or_insert_function(
        builder.module, kind, f"llvm.nvvm.read.ptx.sreg.{name}"
    )
    return builder.call(function, [])


def lane_of_team(builder):
    return special(builder, "tid.x")


def lane_of_group(builder):
    return builder.and_(lane_of_team(builder), i32(GROUP_LANES - 1))


def lane_of_warp(builder):
    return builder.and_(lane_of_team(builder), i32(31))


def uniform(builder, value):
    """value, told to the assembler to be the same in all lanes of the warp; all of them ask."""
    text = "shfl.sync.idx.b32 $0, $1, 0, 31, -1;"
    return ptx(builder, text, [value], [I32])[0]


def warp_of_lane(builder):
    """Number of the warp in its group, asked for where not all lanes of it may be."""
    return builder.and_(builder.lshr(lane_of_team(builder), i32(5)), i32(3))


def warp_of_group(builder):
    return uniform(builder, warp_of_lane(builder))


def group_of_team(builder):
    return uniform(builder, builder.lshr(lane_of_team(builder), i32(7)))


def address(builder, p):
    """The 32-bit address of a pointer to shared memory."""
    return builder.ptrtoint(p, I32)


def flat(builder, p):
    """The 64-bit address of a generic pointer."""
    return builder.ptrtoint(p, I64)


def narrow_int(builder, value, bits=32):
    kind = ir.IntType(bits)
    if isinstance(value.type, ir.IntType) and value.type.width > bits:
        return builder.trunc(value, kind)
    if value.type.width < bits:
        return builder.zext(value, kind)
    return value


def plus(builder, value, constant: int):
    return builder.add(value, i32(constant)) if constant else value


def times(builder, value, constant: int):
    return builder.mul(value, i32(constant))


def place(builder, stage: StageShape, row, k):
    """Byte offset of element (row, k) of a panel, both run-time numbers (StageShape.place)."""
    size = stage.dtype.size
    if stage.along == "rows" and not stage.swizzled:
        return times(builder, builder.add(times(builder, k, stage.rows), row), size)
    line, inner = (row, k) if stage.along == "k" else (k, row)
    byte = times(builder, inner, size)
    start = times(builder, line, 128)
    if stage.along == "rows":
        box = builder.lshr(byte, i32(7))
        start = builder.add(start, times(builder, box, stage.depth * 128))
        byte = builder.and_(byte, i32(127))
    swizzle = builder.shl(builder.and_(line, i32(7)), i32(4))
    return builder.add(start, builder.xor(byte, swizzle))


def load_shared(builder, at, offset: int, kind, count: int):
    """`count` adjacent values of an LLVM scalar type from shared memory, vectorised."""
    width = {I8: 8, I16: 16, I32: 32, I64: 64, F32: 32, F64: 64}[kind]
    form = {F32: "f32", F64: "f64"}.get(kind, f"b{width}")
    vector = f".v{count}" if count > 1 else ""
    names = ", ".join(f"${i}" for i in range(count))
    names = f"{{{names}}}" if count > 1 else names
    text = f"ld.shared{vector}.{form} {names}, [${count}+{offset}];"
    return ptx(builder, text, [at], [kind] * count)


def store_shared(builder, at, offset: int, registers):
    """Adjacent values, each of 16, 32 or 64 bits, to shared memory, vectorised."""
    kind = registers[0].type
    form = {F32: "f32", F64: "f64", I64: "b64", I32: "b32", I16: "b16"}[kind]
    count = len(registers)
    vector = f".v{count}" if count > 1 else ""
    names = ", ".join(f"${i + 1}" for i in range(count))
    names = f"{{{names}}}" if count > 1 else names
    ptx(builder, f"st.shared{vector}.{form} [$0+{offset}], {names};", [at, *registers], memory=True)
