"""Partials of a team's write-back, in the order of partials.py and so with its bits.

Along a row, 16 chains by column number wait in shared memory. Where a chunk is whole, each chain
is one lane's (`row_chain`); at an edge, lanes that feed the same chain take turns (`row_turns`).
Down a column, lanes leave their values in shared memory and one lane for each column walks the
rows.
"""

from __future__ import annotations

from gemm.microkernels import mathematics
from gemm.microkernels.cooperative import ROW
from gemm.microkernels.mathematics import keep_largest, make_log

from .partials import CHAINS, COMBINE, identity, make_join, make_row_partial
from .program import Output
from .writer import Writer, literal


def state_bytes(output: Output) -> int:
    return (2 if output.combine == "log_sum_exp" else 1) * CHAINS * output.dtype.size


def row_chain(w: Writer, o: int, output: Output, across: int) -> None:
    """The values of a row's columns join their chains. Chains are one lane's, and where they have
    two columns of the chunk, that lane takes the second from the lane that has it."""
    _partial_words(w, o, output)
    lanes, size = w.shape.lanes, output.dtype.size
    turn = CHAINS // lanes
    sums = output.combine == "log_sum_exp"
    none = identity(output.combine, output.dtype)
    text = literal(none, w) if isinstance(none, float) else str(none)
    inside = "place"
    if output.block:
        inside = f"place - quotient(place, {output.block}) * {output.block}"
    own = f"(v - quotient(v, {turn}) * {turn}) * {lanes * size}"
    to = f"shift(s{o}, i * {state_bytes(output)} + {own})"
    second = f"aligned(shift(chain{o}, {CHAINS * size}), {lanes * size})"

    def join(depth: int, value: str) -> None:
        if sums:
            w.put(depth, f"c{o}_1 = grow{o}(c{o}_0, c{o}_1, {value})")
            w.put(depth, f"c{o}_0 = keep_largest(c{o}_0, {value})")
        else:
            w.put(depth, f"c{o}_0 = join{o}(c{o}_0, {value})")

    if across > CHAINS:
        w.put(5, f"other{o} = lane_value(k{o}, lane() + {turn})")
    w.put(5, f"chain{o} = aligned({to}, {lanes * size})")
    w.put(5, f"c{o}_0 = fill(k{o}, {text})")
    w.put(5, f"c{o}_1 = fill(k{o}, 0.0)" if sums else f"c{o}_1 = c{o}_0")
    w.put(5, f"if {inside} >= {CHAINS}:")
    w.put(6, f"c{o}_0 = load_lanes(chain{o}, {lanes}, {lanes})")
    if sums:
        w.put(6, f"c{o}_1 = load_lanes({second}, {lanes}, {lanes})")
    join(5, f"k{o}")
    if across > CHAINS:
        w.put(5, "if lanes() > 1:")
        join(6, f"other{o}")
    w.put(5, f"if v < {turn} or lanes() == 1:")
    w.put(6, f"store_lanes(chain{o}, c{o}_0, {lanes})")
    if sums:
        w.put(6, f"store_lanes({second}, c{o}_1, {lanes})")


def _partial_words(w: Writer, o: int, output: Output) -> None:
    begin, update, finish = make_row_partial(output.combine, output.dtype, 1)
    w.scope |= {f"begin{o}": begin, f"update{o}": update, f"finish{o}": finish}
    if output.combine == "log_sum_exp":
        _, w.scope[f"grow{o}"] = make_join(output.dtype)
        w.scope["keep_largest"] = keep_largest
    else:
        w.scope[f"join{o}"] = COMBINE[output.combine]


def leave_below(w: Writer, o: int, output: Output, depth: int) -> None:
    size = w.shape.lanes * output.dtype.size
    to = f"aligned(shift(d{o}, i * {ROW} + v * {size}), {size})"
    w.put(depth, f"store_lanes({to}, k{o}, {w.shape.lanes})")


def row_turns(w: Writer, o: int, output: Output, across: int, depth: int) -> None:
    """The value of this column joins its chain; a chain's columns in ascending order."""
    _partial_words(w, o, output)
    block = output.block
    w.put(depth, f"state{o} = shift(s{o}, i * {state_bytes(output)})")
    if block:
        w.put(depth, f"number = quotient(place, {block})")
        w.put(depth, f"inside = place - number * {block}")
        ends = f"inside + 1 == {block} or place + 1 == width{o}"
    else:
        w.put(depth, "number = 0")
        w.put(depth, "inside = place")
        ends = f"place + 1 == width{o}"
    w.put(depth, "here = i < m and j < wide")
    w.put(depth, f"for turn in range({max(1, across // CHAINS)}):")
    w.put(depth + 1, f"mine = here and quotient(v, {CHAINS}) == turn")
    w.put(depth + 1, "if mine and inside == 0:")
    w.put(depth + 2, f"begin{o}(state{o}, k{o})")
    w.put(depth + 1, "lanes_sync()")
    w.put(depth + 1, "if mine:")
    chain = f"inside - quotient(inside, {CHAINS}) * {CHAINS}"
    w.put(depth + 2, f"update{o}(state{o}, {chain}, k{o})")
    w.put(depth + 1, "lanes_sync()")
    w.put(depth + 1, f"if mine and ({ends}):")
    to = f"shift(q{o}, (row + i) * qr{o} + number * qc{o})"
    w.put(depth + 2, f"store_lanes({to}, finish{o}(state{o}), 1)")
    w.put(depth + 1, "lanes_sync()")


