"""The vocabulary on CUDA: lanes words as LLVM vector IR, team words as PTX.

Words that concern one lane (load, store, tiles of a lane) lower as on the CPU; those of a team
(gemm.microkernels.cooperative) are here: who speaks, gates, copies, write-back. What a team's
tile is made of is in tiles.py.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils
from numba.core.types import intp

from gemm.microkernels import arithmetic, pixels, vocabulary
from gemm.microkernels import cooperative as team
from gemm.microkernels.dtypes import DType

from .. import values
from ..cpu.lowering import LOWERINGS as LANE_WORDS
from ..cpu.lowering import RULES as LANE_RULES
from ..cpu.lowering import narrow as narrow_value
from ..cpu.lowering import widen
from ..lanes import LOWERINGS as LANE_TABLE
from ..team_values import GROUP_LANES, TeamTileType
from . import pixels as gathering
from . import tiles
from .ptx import (
    F32,
    I8,
    I16,
    I32,
    I64,
    address,
    capability,
    flat,
    group_of_team,
    i32,
    lane_of_group,
    lane_of_team,
    lane_of_warp,
    load_shared,
    narrow_int,
    place,
    plus,
    ptx,
    special,
    store_shared,
    times,
    warp_of_group,
    warp_of_lane,
)

ROW = team.ROW
MULTICAST = ".multicast::cluster"


def _intp(context, builder, value, kind):
    return context.cast(builder, value, kind, intp)


def _flag(builder, value):
    """A boolean as an i32 operand."""
    return builder.zext(value, I32)


def _wide_index(builder, value):
    return builder.zext(value, I64)


def _unpack(builder, array, count: int):
    return [builder.extract_value(array, i) for i in range(count)]


def _pack(builder, kind, elements):
    out = ir.Constant(kind, ir.Undefined)
    for i, element in enumerate(elements):
        out = builder.insert_value(out, element, i)
    return out


# -- who am I ------------------------------------------------------------------------------------


def lower_worker(context, builder, sig, args):
    return _wide_index(builder, special(builder, "ctaid.x"))


def lower_workers(context, builder, sig, args):
    return _wide_index(builder, special(builder, "nctaid.x"))


def lower_peer(context, builder, sig, args):
    if capability(context) < 90:
        return ir.Constant(I64, 0)
    return _wide_index(builder, special(builder, "cluster.ctarank"))


def lower_group(context, builder, sig, args):
    return _wide_index(builder, group_of_team(builder))


def _is_leader(builder):
    return builder.icmp_unsigned("==", lane_of_group(builder), i32(0))


def lower_leader(context, builder, sig, args):
    return _is_leader(builder)


def _registers(direction):
    def lower(context, builder, sig, args):
        count = values.constant(sig.args[0])
        ptx(builder, f"setmaxnreg.{direction}.sync.aligned.u32 {count};", memory=True)

    return lower


def lower_quotient(context, builder, sig, args):
    a, b = (
        narrow_int(builder, _intp(context, builder, x, k))
        for x, k in zip(args, sig.args, strict=True)
    )
    return _wide_index(builder, builder.udiv(a, b))


def lower_team_raise(context, builder, sig, args):
    value = narrow_int(builder, _intp(context, builder, args[1], sig.args[1]))
    lower_group_sync(context, builder, sig, args)
    text = "{\n.reg .pred speaks;\nsetp.ne.b32 speaks, $2, 0;\n"
    text += "@speaks fence.acq_rel.gpu;\n@speaks st.release.gpu.global.u32 [$0], $1;\n}"
    speaks = _flag(builder, _is_leader(builder))
    ptx(builder, text, [flat(builder, args[0]), value, speaks], memory=True)


def lower_team_await(context, builder, sig, args):
    """Each lane watches a flag of its own, and every 128th after it."""
    count, value = (
        narrow_int(builder, _intp(context, builder, args[i], sig.args[i])) for i in (1, 2)
    )
    text = """{
.reg .pred p;
.reg .b32 i, x;
.reg .b64 at;
mov.b32 i, $3;
next:
setp.ge.u32 p, i, $1;
@p bra through;
mad.wide.u32 at, i, 4, $0;
again:
ld.acquire.gpu.global.u32 x, [at];
setp.ne.u32 p, x, $2;
@p bra again;
add.u32 i, i, 128;
bra next;
through:
}"""
    arguments = [flat(builder, args[0]), count, value, lane_of_group(builder)]
    ptx(builder, text, arguments, memory=True)
    lower_group_sync(context, builder, sig, args)


# -- shared memory and gates ---------------------------------------------------------------------

SHARED = "gemm_shared"


def lower_team_memory(context, builder, sig, args):
    module = builder.module
    try:
        memory = module.get_global(SHARED)
    except KeyError:
        memory = ir.GlobalVariable(module, ir.ArrayType(I8, 0), SHARED, addrspace=3)
        memory.linkage = "external"
        memory.align = 1024
    zero = i32(0)
    return builder.gep(memory, [zero, zero])


def lower_team_sync(context, builder, sig, args):
    ptx(builder, "barrier.sync 0;", memory=True)


def lower_peers_sync(context, builder, sig, args):
    if capability(context) < 90:
        return lower_team_sync(context, builder, sig, args)
    text = "barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;"
    return ptx(builder, text, memory=True) and None


def lower_gate_open(context, builder, sig, args):
    count = narrow_int(builder, _intp(context, builder, args[1], sig.args[1]))
    ptx(
        builder,
        "mbarrier.init.shared.b64 [$0], $1;",
        [address(builder, args[0]), count],
        memory=True,
    )


def lower_gates_opened(context, builder, sig, args):
    ptx(builder, "fence.mbarrier_init.release.cluster;", memory=True)


def lower_gate_wait(context, builder, sig, args):
    phase = narrow_int(builder, _intp(context, builder, args[1], sig.args[1]))
    text = """{
.reg .pred done;
again:
mbarrier.try_wait.parity.shared.b64 done, [$0], $1;
@done bra through;
bra again;
through:
}"""
    ptx(builder, text, [address(builder, args[0]), phase], memory=True)


def lower_gate_expect(context, builder, sig, args):
    count = narrow_int(builder, _intp(context, builder, args[1], sig.args[1]))
    text = "mbarrier.arrive.expect_tx.shared.b64 _, [$0], $1;"
    ptx(builder, text, [address(builder, args[0]), count], memory=True)


def lower_gate_arrive(context, builder, sig, args):
    """arrivals 1: lane r of the group arrives at peer r; else lane r of each warp does."""
    peers, arrivals = values.constant(sig.args[1]), values.constant(sig.args[2])
    at = address(builder, args[0])
    when = context.is_true(builder, sig.args[3], args[3])
    if arrivals == 1:
        lane = lane_of_group(builder)
    else:
        _warp_sync(builder)
        lane = lane_of_warp(builder)
    speaks = builder.and_(builder.icmp_unsigned("<", lane, i32(peers)), when)
    head = "{\n.reg .pred speaks;\nsetp.ne.b32 speaks, $1, 0;\n"
    if peers == 1:
        text = head + "@speaks mbarrier.arrive.shared.b64 _, [$0];\n}"
        ptx(builder, text, [at, _flag(builder, speaks)], memory=True)
        return
    text = (
        head + ".reg .b32 there;\n@speaks mapa.shared::cluster.u32 there, $0, $2;\n"
        "@speaks mbarrier.arrive.shared::cluster.b64 _, [there];\n}"
    )
    ptx(builder, text, [at, _flag(builder, speaks), lane], memory=True)


# -- filling -------------------------------------------------------------------------------------


def lower_box_fetch(context, builder, sig, args):
    dst, box, gate = args[:3]
    rank, peers = sig.args[1].rank, values.constant(sig.args[7])
    place_at = [
        narrow_int(builder, _intp(context, builder, args[3 + i], sig.args[3 + i]))
        for i in range(rank)
    ]
    names = ", ".join(f"${3 + i}" for i in range(rank))
    arguments = [address(builder, dst), flat(builder, box), address(builder, gate), *place_at]
    tail = ""
    if peers > 1:
        tail = f", ${3 + rank}"
        arguments.append(ir.Constant(I16, (1 << peers) - 1))
    text = (
        f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.mbarrier::complete_tx::bytes"
        f"{MULTICAST if peers > 1 else ''} [$0], [$1, {{{names}}}], [$2]{tail};"
    )
    ptx(builder, text, arguments, memory=True)


def lower_memory_ahead(context, builder, sig, args):
    if capability(context) < 90:
        return
    sixteen = ir.Constant(I64, 15)
    start = flat(builder, args[0])
    end = builder.add(start, _intp(context, builder, args[1], sig.args[1]))
    first = builder.and_(builder.add(start, sixteen), ir.Constant(I64, -16))
    nbytes = builder.trunc(builder.sub(builder.and_(end, ir.Constant(I64, -16)), first), I32)
    text = (
        "{\n.reg .pred some;\nsetp.gt.s32 some, $1, 0;\n"
        "@some cp.async.bulk.prefetch.L2.global [$0], $1;\n}"
    )
    ptx(builder, text, [first, nbytes], memory=True)


def _each(stage, total: int):
    if total % stage.lanes:
        raise TypeError(f"{total} moves are not a multiple of {stage.lanes} lanes")
    return range(total // stage.lanes)


def _panel_arguments(context, builder, sig, args):
    numbers = [_intp(context, builder, args[i], sig.args[i]) for i in range(3, 7)]
    return args[1], args[2], *numbers


def _limit(builder, count, most: int):
    """An i64 count as an i32 clamped to 0..most."""
    zero, top = ir.Constant(I64, 0), ir.Constant(I64, most)
    count = builder.select(builder.icmp_signed("<", count, zero), zero, count)
    count = builder.select(builder.icmp_signed(">", count, top), top, count)
    return builder.trunc(count, I32)


def _far(builder, base, *products):
    """base + sum of i32 index * i64 step."""
    for index, step in products:
        base = builder.add(base, builder.mul(builder.zext(index, I64), step))
    return base


def lower_panel_begin(context, builder, sig, args):
    stage = values.constant(sig.args[0])
    dst, source, row_step, k_step, rows, depth = _panel_arguments(context, builder, sig, args)
    rows, depth = _limit(builder, rows, stage.rows), _limit(builder, depth, stage.depth)
    kind = sig.return_type
    if stage.route == "async":
        _panel_async(context, builder, stage, dst, source, row_step, k_step, rows, depth)
        return ir.Constant(kind.llvm, ir.Undefined)
    dtype = sig.args[2].dtype
    lane, base = lane_of_team(builder), flat(builder, source)
    held = []
    for q in _each(stage, stage.rows * stage.depth):
        row, k = _element(builder, stage, lane, q, stage.near)
        inside = builder.and_(
            builder.icmp_unsigned("<", row, rows), builder.icmp_unsigned("<", k, depth)
        )
        at = _far(builder, base, (row, row_step), (k, k_step))
        held.append([_load_if(builder, at, inside, dtype.real, part * dtype.real.size)
                     for part in range(dtype.components)])  # fmt: skip
    out = [_staged(builder, x, dtype.real, stage.dtype.real) for raw in held for x in raw]
    return _pack(builder, kind.llvm, out)


def _staged(builder, raw, source: DType, staged: DType):
    """A raw element of `source` as a raw element of the stage."""
    if source == staged:
        return raw
    value = _as(builder, widen(builder, raw, source), source, staged.computed)
    return narrow_value(builder, value, staged)


def _as(builder, value, source: DType, computed: DType):
    """A value widened from `source` as a value of `computed`, where the stage computes wider."""
    want = values.LLVM_SCALARS[computed.name]
    if value.type == want:
        return value
    if isinstance(want, ir.IntType):
        return builder.zext(value, want) if source.kind == "u" else builder.sext(value, want)
    return builder.fpext(value, want)


def _element(builder, stage, lane, q: int, near: str):
    """(row, k) of the q-th element of a lane; neighbouring lanes are neighbours along `near`."""
    inner = stage.depth if near == "k" else stage.rows
    index = plus(builder, lane, q * stage.lanes)
    outer = builder.udiv(index, i32(inner))
    rest = builder.sub(index, times(builder, outer, inner))
    return (outer, rest) if near == "k" else (rest, outer)


def _load_if(builder, at, inside, dtype: DType, offset: int):
    """One component of `dtype` at a global address, or zero bits; raw, as LLVM loads it."""
    bits = dtype.bits
    register, kind = {8: ("r", I32), 16: ("h", I16), 32: ("r", I32), 64: ("l", I64)}[bits]
    form = {8: "u8", 16: "b16", 32: "b32", 64: "b64"}[bits]
    text = (
        "{\n.reg .pred inside;\nsetp.ne.b32 inside, $2, 0;\n"
        f"mov.b{max(bits, 16) if bits != 8 else 32} $0, 0;\n"
        f"@inside ld.global.{form} $0, [$1+{offset}];\n}}"
    )
    raw = ptx(builder, text, [at, _flag(builder, inside)], [kind])[0]
    if bits == 8:
        return builder.trunc(raw, I8)
    want = values.LLVM_SCALARS.get(dtype.name)
    return builder.bitcast(raw, want) if isinstance(want, ir.FloatType | ir.DoubleType) else raw


def _panel_async(context, builder, stage, dst, source, row_step, k_step, rows, depth):
    """Sixteen bytes a lane: cp.async, whose source size fills the rest with zeros."""
    size = stage.dtype.size
    span = team.CHUNK // size
    lane, base, to = lane_of_team(builder), flat(builder, source), address(builder, dst)
    near_k = stage.along == "k"
    lines, length = (stage.rows, stage.depth) if near_k else (stage.depth, stage.rows)
    line_count, inner_count = (rows, depth) if near_k else (depth, rows)
    line_step = row_step if near_k else k_step
    chunks = length // span
    for q in _each(stage, lines * chunks):
        index = plus(builder, lane, q * stage.lanes)
        line = builder.udiv(index, i32(chunks))
        inner = times(builder, builder.sub(index, times(builder, line, chunks)), span)
        left = builder.sub(inner_count, inner)
        left = builder.select(builder.icmp_signed("<", left, i32(0)), i32(0), left)
        left = builder.select(builder.icmp_signed(">", left, i32(span)), i32(span), left)
        inside = builder.icmp_unsigned("<", line, line_count)
        left = times(builder, builder.select(inside, left, i32(0)), size)
        some = builder.icmp_unsigned(">", left, i32(0))
        at = _far(builder, base, (line, line_step))
        at = builder.add(at, builder.zext(times(builder, inner, size), I64))
        at = builder.select(some, at, base)
        where = place(builder, stage, line, inner) if near_k else place(builder, stage, inner, line)
        text = "cp.async.cg.shared.global [$0], [$1], 16, $2;"
        ptx(builder, text, [builder.add(to, where), at, left], memory=True)


def lower_panel_end(context, builder, sig, args):
    stage = values.constant(sig.args[0])
    if stage.route == "async":
        return
    kind = sig.args[2]
    lane, to = lane_of_team(builder), address(builder, args[1])
    parts = stage.dtype.components
    held = _unpack(builder, args[2], kind.count * parts)
    for q in _each(stage, stage.rows * stage.depth):
        row, k = _element(builder, stage, lane, q, stage.near)
        at = builder.add(to, place(builder, stage, row, k))
        _store_raw(builder, at, held[q * parts : (q + 1) * parts])


def _store_raw(builder, at, raw):
    if raw[0].type == I8:
        wide = builder.zext(raw[0], I32)
        ptx(builder, "st.shared.u8 [$0], $1;", [at, wide], memory=True)
    else:
        store_shared(builder, at, 0, raw)


def lower_panel_write(context, builder, sig, args):
    stage, dtype, part = (
        values.constant(sig.args[0]),
        sig.args[1].dtype,
        values.constant(sig.args[6]),
    )
    row_step = _intp(context, builder, args[2], sig.args[2])
    rows = _limit(builder, _intp(context, builder, args[4], sig.args[4]), stage.rows)
    depth = _limit(builder, _intp(context, builder, args[5], sig.args[5]), stage.depth)
    lane, base, src = lane_of_team(builder), flat(builder, args[1]), address(builder, args[3])
    for q in _each(stage, stage.rows * stage.depth):
        row, k = _element(builder, stage, lane, q, "k")
        at = builder.add(src, place(builder, stage, row, k))
        bits = stage.dtype.bits
        if bits == 8:
            raw = ptx(builder, "ld.shared.u8 $0, [$1];", [at], [I32])[0]
            raw = builder.trunc(raw, I8)
        else:
            kind = values.LLVM_SCALARS.get(stage.dtype.name, ir.IntType(bits))
            raw = load_shared(builder, at, 0, kind, 1)[0]
        if part:
            big = _round19(builder, raw)
            raw = big if part == 1 else _round19(builder, builder.fsub(raw, big))
        raw = _staged(builder, raw, stage.dtype, dtype)
        inside = builder.and_(
            builder.icmp_unsigned("<", row, rows), builder.icmp_unsigned("<", k, depth)
        )
        to = _far(builder, base, (row, row_step))
        to = builder.add(to, builder.zext(times(builder, k, dtype.size), I64))
        _store_if(builder, to, inside, raw)


def _round19(builder, value):
    return ptx(builder, "cvt.rna.tf32.f32 $0, $1;", [value], [F32], effect=False)[0]


def _store_if(builder, at, inside, raw):
    bits = {F32: 32}.get(raw.type) or getattr(raw.type, "width", 64)
    form = {8: "u8", 16: "b16", 32: "b32", 64: "b64"}[bits]
    if bits == 8:
        raw = builder.zext(raw, I32)
    head = "{\n.reg .pred inside;\nsetp.ne.b32 inside, $1, 0;\n"
    text = head + f"@inside st.global.{form} [$0], $2;\n}}"
    if raw.type in (F32, ir.DoubleType()):
        raw = builder.bitcast(raw, ir.IntType(bits))
    ptx(builder, text, [at, _flag(builder, inside), raw], memory=True)


def lower_panels_seen(context, builder, sig, args):
    ptx(builder, "fence.proxy.async.shared::cta;", memory=True)


def lower_panels_commit(context, builder, sig, args):
    if capability(context) >= 80:
        ptx(builder, "cp.async.commit_group;", memory=True)


def lower_panels_wait(context, builder, sig, args):
    if capability(context) >= 80:
        ptx(builder, f"cp.async.wait_group {values.constant(sig.args[0])};", memory=True)


# -- tiles ---------------------------------------------------------------------------------------


def lower_team_zeros(context, builder, sig, args):
    return ir.Constant(sig.return_type.llvm, None)


def lower_team_tile(context, builder, sig, args):
    return ir.Constant(sig.return_type.llvm, ir.Undefined)


def _registers_of(builder, t, kind: TeamTileType):
    return _unpack(builder, t, kind.count)


def lower_team_accumulate(context, builder, sig, args):
    kind = sig.return_type
    t = _registers_of(builder, args[1], kind)
    step = _intp(context, builder, args[4], sig.args[4])
    keep = context.is_true(builder, sig.args[5], args[5])
    t = tiles.accumulate(context, builder, kind.tile, t, args[2], args[3], step, keep)
    return _pack(builder, kind.llvm, t)


def lower_team_settle(context, builder, sig, args):
    kind = sig.args[0]
    if kind.tile.unit != "wide":
        return args[0]
    t = tiles.settle(builder, _registers_of(builder, args[0], kind), values.constant(sig.args[1]))
    return _pack(builder, kind.llvm, t)


def lower_team_add(context, builder, sig, args):
    kind = sig.return_type
    integer = isinstance(kind.scalar, ir.IntType)
    pairs = zip(*(_registers_of(builder, x, kind) for x in args), strict=True)
    add = builder.add if integer else builder.fadd
    return _pack(builder, kind.llvm, [add(x, y) for x, y in pairs])


def lower_team_scale(context, builder, sig, args):
    kind = sig.return_type
    t = _registers_of(builder, args[0], kind)
    return _pack(builder, kind.llvm, [builder.fmul(x, args[1]) for x in t])


# -- write-back ----------------------------------------------------------------------------------


def _narrow_run(context, builder, registers, dtype: DType):
    """A run of accumulators as stored registers of 16, 32 or 64 bits, in pairs where possible."""
    real = dtype.real
    if real.name in ("float16", "bfloat16") and len(registers) % 2 == 0:
        form = "f16x2" if real.name == "float16" else "bf16x2"
        if capability(context) >= 80:
            out = []
            for low, high in zip(registers[::2], registers[1::2], strict=True):
                text = f"cvt.rn.{form}.f32 $0, $1, $2;"
                out += ptx(builder, text, [high, low], [I32], effect=False)
            return out
    raw = [narrow_value(builder, x, real) for x in registers]
    if isinstance(raw[0].type, ir.IntType) and raw[0].type.width < 32 and len(raw) > 1:
        # Several narrow values in one register.
        width, joined = raw[0].type.width, []
        each = min(len(raw), 32 // width)
        for start in range(0, len(raw), each):
            word = i32(0)
            for i, x in enumerate(raw[start : start + each]):
                word = builder.or_(word, builder.shl(builder.zext(x, I32), i32(i * width)))
            joined.append(builder.trunc(word, ir.IntType(each * width)))
        return joined
    return raw


def _deposit(context, builder, registers, tile, dtype: DType, where, chunk: int, width: int, found):
    """Writes the columns chunk * width .. of a tile to the room at `where`, swizzled."""
    for run, row, column, base in found:
        if base // width != chunk:
            continue
        byte = times(builder, plus(builder, column, -chunk * width), dtype.size)
        swizzle = builder.shl(builder.and_(row, i32(7)), i32(4))
        at = builder.add(builder.add(where, times(builder, row, ROW)), builder.xor(byte, swizzle))
        raw = _narrow_run(context, builder, [registers[r] for r in run], dtype)
        bits = {F32: 32, ir.DoubleType(): 64}.get(raw[0].type) or raw[0].type.width
        if bits == 8:
            _store_raw(builder, at, raw)
            continue
        each = max(1, 128 // bits)
        for start in range(0, len(raw), each):
            store_shared(builder, at, start * bits // 8, raw[start : start + each])


def _chunks(tile, dtype: DType):
    """(columns in 128 bytes of output, how many such chunks the tile has)."""
    width = min(ROW // dtype.size, tile.columns)
    return width, tile.columns // width


def _slots(tile) -> int:
    return 2 if tile.rows <= 64 else 1


def _warp_sync(builder):
    ptx(builder, "bar.warp.sync -1;", memory=True)


def _warp_room(builder, tile, room):
    """(where this warp's part of the room starts, bytes of one of its slots)."""
    slot = tile.rows // 4 * ROW
    step = slot * _slots(tile)
    return builder.add(address(builder, room), times(builder, warp_of_group(builder), step)), slot


def lower_team_send(context, builder, sig, args):
    """Each warp reorders its rows in its own part of the room and sends them by itself."""
    box, room, t = args[:3]
    rank, kind, dtype = sig.args[0].rank, sig.args[2], values.constant(sig.args[7])
    tile = kind.tile
    registers = _registers_of(builder, t, kind)
    x, y, u, v = (
        narrow_int(builder, _intp(context, builder, args[i], sig.args[i])) for i in range(3, 7)
    )
    width, count = _chunks(tile, dtype)
    slots = _slots(tile)
    found = tiles.pieces(builder, tile)
    start, slot = _warp_room(builder, tile, room)
    speaks = _flag(builder, builder.icmp_unsigned("==", lane_of_warp(builder), i32(0)))
    head = "{\n.reg .pred speaks;\nsetp.ne.b32 speaks, $0, 0;\n"
    # The next tile begins with the first slot again, whichever this one ended with.
    pending = slots - 1 if count % slots == 0 else 0
    for chunk in range(count):
        # A slot is free once the copy engine has read what was put there before.
        text = head + f"@speaks cp.async.bulk.wait_group.read {pending};\n}}"
        ptx(builder, text, [speaks], memory=True)
        _warp_sync(builder)
        where = plus(builder, start, chunk % slots * slot)
        _deposit(context, builder, registers, tile, dtype, where, chunk, width, found)
        ptx(builder, "fence.proxy.async.shared::cta;", memory=True)
        _warp_sync(builder)
        names = ", ".join(f"${3 + i}" for i in range(rank))
        store = (
            f"@speaks cp.async.bulk.tensor.{rank}d.global.shared::cta.bulk_group"
            f" [$1, {{{names}}}], [$2];"
        )
        boxes = tile.rows // 4 // tile.box_rows
        for i in range(boxes):
            row = tiles.warp_row(builder, tile, i32(i * tile.box_rows))
            at = [plus(builder, x, chunk * width), builder.add(y, row), u, v][:rank]
            last = "\n@speaks cp.async.bulk.commit_group;" if i == boxes - 1 else ""
            source = plus(builder, where, i * tile.box_rows * ROW)
            ptx(builder, head + store + last + "\n}", [speaks, flat(builder, box), source, *at],
                memory=True)  # fmt: skip


def lower_team_drain(context, builder, sig, args):
    ptx(builder, "cp.async.bulk.wait_group 0;", memory=True)


def lower_team_write(context, builder, sig, args):
    p, room, t = args[0], args[2], args[3]
    kind, dtype = sig.args[3], sig.args[0].dtype
    tile = kind.tile
    row_step, m, n = (_intp(context, builder, args[i], sig.args[i]) for i in (1, 4, 5))
    rows, columns = _limit(builder, m, tile.rows), _limit(builder, n, tile.columns)
    registers = _registers_of(builder, t, kind)
    width, count = _chunks(tile, dtype)
    found = tiles.pieces(builder, tile)
    base, (start, slot) = flat(builder, p), _warp_room(builder, tile, room)
    span = team.CHUNK // dtype.size
    odd = builder.and_(builder.or_(base, row_step), ir.Constant(I64, 15))
    aligned = builder.icmp_unsigned("==", odd, ir.Constant(I64, 0))
    for chunk in range(count):
        where = plus(builder, start, chunk % _slots(tile) * slot)
        _warp_sync(builder)
        _deposit(context, builder, registers, tile, dtype, where, chunk, width, found)
        _warp_sync(builder)
        first = builder.add(base, ir.Constant(I64, chunk * width * dtype.size))
        full = builder.icmp_unsigned(">=", columns, i32((chunk + 1) * width))
        with builder.if_else(builder.and_(aligned, full)) as (vector, scalar):
            with vector:
                _drain_chunks(builder, tile, where, first, row_step, rows, width // span)
            with scalar:
                left = builder.sub(columns, i32(chunk * width))
                _drain_elements(builder, tile, dtype, where, first, row_step, rows, left, width)


def _drain_chunks(builder, tile, room, first, row_step, rows, across: int):
    """Whole rows of the warp's slot to memory, sixteen bytes a lane."""
    lane, high = lane_of_warp(builder), 32 // across
    inner = builder.and_(lane, i32(across - 1))
    outer = builder.udiv(lane, i32(across))
    with cgutils.for_range(builder, i32(-(-tile.rows // 4 // high)), intp=I32) as loop:
        local = builder.add(outer, times(builder, loop.index, high))
        row = tiles.warp_row(builder, tile, local)
        inside = builder.icmp_unsigned("<", row, rows)
        if tile.rows // 4 < high:
            inside = builder.and_(inside, builder.icmp_unsigned("<", local, i32(tile.rows // 4)))
        with builder.if_then(inside):
            byte = builder.shl(inner, i32(4))
            swizzle = builder.shl(builder.and_(local, i32(7)), i32(4))
            at = builder.add(
                builder.add(room, times(builder, local, ROW)), builder.xor(byte, swizzle)
            )
            words = load_shared(builder, at, 0, I32, 4)
            to = builder.add(_far(builder, first, (row, row_step)), builder.zext(byte, I64))
            text = "st.global.v4.b32 [$0], {$1, $2, $3, $4};"
            ptx(builder, text, [to, *words], memory=True)


def _drain_elements(builder, tile, dtype, room, first, row_step, rows, left, width: int):
    """The same element by element (component by component of complex numbers)."""
    size, parts = dtype.real.size, dtype.components
    lane, across = lane_of_warp(builder), width * parts
    with cgutils.for_range(builder, i32(tile.rows // 4 * across // 32), intp=I32) as loop:
        index = builder.add(lane, times(builder, loop.index, 32))
        local = builder.udiv(index, i32(across))
        column = builder.sub(index, times(builder, local, across))
        row = tiles.warp_row(builder, tile, local)
        inside = builder.and_(
            builder.icmp_unsigned("<", row, rows),
            builder.icmp_signed("<", column, times(builder, left, parts)),
        )
        with builder.if_then(inside):
            byte = times(builder, column, size)
            swizzle = builder.shl(builder.and_(local, i32(7)), i32(4))
            at = builder.add(
                builder.add(room, times(builder, local, ROW)), builder.xor(byte, swizzle)
            )
            if size == 1:
                raw = ptx(builder, "ld.shared.u8 $0, [$1];", [at], [I32])[0]
            else:
                raw = load_shared(builder, at, 0, ir.IntType(8 * size), 1)[0]
            to = builder.add(_far(builder, first, (row, row_step)), builder.zext(byte, I64))
            form = "u8" if size == 1 else f"b{8 * size}"
            ptx(builder, f"st.global.{form} [$0], $1;", [to, raw], memory=True)


# -- a spilled tile, lane by lane ----------------------------------------------------------------


def lower_lane(context, builder, sig, args):
    # Opaque, so that what follows from it is computed where it is used: kept through a loop over
    # chunks, the addresses of all rows would not fit the registers beside the tile.
    (lane,) = ptx(builder, "mov.b32 $0, $1;", [lane_of_warp(builder)], [I32])
    return _wide_index(builder, lane)


def lower_lanes(context, builder, sig, args):
    return ir.Constant(I64, 32)


def lower_lanes_sync(context, builder, sig, args):
    _warp_sync(builder)


def lower_lane_value(context, builder, sig, args):
    other = narrow_int(builder, _intp(context, builder, args[1], sig.args[1]))
    out = ir.Constant(args[0].type, ir.Undefined)
    for at in range(args[0].type.count):
        x = builder.extract_element(args[0], i32(at))
        out = builder.insert_element(out, _of_lane(builder, x, other), i32(at))
    return out


def _of_lane(builder, x, other):
    bits = {F32: 32, ir.DoubleType(): 64}.get(x.type) or x.type.width
    raw = builder.bitcast(x, ir.IntType(bits))
    words = [builder.trunc(builder.lshr(raw, ir.Constant(raw.type, at)), I32)
             for at in range(0, bits, 32)]  # fmt: skip
    text = "shfl.sync.idx.b32 $0, $1, $2, 31, -1;"
    out = ir.Constant(raw.type, 0)
    for at, word in enumerate(words):
        (moved,) = ptx(builder, text, [word, other], [I32])
        moved = builder.zext(moved, raw.type) if bits > 32 else moved
        out = builder.or_(out, builder.shl(moved, ir.Constant(raw.type, 32 * at)))
    return builder.bitcast(out, x.type)


def lower_misalignment(context, builder, sig, args):
    beyond = ir.Constant(I64, values.constant(sig.args[1]) - 1)
    return builder.and_(builder.ptrtoint(args[0], I64), beyond)


def lower_aligned(context, builder, sig, args):
    return args[0]


def lower_group_lane(context, builder, sig, args):
    return _wide_index(builder, lane_of_group(builder))


def lower_group_lanes(context, builder, sig, args):
    return ir.Constant(I64, GROUP_LANES)


def lower_group_sync(context, builder, sig, args):
    # Barrier 0 is the team's.
    number = plus(builder, group_of_team(builder), 1)
    ptx(builder, f"barrier.sync $0, {GROUP_LANES};", [number], memory=True)


def lower_rows_held(context, builder, sig, args):
    return ir.Constant(I64, values.constant(sig.args[0]).rows // 4)


def lower_row_of(context, builder, sig, args):
    tile = values.constant(sig.args[0])
    held = narrow_int(builder, _intp(context, builder, args[1], sig.args[1]))
    return _wide_index(builder, tiles.warp_row(builder, tile, held, warp_of_lane(builder)))


def _spill_room(builder, tile, room):
    """Where this warp's part of the room starts."""
    apart = tile.rows // 4 * ROW * _slots(tile)
    return builder.add(address(builder, room), times(builder, warp_of_lane(builder), apart))


def lower_team_spill(context, builder, sig, args):
    tile, kind = values.constant(sig.args[0]), sig.args[1]
    registers = _registers_of(builder, args[1], kind)
    chunk = narrow_int(builder, _intp(context, builder, args[3], sig.args[3]))
    width, count = _chunks(tile, tile.dtype)
    where = _spill_room(builder, tile, args[2])
    _warp_sync(builder)
    # Opaque, so that the places of all chunks are not computed ahead of the loop over them: they
    # would not fit the registers beside the tile.
    (lane,) = ptx(builder, "mov.b32 $0, $1;", [lane_of_warp(builder)], [I32])
    found = tiles.pieces(builder, tile, lane)
    # Registers have no index: each chunk is a branch of its own, the same for all lanes.
    done = builder.append_basic_block("spilled")
    branches = [builder.append_basic_block(f"chunk{c}") for c in range(count)]
    switch = builder.switch(chunk, branches[-1])
    for c, branch in enumerate(branches):
        if c < count - 1:
            switch.add_case(i32(c), branch)
        builder.position_at_end(branch)
        _deposit(context, builder, registers, tile, tile.dtype, where, c, width, found)
        builder.branch(done)
    builder.position_at_end(done)
    _warp_sync(builder)


def lower_spilled(context, builder, sig, args):
    tile = values.constant(sig.args[0])
    row, column = (
        narrow_int(builder, _intp(context, builder, args[i], sig.args[i])) for i in (2, 3)
    )
    byte = times(builder, column, tile.dtype.size)
    swizzle = builder.shl(builder.and_(row, i32(7)), i32(4))
    at = builder.add(times(builder, row, ROW), builder.xor(byte, swizzle))
    at = builder.add(_spill_room(builder, tile, args[1]), at)
    return builder.inttoptr(at, I8.as_pointer(3))


# -- elements of a lane ---------------------------------------------------------------------------
#
# Elements lie at multiples of their size (the host refuses others). A lane takes them one by one,
# or several that are all there; an edge within a lane's vector is the common lowering's.


def _element_type(dtype: DType):
    return values.LLVM_SCALARS.get(dtype.real.name, ir.IntType(dtype.real.bits))


def _typed(builder, p, kind, space: int):
    return builder.bitcast(p, kind.as_pointer(space))


def _whole(n, lanes: int) -> bool:
    return lanes == 1 or (isinstance(n, ir.Constant) and n.constant >= lanes)


def _alignment(pointer) -> int:
    return max(pointer.dtype.real.size, pointer.align)


def _widened(builder, raw, dtype: DType, kind):
    """A vector as stored, as lanes of type `kind`."""
    if dtype.name == "float16":
        half = builder.bitcast(raw, ir.VectorType(ir.HalfType(), raw.type.count))
        return builder.fpext(half, kind)
    return widen(builder, raw, dtype)


def lower_elements_of(context, builder, sig, args):
    dtype, kind = values.constant(sig.args[1]), sig.return_type.llvm
    raw = builder.bitcast(args[0], ir.VectorType(_element_type(dtype), kind.count))
    return _widened(builder, raw, dtype, kind)


def lower_load_lanes(context, builder, sig, args):
    pointer, lanes = sig.args[0], values.constant(sig.args[1])
    dtype = pointer.dtype
    if not _whole(_intp(context, builder, args[2], sig.args[2]), lanes):
        return LANE_WORDS[vocabulary.load_lanes](context, builder, sig, args)
    kind = ir.VectorType(_element_type(dtype), lanes * dtype.components)
    raw = builder.load(_typed(builder, args[0], kind, pointer.space), align=_alignment(pointer))
    return _widened(builder, raw, dtype, sig.return_type.llvm)


def _narrowed(context, builder, vector, dtype: DType):
    if dtype.name == "float16" and vector.type.element == F32:
        half = builder.fptrunc(vector, ir.VectorType(ir.HalfType(), vector.type.count))
        return builder.bitcast(half, ir.VectorType(I16, vector.type.count))
    if dtype.name == "bfloat16" and vector.type.count == 1 and capability(context) >= 80:
        x = builder.extract_element(vector, i32(0))
        return _vector_of(
            builder, ptx(builder, "cvt.rn.bf16.f32 $0, $1;", [x], [I16], effect=False)
        )
    if dtype.size < 4 and vector.type.count % 2 == 0:
        count = vector.type.count
        x = [builder.extract_element(vector, i32(at)) for at in range(count)]
        words = _vector_of(builder, _narrow_run(context, builder, x, dtype))
        return builder.bitcast(words, ir.VectorType(ir.IntType(8 * dtype.size), count))
    return narrow_value(builder, vector, dtype)


def _vector_of(builder, elements):
    out = ir.Constant(ir.VectorType(elements[0].type, len(elements)), ir.Undefined)
    for at, element in enumerate(elements):
        out = builder.insert_element(out, element, i32(at))
    return out


def lower_store_lanes(context, builder, sig, args):
    pointer, lanes = sig.args[0], sig.args[1].lanes
    dtype = pointer.dtype
    if not _whole(_intp(context, builder, args[2], sig.args[2]), lanes):
        return LANE_WORDS[vocabulary.store_lanes](context, builder, sig, args)
    raw = _narrowed(context, builder, args[1], dtype)
    builder.store(raw, _typed(builder, args[0], raw.type, pointer.space), align=_alignment(pointer))


def lower_reciprocal(context, builder, sig, args):
    """The unit's estimate and one step of Newton's, the division's own way where nothing
    overflows: it rounds to nearest, and has no branch."""
    if args[0].type.element != F32:
        return LANE_TABLE[arithmetic.reciprocal](context, builder, sig, args)
    text = (
        "{\n.reg .f32 near, rest, minus;\nrcp.approx.ftz.f32 near, $1;\nneg.f32 minus, $1;\n"
        "fma.rn.f32 rest, minus, near, 0f3F800000;\nfma.rn.f32 $0, near, rest, near;\n}"
    )
    each = [builder.extract_element(args[0], i32(at)) for at in range(args[0].type.count)]
    found = [ptx(builder, text, [x], [F32], effect=False)[0] for x in each]
    return _vector_of(builder, found)


def lower_load(context, builder, sig, args):
    pointer = sig.args[0]
    kind = _element_type(pointer.dtype)
    raw = builder.load(_typed(builder, args[0], kind, pointer.space), align=pointer.dtype.real.size)
    return widen(builder, raw, pointer.dtype)


def lower_table_pointer(context, builder, sig, args):
    slot = LANE_TABLE[arithmetic.table_integer](context, builder, sig, args)
    return builder.inttoptr(slot, I8.as_pointer(1))


# What a table points to is global memory.
RULES = {
    **LANE_RULES,
    arithmetic.table_pointer: lambda table, slot, dtype: values.Pointer(values.constant(dtype), 1),
}
LOWERINGS = {
    **LANE_WORDS,
    arithmetic.table_pointer: lower_table_pointer,
    arithmetic.reciprocal: lower_reciprocal,
    vocabulary.load: lower_load,
    vocabulary.load_lanes: lower_load_lanes,
    vocabulary.store_lanes: lower_store_lanes,
    team.lane: lower_lane,
    team.lanes: lower_lanes,
    team.lanes_sync: lower_lanes_sync,
    team.lane_value: lower_lane_value,
    team.elements_of: lower_elements_of,
    team.misalignment: lower_misalignment,
    team.aligned: lower_aligned,
    team.group_lane: lower_group_lane,
    team.group_lanes: lower_group_lanes,
    team.group_sync: lower_group_sync,
    team.rows_held: lower_rows_held,
    team.row_of: lower_row_of,
    team.team_spill: lower_team_spill,
    team.spilled: lower_spilled,
    team.worker: lower_worker,
    team.workers: lower_workers,
    team.peer: lower_peer,
    team.group: lower_group,
    team.leader: lower_leader,
    team.claim_registers: _registers("inc"),
    team.yield_registers: _registers("dec"),
    team.team_raise: lower_team_raise,
    team.team_await: lower_team_await,
    team.quotient: lower_quotient,
    team.team_memory: lower_team_memory,
    team.team_sync: lower_team_sync,
    team.peers_sync: lower_peers_sync,
    team.gate_open: lower_gate_open,
    team.gates_opened: lower_gates_opened,
    team.gate_wait: lower_gate_wait,
    team.gate_expect: lower_gate_expect,
    team.gate_arrive: lower_gate_arrive,
    team.box_fetch: lower_box_fetch,
    pixels.image_rule: gathering.lower_image_rule,
    pixels.pixels_fetch: gathering.lower_pixels_fetch,
    pixels.pixels_begin: gathering.make_lower_pixels_begin(
        _element, _each, _limit, _load_if, _staged, _pack
    ),
    team.memory_ahead: lower_memory_ahead,
    team.panel_begin: lower_panel_begin,
    team.panel_end: lower_panel_end,
    team.panel_write: lower_panel_write,
    team.panels_seen: lower_panels_seen,
    team.panels_commit: lower_panels_commit,
    team.panels_wait: lower_panels_wait,
    team.team_zeros: lower_team_zeros,
    team.team_tile: lower_team_tile,
    team.team_accumulate: lower_team_accumulate,
    team.team_settle: lower_team_settle,
    team.team_add: lower_team_add,
    team.team_scale: lower_team_scale,
    team.team_send: lower_team_send,
    team.team_drain: lower_team_drain,
    team.team_write: lower_team_write,
}
