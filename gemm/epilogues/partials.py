"""Partial sums, maxima and log-sum-exps along rows and down columns.

Partials keep their state in memory between tiles: along a row, 16 chains by column number, so
that the order of additions is the same for every width of vector and tile, joined by a tree when
the block of columns ends; down a column, one chain in the order of the rows. Lanes outside the
matrix contribute the identity of what is combined.
"""

from __future__ import annotations

import functools

from gemm.microkernels import mathematics
from gemm.microkernels.arithmetic import (
    absolute,
    add,
    equal,
    fill,
    multiply,
    select,
    subtract,
)
from gemm.microkernels.dtypes import DType
from gemm.microkernels.mathematics import keep_largest, make_exp, make_log
from gemm.microkernels.vocabulary import load_lanes, shift, store_lanes

from .program import INT, MASK, Output
from .writer import Writer, literal

CHAINS = 16


# -- what is combined, and in which order ----------------------------------------------------------


@functools.cache
def make_join(dtype: DType):
    """(m, s), (n, t) of two online log-sum-exps -> functions for the maximum and the sum."""
    exp = make_exp(dtype)

    def weight(m, top):
        # exp(m - top), and 1 where both are the same infinity.
        return exp(select(equal(m, top), fill(m, 0.0), subtract(m, top)))

    def join_sum(m, s, n, t):
        top = keep_largest(m, n)
        return add(multiply(s, weight(m, top)), multiply(t, weight(n, top)))

    def grow(m, s, x):
        top = keep_largest(m, x)
        return add(multiply(s, weight(m, top)), weight(x, top))

    return join_sum, grow


def largest(s, x):
    return keep_largest(s, x)


def largest_size(s, x):
    return keep_largest(s, absolute(x))


COMBINE = {"add": add, "max": largest, "max_abs": largest_size}


def identity(combine: str, dtype: DType):
    """What a lane outside the matrix contributes."""
    if combine in ("add", "max_abs"):
        return 0.0 if dtype.kind == "f" else 0
    return -mathematics.INFINITY if dtype.kind == "f" else -(1 << dtype.bits - 1)