def _blocks_down(w: Writer, o: int, output: Output, depth: int) -> tuple[str, str, str]:
    """(block of row i, its row inside, whether it ends with row i), as text."""
    last = f"row + i + 1 == height{o}"
    if not output.block:
        return "0", "row + i", last
    w.put(depth, f"number = quotient(row + i, {output.block})")
    inside = f"(row + i - number * {output.block})"
    return "number", inside, f"{inside} + 1 == {output.block} or {last}"


def column_chain(w: Writer, o: int, output: Output, rows: int) -> None:
    size = output.dtype.size
    w.scope[f"join{o}"] = COMBINE[output.combine]
    none = identity(output.combine, output.dtype)
    text = literal(none, w) if isinstance(none, float) else str(none)
    nothing = f"fill({'zero' if output.dtype.kind == 'f' else 'index'}, {text})"
    start = f"quotient(row, {output.block})" if output.block else "0"
    first = f"row - {start} * {output.block}" if output.block else "row"
    w.put(5, f"total = {nothing}")
    w.put(5, f"if {first} > 0:")
    w.put(6, f"total = load_lanes(shift(q{o}, {start} * qr{o} + place * {size}), 1, 1)")
    depth = 5
    if output.block % rows == 0:
        # Nothing begins or ends inside the tile.
        depth = 6
        w.put(5, f"if m >= {rows}:")
        w.put(6, f"for i in range(0, {rows}, 8):")
        for e in range(8):
            w.put(
                7,
                f"y{e} = load_lanes(shift(d{o}, (i + {e}) * {ROW} + v * {size}), 1, 1)",
            )
        for e in range(8):
            w.put(7, f"total = join{o}(total, y{e})")
        w.put(6, f"store_lanes(shift(q{o}, {start} * qr{o} + place * {size}), total, 1)")
        w.put(5, "else:")
    w.put(depth, f"for i in range(min(m, {rows})):")
    number, inside, ends = _blocks_down(w, o, output, depth + 1)
    w.put(depth + 1, f"if {inside} == 0:")
    w.put(depth + 2, f"total = {nothing}")
    w.put(
        depth + 1,
        f"x = load_lanes(shift(d{o}, i * {ROW} + v * {size}), 1, 1)",
    )
    w.put(depth + 1, f"total = join{o}(total, x)")
    # What has not ended rests in the output until the rows below come.
    w.put(depth + 1, f"if {ends} or i + 1 == min(m, {rows}):")
    w.put(depth + 2, f"store_lanes(shift(q{o}, {number} * qr{o} + place * {size}), total, 1)")


def column_sums(w: Writer, o: int, output: Output, rows: int) -> None:
    """An online log-sum-exp; its maximum and sum rest in the table's state."""
    size = output.dtype.size
    _, w.scope[f"grow{o}"] = make_join(output.dtype)
    w.scope |= {f"log{o}": make_log(output.dtype), "keep_largest": keep_largest}
    w.scope["INFINITY"] = mathematics.INFINITY
    start = f"quotient(row, {output.block}) * {output.block}" if output.block else "0"
    w.put(5, "top = fill(zero, -INFINITY)")
    w.put(5, "total = fill(zero, 0.0)")
    w.put(5, f"if row - {start} > 0:")
    w.put(6, f"top = load_lanes(shift(s{o}, place * {size}), 1, 1)")
    w.put(6, f"total = load_lanes(shift(sums{o}, place * {size}), 1, 1)")
    w.put(5, f"for i in range(min(m, {rows})):")
    number, inside, ends = _blocks_down(w, o, output, 6)
    w.put(6, f"if {inside} == 0:")
    w.put(7, "top = fill(zero, -INFINITY)")
    w.put(7, "total = fill(zero, 0.0)")
    w.put(6, f"x = load_lanes(shift(d{o}, i * {ROW} + v * {size}), 1, 1)")
    w.put(6, f"total = grow{o}(top, total, x)")
    w.put(6, "top = keep_largest(top, x)")
    w.put(6, f"if {ends}:")
    to = f"shift(q{o}, {number} * qr{o} + place * {size})"
    w.put(7, f"store_lanes({to}, add(top, log{o}(total)), 1)")
    w.put(5, f"store_lanes(shift(s{o}, place * {size}), top, 1)")
    w.put(5, f"store_lanes(shift(sums{o}, place * {size}), total, 1)")
