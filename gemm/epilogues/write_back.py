"""A program becomes the write-back hook of a kernel, as plain Python in the words of the tile.

The tile is spilled, and the program runs over it a vector at a time:

        vectors ->  +---+---+      for each row i                    column operands are spread
        rows        | v |   |        for each vector v of columns    row operands are loaded
                    +---+---+          acc -> program -> stores, partials

(Along a row first: rows that are a multiple of 4096 bytes apart share a set of the cache.)

Operands and outputs are found through the operand table (see program.py for its slots).
Partials keep their state in memory between tiles: along a row, 16 chains by column number, so
that the order of additions is the same for every width of vector and tile, joined by a tree when
the block of columns ends; down a column, one chain in the order of the rows.

What the hook will touch lies in as many pages as the tile has rows, a few bytes in each, which
no hardware prefetcher foresees: `announce` asks for it before the micro-kernel runs.
"""

from __future__ import annotations

import functools

from gemm.microkernels import arithmetic, mathematics, vocabulary
from gemm.microkernels.arithmetic import (
    absolute,
    add,
    equal,
    fill,
    multiply,
    select,
    subtract,
)
from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.mathematics import keep_largest, make_exp, make_log
from gemm.microkernels.vocabulary import load_lanes, shift, store_lanes

from .program import (
    FLOAT,
    INT,
    MASK,
    NUMBER,
    ORIGIN_BATCH,
    ORIGIN_COLUMN,
    ORIGIN_ROW,
    Operand,
    Output,
    Program,
    common,
    types_of,
)

CHAINS = 16
LINE = 64  # bytes that one request to memory brings
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


# -- partials ------------------------------------------------------------------------------------


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


# -- source --------------------------------------------------------------------------------------


