"""The words of microkernels/windows.py as LLVM vector IR."""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from gemm.microkernels import windows as words

from .. import values
from . import dots
from . import vectors as moves


def _integers(context, builder, sig, args, *places):
    return [context.cast(builder, args[i], sig.args[i], types.intp) for i in places]


def _pointers(builder, count: int, a, step, low, high, nothing):
    """a + p * step where low <= p < high, else nothing, for p = 0 .. count - 1."""
    room = builder.sub(high, low)
    for p in range(count):
        inside = builder.icmp_unsigned("<", builder.sub(moves.int64(p), low), room)
        yield builder.select(inside, a, nothing)
        a = moves.advance(builder, a, step)


def lower_window_accumulate(context, builder, sig, args):
    t, a, nothing, w = args[0], args[1], args[5], args[6]
    step, low, high, w_step, n = _integers(context, builder, sig, args, 2, 3, 4, 7, 10)
    taps, stride = (values.constant(sig.args[i]) for i in (8, 9))
    shape, a_type, w_type = sig.args[0].shape, sig.args[1].dtype, sig.args[6].dtype
    factors = [
        moves.read_lanes(
            context, builder, moves.advance(builder, w, builder.mul(moves.int64(v), w_step)),
            w_type, shape.lanes, n,
        )
        for v in range(taps)
    ]  # fmt: skip
    rows = [builder.extract_value(t, i) for i in range(shape.rows)]
    count = (shape.rows - 1) * stride + taps
    for p, at in enumerate(_pointers(builder, count, a, step, low, high, nothing)):
        x = moves.read_lanes(context, builder, at, a_type, shape.lanes, n)
        for i in range(shape.rows):
            v = p - i * stride
            if 0 <= v < taps:
                rows[i] = moves.multiply_add(context, builder, x, factors[v], rows[i])
    for i, row in enumerate(rows):
        t = builder.insert_value(t, row, i)
    return t


def lower_stencil_accumulate(context, builder, sig, args):
    t, a, nothing, w = args[0], args[1], args[7], args[8]
    step, low, high, left, right, w_step = _integers(context, builder, sig, args, 2, 3, 4, 5, 6, 9)
    tall, wide, down, along = (values.constant(sig.args[i]) for i in (10, 11, 12, 13))
    shape, a_type, w_type = sig.args[0].shape, sig.args[1].dtype, sig.args[8].dtype
    lanes = shape.lanes
    outside = moves.read_raw(builder, nothing, a_type, lanes)
    whole = isinstance(right, ir.Constant) and right.constant >= lanes * along + wide - 1

    def mask(first: int):
        if whole:
            return None
        index = ir.Constant(ir.VectorType(moves.I32, lanes), list(range(first, first + lanes)))
        after, before = (
            moves.spread(builder, builder.trunc(x, moves.I32), lanes) for x in (left, right)
        )
        return builder.and_(
            builder.icmp_signed("<=", after, index), builder.icmp_signed("<", index, before)
        )

    # Pairs of vectors give the even and the odd taps where every other pixel is read.
    starts = (
        range(wide) if along == 1 else [v + k * lanes for v in range(0, wide, 2) for k in (0, 1)]
    )
    masks = {first: mask(first) for first in starts}

    def read(at, first: int):
        here = moves.advance(builder, at, first * a_type.size)
        if masks[first] is None:
            return moves.read(builder, here, a_type, lanes)
        bounds = [builder.sub(x, moves.int64(first)) for x in (left, right)]
        raw = moves.read_between(
            context, builder, here, a_type, lanes, masks[first], bounds, outside
        )
        return moves.widen(builder, raw, a_type)

    def pixels(at) -> list:
        if along == 1:
            return [read(at, v) for v in range(wide)]
        found = []
        for v in range(0, wide, 2):
            pair = read(at, v), read(at, v + lanes)
            for odd in range(min(2, wide - v)):
                order = [2 * lane + odd for lane in range(lanes)]
                pick = ir.Constant(ir.VectorType(moves.I32, lanes), order)
                found.append(builder.shuffle_vector(*pair, pick))
        return found

    factors = [
        moves.spread_element(
            builder, moves.advance(builder, w, builder.mul(moves.int64(k), w_step)), w_type, lanes
        )
        for k in range(tall * wide)
    ]
    rows = [builder.extract_value(t, i) for i in range(shape.rows)]
    count = (shape.rows - 1) * down + tall
    for r, at in enumerate(_pointers(builder, count, a, step, low, high, nothing)):
        found = pixels(at)
        reached = [i for i in range(shape.rows) if 0 <= r - i * down < tall]
        for v, x in enumerate(found):
            for i in reached:
                factor = factors[(r - i * down) * wide + v]
                rows[i] = moves.multiply_add(context, builder, x, factor, rows[i])
                rows[i] = dots.hold(context, builder, rows[i])
    for i, row in enumerate(rows):
        t = builder.insert_value(t, row, i)
    return t


RULES = {
    words.window_accumulate: lambda t, *rest: t,
    words.stencil_accumulate: lambda t, *rest: t,
}
LOWERINGS = {
    words.window_accumulate: lower_window_accumulate,
    words.stencil_accumulate: lower_stencil_accumulate,
}
