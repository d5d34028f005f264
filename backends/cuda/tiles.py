"""How a group's tile lies in its lanes' registers, and how a stage is multiplied into it.

Register r of a lane holds one element (row, column) of the tile:

    lanes    warp w owns rows w*4*R .. of R = lane_rows; its lanes are 4 down by 8 across
    matrix   warp w owns rows/4 rows; m16n8 blocks: lane l has row l/4 (+8), columns 2(l%4), +1
    wide     64 rows a block, warp w rows 16w..; inside a warp as 'matrix'

float64 blocks read neighbouring rows in another order, so that a half warp meets all banks; a
chain does not see which row it belongs to.
"""

from __future__ import annotations

from llvmlite import ir

from gemm.backends.cpu.lowering import multiply_add
from gemm.microkernels.cooperative import CHUNK, TeamTile

from ..team_values import TeamTileType
from .ptx import (
    F64,
    I32,
    I64,
    address,
    capability,
    i32,
    lane_of_warp,
    load_shared,
    narrow_int,
    place,
    plus,
    ptx,
    times,
    warp_of_group,
)

# -- where an accumulator is ---------------------------------------------------------------------


def _parts(builder):
    lane = lane_of_warp(builder)
    return builder.lshr(lane, i32(2)), builder.and_(lane, i32(3))


def _near_f64(builder, g, half: int):
    """Row `g` of half `half` of sixteen adjacent rows: 0 1 8 9 2 3 10 11, then 4 more each."""
    low = builder.and_(g, i32(1))
    middle = builder.shl(builder.and_(builder.lshr(g, i32(1)), i32(1)), i32(3))
    high = builder.shl(builder.lshr(g, i32(2)), i32(1))
    return plus(builder, builder.add(builder.add(low, middle), high), 4 * half)


def _far_f64(builder, g, half: int):
    """Row `g` of half `half` of sixteen rows 128 bytes apart: 0 2 4 6 1 3 5 7, then 8 more."""
    even = builder.shl(builder.and_(g, i32(3)), i32(1))
    return plus(builder, builder.add(even, builder.lshr(g, i32(2))), 8 * half)


def _rows_f64(stage):
    return _far_f64 if stage.along == "k" else _near_f64