class Writer:
    """Lines of the hook's body, and the names that they use."""

    def __init__(self, shape: TileShape, program: Program):
        self.shape, self.program = shape, program
        self.lines: list[str] = []
        self.scope: dict[str, object] = {
            **{w.__name__: w for w in vocabulary.WORDS},
            **{name: f for name, f in vars(arithmetic).items() if callable(f)},
            "larger": mathematics.larger,
            "smaller": mathematics.smaller,
            "copy_sign": mathematics.copy_sign,
            "F": program.float_type,
            "I": program.int_type,
            "SHAPE": shape,
            "ACC": shape.dtype,
        }
        self.kinds = types_of(program.nodes, program.operands, program.acc)
        self.per = 2 if program.pairs else 1
        self.used = {n[1] for n in program.nodes if n[0] == "operand"}

    def put(self, depth: int, line: str) -> None:
        self.lines.append("    " * depth + line)

    def name(self, prefix: str, value: object) -> str:
        for known, other in self.scope.items():
            if other is value and known.startswith(prefix):
                return known
        name = f"{prefix}{len(self.scope)}"
        self.scope[name] = value
        return name

    def put_nodes(self, depth: int) -> None:
        for index, (op, *rest) in enumerate(self.program.nodes):
            if op == "acc":
                self.put(depth, f"v{index} = acc{rest[0]}")
            elif op == "operand":
                part = rest[1] if self.program.operands[rest[0]].each == 2 else 0
                self.put(depth, f"v{index} = x{rest[0]}_{part}")
            elif op != "constant":
                self.put(depth, f"v{index} = {self.expression(index)}")

    # Coercions between the three kinds of lanes.

    def as_float(self, index: int) -> str:
        kind, name = self.kinds[index], f"v{index}"
        op, *rest = self.program.nodes[index]
        if op == "constant":
            return f"fill(sample, {_literal(float(rest[0]), self)})"
        if kind == MASK:
            return f"select({name}, fill(sample, 1.0), fill(sample, 0.0))"
        return name if kind == FLOAT else f"to_float({name}, F)"

    def as_int(self, index: int) -> str:
        op, *rest = self.program.nodes[index]
        if op == "constant":
            width = self.program.int_type.bits
            value = (int(rest[0]) + (1 << width - 1)) % (1 << width) - (1 << width - 1)
            return f"fill(index, {value})"
        if self.kinds[index] == MASK:
            return f"select(v{index}, fill(index, 1), fill(index, 0))"
        return f"v{index}"

    def as_mask(self, index: int) -> str:
        if self.kinds[index] == MASK:
            return f"v{index}"
        kind = self.kinds[index]
        value = self.as_float(index) if kind == FLOAT else self.as_int(index)
        zero = "fill(sample, 0.0)" if kind == FLOAT else "fill(index, 0)"
        return f"opposite(equal({value}, {zero}))"

    def as_kind(self, index: int, kind: str) -> str:
        return {FLOAT: self.as_float, INT: self.as_int, MASK: self.as_mask}[kind](index)

    def expression(self, index: int) -> str:
        op, *arguments = self.program.nodes[index]
        if op == "significant":
            bits = self.program.nodes[arguments[1]][1]
            function = self.name(op, mathematics.make_significant(self.program.float_type, bits))
            return f"{function}({self.as_float(arguments[0])})"
        if op in mathematics.MAKERS:
            if op in ("nearest", "floor", "ceil", "trunc") and self.kinds[arguments[0]] == INT:
                return self.as_float(arguments[0])
            function = self.name(op, mathematics.MAKERS[op](self.program.float_type))
            return f"{function}({self.as_float(arguments[0])})"
        if op == "uniform":
            function = self.name(op, mathematics.make_uniform(self.program.float_type))
            return f"{function}({', '.join(self.as_int(a) for a in arguments)})"
        if op == "row_index":
            return "fill(index, row + i)"
        if op == "column_index":
            return "add(fill(index, place), index)"
        if op == "select":
            kind = self.kinds[index]
            kind = self.default(kind)
            values = [self.as_kind(a, kind) for a in arguments[1:]]
            return f"select({self.as_mask(arguments[0])}, {', '.join(values)})"
        if op in ("both", "either", "opposite"):
            kind = MASK
        elif op in ("less", "less_equal", "equal"):
            kind = self.default(common(self.kinds[a] for a in arguments))
        else:
            kind = self.default(self.kinds[index])
        return f"{op}({', '.join(self.as_kind(a, kind) for a in arguments)})"

    def default(self, kind: str) -> str:
        """Numbers alone take the accumulator's type."""
        if kind != NUMBER:
            return kind
        return FLOAT if self.program.acc.kind in "fc" else INT


def _literal(x: float, writer: Writer) -> str:
    if x != x:
        writer.scope["NAN"] = mathematics.NAN
        return "NAN"
    if x in (mathematics.INFINITY, -mathematics.INFINITY):
        writer.scope["INFINITY"] = mathematics.INFINITY
        return "INFINITY" if x > 0 else "-INFINITY"
    return repr(x)


def computed_as(dtype: DType, program: Program) -> DType:
    """How an operand's storage is widened: floats to the program's float, integers to its int."""
    if dtype.kind == "c":
        return dtype
    return dtype.widened_to(program.float_type if dtype.kind == "f" else program.int_type)


