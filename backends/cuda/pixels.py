"""Lowering of the gathering words (gemm/microkernels/pixels.py): the copy engine's own gathering
mode, and lanes that evaluate the rule."""

from __future__ import annotations

from numba.core.types import intp

from gemm.microkernels import pixels

from .. import values
from .ptx import I16, I32, I64, address, flat, i32, lane_of_team, narrow_int, ptx

LONG = I64.as_pointer()


def lower_image_rule(context, builder, sig, args):
    return builder.gep(args[0], [i32(pixels.MAP_BYTES)])


def lower_pixels_fetch(context, builder, sig, args):
    dst, image, gate = args[:3]
    spatial = sig.args[1].rank

    def number(i):
        return narrow_int(builder, context.cast(builder, args[i], sig.args[i], intp))

    # Innermost first: channel, the last spatial axis, .., image.
    where = [number(3), *(number(6 - a) for a in range(spatial)), number(7)]
    taps = [builder.trunc(number(10 - a), I16) for a in range(spatial)]
    count = len(where)
    names = ", ".join(f"${3 + i}" for i in range(count))
    offsets = ", ".join(f"${3 + count + i}" for i in range(spatial))
    text = (
        f"cp.async.bulk.tensor.{count}d.shared::cluster.global.im2col"
        f".mbarrier::complete_tx::bytes [$0], [$1, {{{names}}}], [$2], {{{offsets}}};"
    )
    arguments = [address(builder, dst), flat(builder, image), address(builder, gate)]
    ptx(builder, text, [*arguments, *where, *taps], memory=True)


class Facts:
    """The rule's integers, loaded where they are first wanted."""

    def __init__(self, builder, rule):
        self.builder, self.rule, self.known = builder, rule, {}

    def wide(self, at: int):
        if at not in self.known:
            p = self.builder.gep(self.rule, [i32(8 * at)])
            self.known[at] = self.builder.load(self.builder.bitcast(p, LONG), align=8)
        return self.known[at]

    def short(self, at: int):
        key = -1 - at
        if key not in self.known:
            self.known[key] = self.builder.trunc(self.wide(at), I32)
        return self.known[key]


def _split(builder, value, by):
    """(value // by, value % by)."""
    whole = builder.udiv(value, by)
    return whole, builder.sub(value, builder.mul(whole, by))


def gathered_address(builder, facts: Facts, pixel, column):
    """(byte offset of an element of the gathered matrix, whether it is inside the image)."""
    tap, channel = _split(builder, column, facts.short(pixels.CHANNELS))
    at = builder.mul(builder.sext(channel, I64), facts.wide(pixels.CHANNEL_STEP))
    inside = None
    for axis in reversed(range(pixels.AXES)):

        def fact(which, axis=axis):
            return facts.short(pixels.entry(axis, which))

        pixel, output = _split(builder, pixel, fact(pixels.COUNT))
        tap, t = _split(builder, tap, fact(pixels.TAPS))
        position = builder.add(builder.mul(output, fact(pixels.STEP)), fact(pixels.FIRST))
        position = builder.add(position, builder.mul(t, fact(pixels.ADVANCE)))
        # A negative position is a large unsigned number.
        here = builder.icmp_unsigned("<", position, fact(pixels.EXTENT))
        inside = here if inside is None else builder.and_(inside, here)
        pitch = facts.wide(pixels.entry(axis, pixels.PITCH))
        at = builder.add(at, builder.mul(builder.sext(position, I64), pitch))
    step = facts.wide(pixels.IMAGE_STEP)
    return builder.add(at, builder.mul(builder.zext(pixel, I64), step)), inside


def make_lower_pixels_begin(element, each, limit, load_if, staged, pack):
    """The lowering of `pixels_begin`, from the steps that it shares with `panel_begin`."""

    def lower(context, builder, sig, args):
        stage = values.constant(sig.args[0])
        source, rule, turned = args[2], args[3], values.constant(sig.args[8])
        row, k, rows, depth = (
            context.cast(builder, args[i], sig.args[i], intp) for i in range(4, 8)
        )
        rows, depth = limit(builder, rows, stage.rows), limit(builder, depth, stage.depth)
        row, k = builder.trunc(row, I32), builder.trunc(k, I32)
        dtype, facts = sig.args[2].dtype, Facts(builder, rule)
        lane, base = lane_of_team(builder), flat(builder, source)
        held = []
        for q in each(stage, stage.rows * stage.depth):
            r, j = element(builder, stage, lane, q, stage.near)
            pixel, column = builder.add(row, r), builder.add(k, j)
            if turned:
                pixel, column = column, pixel
            at, inside = gathered_address(builder, facts, pixel, column)
            for index, most in ((r, rows), (j, depth)):
                inside = builder.and_(inside, builder.icmp_unsigned("<", index, most))
            at = builder.add(base, at)
            held += [load_if(builder, at, inside, dtype.real, part * dtype.real.size)
                     for part in range(dtype.components)]  # fmt: skip
        out = [staged(builder, x, dtype.real, stage.dtype.real) for x in held]
        return pack(builder, sig.return_type.llvm, out)

    return lower