def make_row_partial(combine: str, dtype: DType, lanes: int):
    """(begin, update, finish) on the 16 chains at s; a log-sum-exp has 16 maxima, then 16 sums."""
    size = dtype.size
    none = identity(combine, dtype)
    pieces = max(1, CHAINS // lanes)

    def begin(s, x):
        for piece in range(pieces):
            store_lanes(shift(s, piece * lanes * size), fill(x, none), lanes)

    if combine != "log_sum_exp":
        join = COMBINE[combine]

        def update(s, chain, x):
            at = shift(s, chain * size)
            store_lanes(at, join(load_lanes(at, lanes, lanes), x), lanes)

        def finish(s):
            a = join(load_lanes(s, 8, 8), load_lanes(shift(s, 8 * size), 8, 8))
            store_lanes(s, a, 8)
            b = join(load_lanes(s, 4, 4), load_lanes(shift(s, 4 * size), 4, 4))
            store_lanes(s, b, 4)
            c = join(load_lanes(s, 2, 2), load_lanes(shift(s, 2 * size), 2, 2))
            store_lanes(s, c, 2)
            return join(load_lanes(s, 1, 1), load_lanes(shift(s, size), 1, 1))

        return begin, update, finish

    join_sum, grow = make_join(dtype)
    log = make_log(dtype)
    sums = CHAINS * size

    def begin_both(s, x):
        begin(s, x)
        for piece in range(pieces):
            store_lanes(shift(s, sums + piece * lanes * size), fill(x, 0.0), lanes)

    def update_both(s, chain, x):
        at = shift(s, chain * size)
        m = load_lanes(at, lanes, lanes)
        t = load_lanes(shift(at, sums), lanes, lanes)
        store_lanes(shift(at, sums), grow(m, t, x), lanes)
        store_lanes(at, keep_largest(m, x), lanes)

    def halve(s, width):
        m = load_lanes(s, width, width)
        n = load_lanes(shift(s, width * size), width, width)
        t = load_lanes(shift(s, sums), width, width)
        u = load_lanes(shift(s, sums + width * size), width, width)
        store_lanes(shift(s, sums), join_sum(m, t, n, u), width)
        store_lanes(s, keep_largest(m, n), width)

    def finish_both(s):
        halve(s, 8)
        halve(s, 4)
        halve(s, 2)
        halve(s, 1)
        return add(load_lanes(s, 1, 1), log(load_lanes(shift(s, sums), 1, 1)))

    return begin_both, update_both, finish_both


# -- lines of the hook -----------------------------------------------------------------------------


def partial_value(w: Writer, output: Output) -> str:
    kind = w.default(w.kinds[output.nodes[0]])
    return w.as_kind(output.nodes[0], INT if kind == MASK else kind)


def row_partial(w: Writer, o: int, output: Output) -> None:
    lanes = w.shape.lanes
    begin, update, finish = make_row_partial(output.combine, output.dtype, lanes)
    for name, function in (("begin", begin), ("update", update), ("finish", finish)):
        w.scope[f"{name}{o}"] = function
    w.put(4, f"x = {partial_value(w, output)}")
    none = identity(output.combine, output.dtype)
    none_text = literal(none, w) if isinstance(none, float) else str(none)
    w.put(4, f"x = select(less(index, fill(index, left)), x, fill(x, {none_text}))")
    w.put(4, f"state = shift(s{o}, i * sr{o})")
    w.put(4, f"inside = place % {output.block}" if output.block else "inside = place")
    w.put(4, "if inside == 0:")
    w.put(5, f"begin{o}(state, x)")
    w.put(4, f"update{o}(state, inside % {CHAINS}, x)")
    ends = f"place + {lanes} >= width{o}"
    if output.block:
        ends += f" or inside + {lanes} == {output.block}"
    w.put(4, f"if {ends}:")
    block = f"place // {output.block}" if output.block else "0"
    w.put(5, f"store_lanes(shift(q{o}, (row + i) * qr{o} + {block} * qc{o}), finish{o}(state), 1)")


def column_partial(w: Writer, o: int, output: Output, depth: int = 4) -> None:
    if output.combine == "log_sum_exp":
        _column_log_sum_exp(w, o, output, depth)
        return
    lanes, size = w.shape.lanes, output.dtype.size
    w.scope[f"join{o}"] = COMBINE[output.combine]
    w.put(depth, f"x = {partial_value(w, output)}")
    none = identity(output.combine, output.dtype)
    none_text = literal(none, w) if isinstance(none, float) else str(none)
    block = f"(row + i) // {output.block}" if output.block else "0"
    w.put(depth, f"to = shift(q{o}, {block} * qr{o} + place * {size})")
    first = f"(row + i) % {output.block}" if output.block else "row + i"
    w.put(depth, f"if {first} == 0:")
    w.put(depth + 1, f"store_lanes(to, join{o}(fill(x, {none_text}), x), left)")
    w.put(depth, "else:")
    w.put(depth + 1, f"store_lanes(to, join{o}(load_lanes(to, {lanes}, left), x), left)")


def _column_log_sum_exp(w: Writer, o: int, output: Output, depth: int) -> None:
    """A running maximum and a running sum for each column, in memory from row to row."""
    lanes, size = w.shape.lanes, output.dtype.size
    _, w.scope[f"grow{o}"] = make_join(output.dtype)
    w.scope["keep_largest"] = keep_largest
    w.scope[f"log{o}"] = make_log(output.dtype)
    w.scope["INFINITY"] = mathematics.INFINITY
    w.put(depth, f"x = {partial_value(w, output)}")
    w.put(depth, f"inside = (row + i) % {output.block}" if output.block else "inside = row + i")
    w.put(depth, "if inside == 0:")
    w.put(depth + 1, "top = fill(x, -INFINITY)")
    w.put(depth + 1, "total = fill(x, 0.0)")
    w.put(depth, "else:")
    for name, at in (("top", f"s{o}"), ("total", f"sums{o}")):
        w.put(depth + 1, f"{name} = load_lanes(shift({at}, place * {size}), {lanes}, left)")
    w.put(depth, f"total = grow{o}(top, total, x)")
    w.put(depth, "top = keep_largest(top, x)")
    ends = f"row + i + 1 == height{o}"
    if output.block:
        ends += f" or inside + 1 == {output.block}"
    block = f"(row + i) // {output.block}" if output.block else "0"
    w.put(depth, f"if {ends}:")
    w.put(depth + 1, f"to = shift(q{o}, {block} * qr{o} + place * {size})")
    w.put(depth + 1, f"store_lanes(to, add(top, log{o}(total)), left)")
    w.put(depth, "else:")
    for name, at in (("top", f"s{o}"), ("total", f"sums{o}")):
        w.put(depth + 1, f"store_lanes(shift({at}, place * {size}), {name}, left)")