def source(shape: TileShape, program: Program) -> tuple[str, dict[str, object]]:
    """(text of the hook `write_back`, the names it uses)."""
    w = Writer(shape, program)
    lanes, per = shape.lanes, w.per
    w.put(0, "def write_back(t, c, rs, cs, m, n, row, column, batch, extra):")
    put_origin(w)
    w.put(1, "rows = tile_spill(t, ACC)")
    w.put(1, f"index = ramp({lanes}, I)")
    used = w.used
    for i, operand in enumerate(program.operands):
        if i in used:
            _prepare(w, i, operand)
    for o, output in enumerate(program.outputs):
        _prepare_output(w, o, output)
    row_size, vector_size = shape.columns * shape.dtype.size, lanes * shape.dtype.size
    w.put(1, "for i in range(m):")
    for i, operand in enumerate(program.operands):
        if i in used and operand.kind == "column":
            _load_scalar(w, 2, i, operand, f"shift(p{i}, i * r{i})")
    w.put(2, f"for v in range({shape.vectors // per}):")
    w.put(3, f"left = n // {per} - v * {lanes}")
    w.put(3, "if left > 0:")
    w.put(4, f"place = column // {per} + v * {lanes}")
    for i, operand in enumerate(program.operands):
        if i in used and operand.kind == "row":
            _load(w, 4, i, operand, f"p{i}")
    w.put(4, f"at = shift(rows, i * {row_size} + v * {per * vector_size})")
    if program.pairs:
        w.put(4, f"low = load_lanes(at, {lanes}, {lanes})")
        w.put(4, f"high = load_lanes(shift(at, {vector_size}), {lanes}, {lanes})")
        w.put(4, "acc0 = evens(low, high)")
        w.put(4, "acc1 = odds(low, high)")
    else:
        w.put(4, f"acc0 = load_lanes(at, {lanes}, {lanes})")
    w.put(4, "sample = acc0" if program.acc.kind in "fc" else "sample = to_float(acc0, F)")
    for i, operand in enumerate(program.operands):
        if i in used and operand.kind == "tile":
            _load(w, 4, i, operand, f"shift(p{i}, i * r{i})")
    w.put_nodes(4)
    for o, output in enumerate(program.outputs):
        {"tile": _store, "row": _row_partial, "column": _column_partial}[output.kind](w, o, output)
    return "\n".join(w.lines) + "\n", w.scope


