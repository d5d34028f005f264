"""A program that changes an operand while it is packed.

It runs over a packed panel, which is in the first-level cache, whatever the operand's layout in
memory was; a program that reads no element of the operand makes the panel out of its own
operands, and nothing is packed before. Rows are k, columns are the panel's: N for B, M for A
(whose program is turned round).

        columns ->  +---+---+      for each vector v of a panel's columns
        rows = k    | v |   |        for each row i
                    +---+---+          element -> program -> element, statistics
"""

from __future__ import annotations

from gemm.microkernels.dtypes import TileShape

from .partials import column_partial
from .program import ORIGIN_BATCH, Operand, Program
from .transfers import load_operand, load_scalar, prepare_operand, prepare_output
from .writer import Writer


def nothing(dst, count, k, column, row, batch, extra):
    """The hook of an operand without a program."""


def pack_nothing(dst, src, along, across, count, k):
    """The packing of a matrix that its program makes."""


def source(panel: int, lanes: int, program: Program) -> tuple[str, dict[str, object]]:
    """(text of the hook `prepare`, the names it uses)."""
    w = Writer(TileShape(1, panel // lanes, lanes, program.acc), program)
    per, size = w.per, program.acc.size
    w.put(0, "def prepare(dst, count, k, column, row, batch, extra):")
    w.put(1, f"column = column + table_integer(extra, {program.origin})")
    w.put(1, f"batch = batch + table_integer(extra, {ORIGIN_BATCH})")
    w.put(1, "dst = recast(dst, ACC)")
    w.put(1, f"index = ramp({lanes}, I)")
    for i, operand in enumerate(program.operands):
        if i in w.used:
            prepare_operand(w, i, operand, "0")
    for o, output in enumerate(program.outputs[1:], 1):
        prepare_output(w, o, output)
    start = f"base // {per} + v * {lanes}"
    w.put(1, f"for base in range(0, count, {panel}):")
    w.put(2, f"for v in range({-(-panel // (lanes * per))}):")
    w.put(3, f"left = min({panel}, count - base) // {per} - v * {lanes}")
    w.put(3, "if left > 0:")
    w.put(4, f"place = (column + base) // {per} + v * {lanes}")
    whole = panel % (lanes * per) == 0
    w.put(4, f"room = {lanes}" if whole else f"room = min({lanes}, {panel} - v * {lanes})")
    for i, operand in enumerate(program.operands):
        if i in w.used and operand.kind == "row":
            load_operand(w, 4, i, operand, f"p{i}", start)
    w.put(4, "for i in range(k):")
    w.put(5, f"at = shift(dst, (base * k + i * {panel} + v * {per * lanes}) * {size})")
    _put_acc(w, lanes, size)
    for i, operand in enumerate(program.operands):
        p = f"shift(p{i}, (row + i) // {operand.group} * r{i})"
        if i in w.used and operand.kind == "column":
            load_scalar(w, 5, i, operand, p)
        elif i in w.used and operand.kind == "tile":
            load_operand(w, 5, i, operand, p, start)
        if i in w.used and operand.nibbles:
            _put_nibble(w, i, operand)
    w.put_nodes(5)
    values = [w.as_float(index) for index in program.outputs[0].nodes]
    if len(values) == 1:
        w.put(5, f"store_lanes(at, {values[0]}, room)")
    else:
        w.put(5, f"even = {values[0]}")
        w.put(5, f"odd = {values[1]}")
        w.put(5, f"store_lanes(at, interleave_low(even, odd), {lanes})")
        high = f"shift(at, {lanes * size})"
        w.put(5, f"store_lanes({high}, interleave_high(even, odd), {lanes})")
    for o, output in enumerate(program.outputs[1:], 1):
        column_partial(w, o, output, 5)
    return "\n".join(w.lines) + "\n", w.scope


def _put_acc(w: Writer, lanes: int, size: int) -> None:
    if not w.program.reads_acc:
        w.put(5, "sample = to_float(index, F)")
        return
    if w.program.pairs:
        w.put(5, f"low = load_lanes(at, {lanes}, {lanes})")
        w.put(5, f"high = load_lanes(shift(at, {lanes * size}), {lanes}, {lanes})")
        w.put(5, "acc0 = evens(low, high)")
        w.put(5, "acc1 = odds(low, high)")
    else:
        w.put(5, f"acc0 = load_lanes(at, {lanes}, room)")
    w.put(5, "sample = acc0")


def _put_nibble(w: Writer, i: int, operand: Operand) -> None:
    x = f"x{i}_0"
    w.put(5, "high_half = less(fill(index, 0), fill(index, (row + i) % 2))")
    w.put(5, f"{x} = bit_and(select(high_half, shift_right({x}, 4), {x}), fill(index, 15))")
    if operand.nibbles == "signed":
        w.put(5, f"{x} = select(less(fill(index, 7), {x}), subtract({x}, fill(index, 16)), {x})")


def make_prepare(panel: int, lanes: int, program: Program | None):
    """prepare(dst, count, k, column, row, batch, extra): the program run over the packed panels
    of count x k values at dst, the first of which stands at (row of k, column) of matrix `batch`.
    """
    if program is None:
        return nothing
    if program.pairs and panel % (2 * lanes):
        raise ValueError(
            f"a program of pairs needs panels of {2 * lanes} columns, this kernel's have {panel}"
        )
    text, scope = source(panel, lanes, program)
    exec(compile(text, "<pack>", "exec"), scope)
    return scope["prepare"]