def pieces(builder, tile: TeamTile, lane=None):
    """[(registers, row, column, base)]: runs of registers that hold adjacent columns of one row.

    row: among the rows/4 rows of the lane's warp, in the order `warp_row` undoes; column: in the
    tile. Both are LLVM i32 values. A piece never crosses sixteen bytes; base is the constant part
    of its column, which decides the 128 bytes of output it belongs to. lane: of the warp.
    """
    found = []
    lane = lane_of_warp(builder) if lane is None else lane
    if tile.unit == "lanes":
        parts = tile.dtype.components
        span = max(1, CHUNK // tile.dtype.size)
        down, across = builder.lshr(lane, i32(3)), builder.and_(lane, i32(7))
        for i in range(tile.lane_rows):
            if tile.a.along == "k":
                row = plus(builder, down, 4 * i)
            else:
                row = plus(builder, times(builder, down, span), i // span * 4 * span + i % span)
            for j in range(0, tile.lane_columns, span):
                start = (i * tile.lane_columns + j) * parts
                if tile.b.along == "k":
                    for c in range(span):
                        column = plus(builder, across, 8 * (j + c))
                        at = start + c * parts
                        found.append((range(at, at + parts), row, column, 8 * (j + c)))
                else:
                    column = plus(builder, times(builder, across, span), 8 * j)
                    found.append((range(start, start + span * parts), row, column, 8 * j))
        return found
    g, t = builder.lshr(lane, i32(2)), builder.and_(lane, i32(3))
    double = tile.dtype.name == "float64"
    register = 0
    for i in range(tile.rows // 64):
        for j in range(tile.columns // 8):
            for half in range(2):
                if not double:
                    row = plus(builder, g, 16 * i + 8 * half)
                    column = plus(builder, times(builder, t, 2), 8 * j)
                    found.append((range(register, register + 2), row, column, 8 * j))
                    register += 2
                    continue
                row = plus(builder, _rows_f64(tile.a)(builder, g, half), 16 * i)
                base = 16 * (j // 2)
                for c in range(2):
                    odd = plus(builder, times(builder, t, 2), c)
                    column = plus(builder, _rows_f64(tile.b)(builder, odd, j % 2), base)
                    found.append((range(register + c, register + c + 1), row, column, base))
                register += 2
    return found


def warp_row(builder, tile: TeamTile, row, warp=None):
    """The tile's row of a row of this warp (see `pieces`)."""
    warp = warp_of_group(builder) if warp is None else warp
    if tile.unit != "wide":
        return builder.add(times(builder, warp, tile.rows // 4), row)
    box = builder.lshr(row, i32(4))
    inside = builder.and_(row, i32(15))
    return builder.add(builder.add(times(builder, box, 64), times(builder, warp, 16)), inside)


# -- lanes ---------------------------------------------------------------------------------------


def _lane_fragment(builder, tile, stage, at, first, lane, apart, count, step):
    """values[k][i] of `count` rows of a panel for the k of one step, read 16 bytes at a time.

    Row i of the lane is first + lane + apart * i along 'k', else runs of adjacent rows.
    """
    size = stage.dtype.size
    parts = stage.dtype.components
    span = max(1, CHUNK // size)
    kind = TeamTileType(tile).scalar
    loads = CHUNK // (size // parts)  # scalars in sixteen bytes
    if stage.along == "k":
        out = [[None] * count for _ in range(span)]
        row = builder.add(first, lane)
        start = builder.add(at, times(builder, row, 128))
        chunk = builder.shl(step, i32(4))
        for parity in range(min(count, 8 // apart if apart < 8 else 1)):
            # Rows 8 apart share the swizzle.
            turned = builder.and_(plus(builder, row, apart * parity), i32(7))
            swizzled = builder.xor(chunk, builder.shl(turned, i32(4)))
            base = builder.add(start, swizzled)
            for i in range(parity, count, 8 // apart if apart < 8 else 1):
                got = load_shared(builder, base, i * apart * 128, kind, loads)
                for k in range(span):
                    out[k][i] = got[k * parts : (k + 1) * parts]
        return out
    line = stage.rows * size
    start = builder.add(at, times(builder, builder.add(first, times(builder, lane, span)), size))
    start = builder.add(start, times(builder, step, span * line))
    out = []
    for k in range(span):
        values = []
        for i in range(0, count, span):
            got = load_shared(builder, start, k * line + i * apart * size, kind, loads)
            values += [got[c * parts : (c + 1) * parts] for c in range(span)]
        out.append(values)
    return out


def _fused(context, builder, a, b, c):
    return multiply_add(context, builder, a, b, c)


def _lanes(context, builder, tile: TeamTile, t, a, b, step):
    lane = lane_of_warp(builder)
    down, across = builder.lshr(lane, i32(3)), builder.and_(lane, i32(7))
    first = times(builder, warp_of_group(builder), 4 * tile.lane_rows)
    left = _lane_fragment(builder, tile, tile.a, a, first, down, 4, tile.lane_rows, step)
    right = _lane_fragment(builder, tile, tile.b, b, i32(0), across, 8, tile.lane_columns, step)
    for x, y in zip(left, right, strict=True):
        for i in range(tile.lane_rows):
            for j in range(tile.lane_columns):
                r = i * tile.lane_columns + j
                if tile.dtype.kind != "c":
                    t[r] = _fused(context, builder, x[i][0], y[j][0], t[r])
                    continue
                (ar, ai), (br, bi) = x[i], y[j]
                re = _fused(context, builder, ar, br, t[2 * r])
                t[2 * r] = _fused(context, builder, builder.fneg(ai), bi, re)
                im = _fused(context, builder, ar, bi, t[2 * r + 1])
                t[2 * r + 1] = _fused(context, builder, ai, br, im)
    return t


# -- matrix unit, fed by warps -------------------------------------------------------------------

FORMS = {
    "float16": ("m16n8k16", "f32.f16.f16.f32"),
    "bfloat16": ("m16n8k16", "f32.bf16.bf16.f32"),
    "tf32": ("m16n8k8", "f32.tf32.tf32.f32"),
    "int8": ("m16n8k32", "s32.s8.s8.s32"),
    "uint8": ("m16n8k32", "s32.u8.u8.s32"),
    "float8_e4m3fn": ("m16n8k32", "f32.e4m3.e4m3.f32"),
    "float8_e5m2": ("m16n8k32", "f32.e5m2.e5m2.f32"),
}


def _names(first: int, count: int) -> str:
    return "{" + ", ".join(f"${first + i}" for i in range(count)) + "}"


def _mma(builder, shape, types, a, b, c):
    text = (
        f"mma.sync.aligned.{shape}.row.col.{types} {_names(0, len(c))}, "
        f"{_names(2 * len(c), len(a))}, {_names(2 * len(c) + len(a), len(b))}, {_names(0, len(c))};"
    )
    return ptx(builder, text, [*c, *a, *b], [x.type for x in c], tied=len(c), effect=False)


def _ldmatrix(builder, at, transposed: bool):
    form = ".trans" if transposed else ""
    text = f"ldmatrix.sync.aligned.m8n8.x4{form}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
    return ptx(builder, text, [at], [I32] * 4)


def _matrix_fragment(builder, stage, at, row, step: int, low, high):
    """Four registers of 16 rows x 32 bytes: eight rows by sixteen bytes each.

    row: first of the sixteen; low, high: bits of the lane's eight-lane set that move it to the
    second eight rows and to the second sixteen bytes.
    """
    seven = builder.and_(lane_of_warp(builder), i32(7))
    if stage.along == "k":
        line = builder.add(row, builder.add(seven, builder.shl(low, i32(3))))
        chunk = builder.xor(plus(builder, high, 2 * step), seven)
        where = builder.add(times(builder, line, 128), builder.shl(chunk, i32(4)))
        return _ldmatrix(builder, builder.add(at, where), False)
    line = plus(builder, builder.add(seven, builder.shl(high, i32(3))), 16 * step)
    eighth = builder.add(builder.lshr(row, i32(3)), low)
    box = builder.lshr(eighth, i32(3))
    chunk = builder.xor(builder.and_(eighth, i32(7)), seven)
    where = builder.add(times(builder, box, stage.depth * 128), times(builder, line, 128))
    return _ldmatrix(builder, builder.add(builder.add(at, where), builder.shl(chunk, i32(4))), True)


def _matrix(context, builder, tile: TeamTile, t, a, b):
    if tile.kind == "float64":
        return _matrix_f64(context, builder, tile, t, a, b)
    lane = lane_of_warp(builder)
    bit3 = builder.and_(builder.lshr(lane, i32(3)), i32(1))
    bit4 = builder.lshr(lane, i32(4))
    shape, types = FORMS[tile.kind]
    first = times(builder, warp_of_group(builder), tile.rows // 4)
    blocks, columns = tile.rows // 64, tile.columns // 8
    for step in range(4):
        left = [
            _matrix_fragment(builder, tile.a, a, plus(builder, first, 16 * i), step, bit3, bit4)
            for i in range(blocks)
        ]
        for j in range(0, columns, 2):
            right = _matrix_fragment(builder, tile.b, b, i32(8 * j), step, bit4, bit3)
            for i in range(blocks):
                for odd in range(2):
                    r = ((i * columns) + j + odd) * 4
                    c, y = t[r : r + 4], right[2 * odd : 2 * odd + 2]
                    t[r : r + 4] = _mma(builder, shape, types, left[i], y, c)
    return t


def _f64_addresses(builder, stage, at, first):
    """address[half][i] of k = 4 i + lane % 4 in one half of the first sixteen rows of a lane."""
    g, lane_k = _parts(builder)
    found = []
    for half in range(2):
        row = builder.add(first, _rows_f64(stage)(builder, g, half))
        ks = [plus(builder, lane_k, 4 * i) for i in range(4)]
        found.append([builder.add(at, place(builder, stage, row, k)) for k in ks])
    return found


def _matrix_f64(context, builder, tile: TeamTile, t, a, b):
    first = times(builder, warp_of_group(builder), tile.rows // 4)
    blocks, columns = tile.rows // 64, tile.columns // 8
    sixteen_a, sixteen_b = (16 * stage.row_bytes for stage in (tile.a, tile.b))
    at_a = _f64_addresses(builder, tile.a, a, first)
    at_b = _f64_addresses(builder, tile.b, b, i32(0))

    def read(addresses, offset: int):
        return [load_shared(builder, x, offset, F64, 1)[0] for x in addresses]

    left = [[read(at, i * sixteen_a) for at in at_a] for i in range(blocks)]
    types = "f64.f64.f64.f64"
    for j in range(columns):
        y = read(at_b[j % 2], j // 2 * sixteen_b)
        for i in range(blocks):
            r = (i * columns + j) * 4
            low, high = left[i]
            if capability(context) >= 90:
                x = [v for pair in zip(low, high, strict=True) for v in pair]
                t[r : r + 4] = _mma(builder, "m16n8k16", types, x, y, t[r : r + 4])
                continue
            for k in range(4):
                t[r : r + 2] = _mma(builder, "m8n8k4", types, [low[k]], [y[k]], t[r : r + 2])
                c = t[r + 2 : r + 4]
                t[r + 2 : r + 4] = _mma(builder, "m8n8k4", types, [high[k]], [y[k]], c)
    return t


# -- matrix unit, fed by itself from the stage ---------------------------------------------------

WIDE_FORMS = {
    "float16": (16, "f32.f16.f16"),
    "bfloat16": (16, "f32.bf16.bf16"),
    "tf32": (8, "f32.tf32.tf32"),
    "int8": (32, "s32.s8.s8"),
    "uint8": (32, "s32.u8.u8"),
    "int8 uint8": (32, "s32.s8.u8"),
    "uint8 int8": (32, "s32.u8.s8"),
    "float8_e4m3fn": (32, "f32.e4m3.e4m3"),
    "float8_e5m2": (32, "f32.e5m2.e5m2"),
}
SWIZZLE_128 = 1 << 62
EIGHT_LINES = (1024 >> 4) << 32


def _descriptor(builder, stage, at):
    """The matrix unit's view of a panel: 14-bit address, strides, 128-byte swizzle.

    Along k, eight rows are 1024 bytes; along rows, eight k are, and a box of rows is
    `depth` x 128 bytes from the next.
    """
    apart = 1 if stage.along == "k" else (stage.depth * 128) >> 4
    constant = SWIZZLE_128 | EIGHT_LINES | (apart << 16)
    low = builder.and_(builder.lshr(at, i32(4)), i32(0x3FFF))
    return builder.or_(builder.zext(low, I64), ir.Constant(I64, constant))


def _wide(context, builder, tile: TeamTile, t, a, b, keep):
    depth, types = WIDE_FORMS[tile.kind]
    blocks = tile.rows // 64
    each = tile.columns // 2
    count = len(t)
    integers = types.startswith("s32")
    wide16 = depth == 16

    def step_of(stage):
        # 32 bytes of k inside a swizzled row, or sixteen lines of 128 bytes.
        return 2 if stage.along == "k" else 128

    base_a, base_b = _descriptor(builder, tile.a, a), _descriptor(builder, tile.b, b)
    block_step = (64 * tile.a.row_bytes) >> 4
    arguments = [*t]
    lines = ["{", ".reg .pred p;", ".reg .pred q;"]
    flag = 2 * count
    arguments.append(builder.zext(keep, I32) if keep.type.width < 32 else narrow_int(builder, keep))
    lines += [f"setp.ne.b32 p, ${flag}, 0;", "setp.ne.b32 q, 1, 0;"]
    lines.append("wgmma.fence.sync.aligned;")
    next_name = flag + 1
    for k in range(4):
        right = builder.add(base_b, ir.Constant(I64, k * step_of(tile.b)))
        arguments.append(right)
        right_name, next_name = next_name, next_name + 1
        for i in range(blocks):
            arguments.append(
                builder.add(base_a, ir.Constant(I64, k * step_of(tile.a) + i * block_step))
            )
            names = _names(i * each, each)
            tail = "" if integers else ", 1, 1"
            if wide16:
                tail += f", {int(tile.a.along != 'k')}, {int(tile.b.along != 'k')}"
            lines.append(
                f"wgmma.mma_async.sync.aligned.m64n{tile.columns}k{depth}.{types} {names}, "
                f"${next_name}, ${right_name}, {'q' if k else 'p'}{tail};"
            )
            next_name += 1
    lines += ["wgmma.commit_group.sync.aligned;", "}"]
    kind = t[0].type
    return ptx(builder, "\n".join(lines), arguments, [kind] * count, tied=count, memory=True)


def settle(builder, t, pending: int):
    """Waits for the wide unit; the tile passes through so that no use of it moves above."""
    text = f"wgmma.wait_group.sync.aligned {pending};"
    return ptx(builder, text, t, [x.type for x in t], tied=len(t), memory=True)


def accumulate(context, builder, tile: TeamTile, t, a, b, step, keep):
    """The registers of t after one `team_accumulate`; a, b: pointers into shared memory."""
    a, b = address(builder, a), address(builder, b)
    if tile.unit == "wide":
        return _wide(context, builder, tile, t, a, b, keep)
    if tile.unit == "matrix":
        return _matrix(context, builder, tile, t, a, b)
    return _lanes(context, builder, tile, t, a, b, narrow_int(builder, step))