def announcement(shape: TileShape, program: Program) -> tuple[str, dict[str, object]]:
    """(text of `announce`, the names it uses): asks for the tile operands and outputs of a tile."""
    w = Writer(shape, program)
    w.put(0, "def announce(m, row, column, batch, extra):")
    put_origin(w)
    lines = {}
    for i, operand in enumerate(program.operands):
        if i in w.used and operand.kind == "tile" and operand.unit:
            _prepare(w, i, operand)
            lines[f"p{i}", f"r{i}"] = operand.each * operand.dtype.size
    for o, output in enumerate(program.outputs):
        if output.kind == "tile" and output.unit:
            _prepare_output(w, o, output)
            lines[f"q{o}", f"qr{o}"] = len(output.nodes) * output.dtype.size
    if not lines:
        w.put(1, "return")
        return "\n".join(w.lines) + "\n", w.scope
    w.put(1, "for i in range(m):")
    for (p, step), size in lines.items():
        for at in range(0, shape.columns // w.per * size, LINE):
            w.put(2, f"prefetch(shift({p}, i * {step} + {at}))")
    return "\n".join(w.lines) + "\n", w.scope


def put_origin(w: Writer) -> None:
    """From the part of the product that runs to the whole."""
    w.put(1, f"row = row + table_integer(extra, {ORIGIN_ROW})")
    w.put(1, f"column = column + table_integer(extra, {ORIGIN_COLUMN})")
    w.put(1, f"batch = batch + table_integer(extra, {ORIGIN_BATCH})")


def _prepare(w: Writer, i: int, operand: Operand, row: str = "row") -> None:
    slot = w.program.slot(i)
    kind = w.name("D", computed_as(operand.dtype, w.program))
    if operand.kind == "number":
        number = f"table_number(extra, {slot}, {kind})"
        w.put(1, f"x{i}_0 = broadcast({number}, {w.shape.lanes})")
        return
    w.put(1, f"r{i} = table_integer(extra, {slot + 1})")
    w.put(1, f"c{i} = table_integer(extra, {slot + 2})")
    per, each = w.per, operand.each
    w.put(1, f"o{i} = {row} * r{i} + column // {per} * {each} * c{i}")
    w.put(1, f"o{i} += batch * table_integer(extra, {slot + 3})")
    w.put(1, f"p{i} = shift(table_pointer(extra, {slot}, {kind}), o{i})")
    if operand.kind == "scalar":
        _load_scalar(w, 1, i, operand, f"p{i}")


def _load_scalar(w: Writer, depth: int, i: int, operand: Operand, p: str) -> None:
    lanes = w.shape.lanes
    if operand.dtype.kind == "c":
        w.put(depth, f"x{i}_0 = load_lanes({p}, {lanes}, 1)")
    else:
        w.put(depth, f"x{i}_0 = broadcast(load({p}), {lanes})")


def _load(w: Writer, depth: int, i: int, operand: Operand, p: str, start: str = "") -> None:
    """Vectors of a row or tile operand; those beyond the matrix repeat its last column."""
    lanes, size = w.shape.lanes, operand.dtype.size
    start = start or f"v * {lanes}"

    def vector(at: str, n: str) -> str:
        if operand.unit:
            return f"load_lanes(shift({p}, ({at}) * {size}), {lanes}, {n})"
        return f"gather_lanes(shift({p}, ({at}) * c{i}), c{i}, {lanes}, {n})"

    if operand.each == 1:
        w.put(depth, f"x{i}_0 = {vector(start, 'left')}")
        return
    w.put(depth, f"first{i} = {vector(f'2 * ({start})', '2 * left')}")
    second = f"2 * ({start}) + min({lanes}, 2 * left - 1)"
    w.put(depth, f"second{i} = {vector(second, f'max(1, 2 * left - {lanes})')}")
    w.put(depth, f"x{i}_0 = evens(first{i}, second{i})")
    w.put(depth, f"x{i}_1 = odds(first{i}, second{i})")


def _prepare_output(w: Writer, o: int, output: Output, states: bool = True) -> None:
    slot = w.program.output_slot(o)
    dtype = output.dtype
    if output.kind == "tile" and dtype.kind != "f":
        dtype = computed_as(dtype, w.program)
    kind = w.name("D", dtype)
    w.put(1, f"q{o} = table_pointer(extra, {slot}, {kind})")
    w.put(1, f"qr{o} = table_integer(extra, {slot + 1})")
    w.put(1, f"qc{o} = table_integer(extra, {slot + 2})")
    w.put(1, f"q{o} = shift(q{o}, batch * table_integer(extra, {slot + 3}))")
    if output.kind == "tile":
        values = len(output.nodes)
        w.put(1, f"q{o} = shift(q{o}, row * qr{o} + column // {w.per} * {values} * qc{o})")
    if output.kind == "row":
        w.put(1, f"width{o} = table_integer(extra, 1) // {w.per}")
    if output.kind == "row" and states:
        w.put(1, f"s{o} = table_pointer(extra, {slot + 4}, {kind})")
        w.put(1, f"sr{o} = table_integer(extra, {slot + 5})")
        w.put(1, f"s{o} = shift(s{o}, row * sr{o} + batch * table_integer(extra, {slot + 6}))")
    if output.kind == "column" and output.combine == "log_sum_exp":
        w.put(1, f"s{o} = table_pointer(extra, {slot + 4}, {kind})")
        w.put(1, f"s{o} = shift(s{o}, batch * table_integer(extra, {slot + 6}))")
        w.put(1, f"sums{o} = shift(s{o}, table_integer(extra, {slot + 5}))")
        w.put(1, f"height{o} = table_integer(extra, 0)")


def _stored(w: Writer, index: int, dtype: DType) -> str:
    """A node as lanes of the type that a store to `dtype` narrows."""
    if dtype.kind in "fc":
        value = w.as_float(index)
        if dtype.kind == "f" and dtype.computed is not w.program.float_type:
            return f"to_float({value}, {w.name('D', dtype.computed)})"
        return value
    kind = w.kinds[index]
    if dtype.kind == "b":
        return f"select({w.as_mask(index)}, fill(index, 1), fill(index, 0))"
    if kind != FLOAT:
        return w.as_int(index)
    value = w.as_float(index)
    if dtype.name in LIMITS:
        low, high = LIMITS[dtype.name]
        value = f"smaller(larger({value}, fill(sample, {low}.0)), fill(sample, {high}.0))"
    elif dtype.bits > w.program.int_type.bits or dtype.kind == "u":
        raise TypeError(f"an epilogue does not convert floating-point values to {dtype}")
    return f"to_integer({value}, I)"


def _store(w: Writer, o: int, output: Output) -> None:
    lanes, size = w.shape.lanes, output.dtype.size
    values = [_stored(w, index, output.dtype) for index in output.nodes]

    def put(depth: int, at: str, value: str, n: str) -> None:
        if output.unit:
            p = f"shift(q{o}, i * qr{o} + ({at}) * {size})"
            w.put(depth, f"store_lanes({p}, {value}, {n})")
        else:
            p = f"shift(q{o}, i * qr{o} + ({at}) * qc{o})"
            w.put(depth, f"scatter_lanes({p}, qc{o}, {value}, {n})")

    if len(values) == 1:
        put(4, f"v * {lanes}", values[0], "left")
        return
    w.put(4, f"even{o} = {values[0]}")
    w.put(4, f"odd{o} = {values[1]}")
    put(4, f"v * {2 * lanes}", f"interleave_low(even{o}, odd{o})", "2 * left")
    w.put(4, f"if 2 * left > {lanes}:")
    at = f"v * {2 * lanes} + {lanes}"
    put(5, at, f"interleave_high(even{o}, odd{o})", f"2 * left - {lanes}")


def _partial_value(w: Writer, output: Output) -> str:
    kind = w.default(w.kinds[output.nodes[0]])
    return w.as_kind(output.nodes[0], INT if kind == MASK else kind)


def _row_partial(w: Writer, o: int, output: Output) -> None:
    lanes = w.shape.lanes
    begin, update, finish = make_row_partial(output.combine, output.dtype, lanes)
    for name, function in (("begin", begin), ("update", update), ("finish", finish)):
        w.scope[f"{name}{o}"] = function
    w.put(4, f"x = {_partial_value(w, output)}")
    none = identity(output.combine, output.dtype)
    none_text = _literal(none, w) if isinstance(none, float) else str(none)
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


def _column_partial(w: Writer, o: int, output: Output, depth: int = 4) -> None:
    if output.combine == "log_sum_exp":
        _column_log_sum_exp(w, o, output, depth)
        return
    lanes, size = w.shape.lanes, output.dtype.size
    w.scope[f"join{o}"] = COMBINE[output.combine]
    w.put(depth, f"x = {_partial_value(w, output)}")
    none = identity(output.combine, output.dtype)
    none_text = _literal(none, w) if isinstance(none, float) else str(none)
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
    w.put(depth, f"x = {_partial_value(w, output)}")
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


def make_announce(shape: TileShape, program: Program | None):
    """announce(m, row, column, batch, extra), called before the micro-kernel whose tile of m rows
    the write-back hook will get."""
    if program is None:
        return silent
    text, scope = announcement(shape, program)
    exec(compile(text, "<epilogue>", "exec"), scope)
    return scope["announce"]


def silent(m, row, column, batch, extra):
    """Nothing will be touched but the output."""


def make_write_back(shape: TileShape, program: Program):
    """The write-back hook (see gemm/blocked.py, `make_store`) that runs a program."""
    if program.pairs and shape.vectors % 2:
        raise ValueError(
            f"a program of pairs needs an even number of vectors, tile {shape.rows}x"
            f"{shape.columns} has {shape.vectors} of {shape.lanes} lanes"
        )
    text, scope = source(shape, program)
    exec(compile(text, "<epilogue>", "exec"), scope)
    return scope["write_back"]
