"""Lines that move a program's operands and outputs between memory and lanes.

Both are found through the operand table (program.py says what its slots hold): addresses and steps
are read once, before the loops, into names that end in the operand's or the output's number:

    operand i    p address of the tile's first element, r row step, c column step, x lanes
    output o     q address, qr row step, qc column step, s state of a partial
"""

from __future__ import annotations

from gemm.microkernels.dtypes import DType

from .program import (
    FLOAT,
    ORIGIN_BATCH,
    ORIGIN_COLUMN,
    ORIGIN_ROW,
    Operand,
    Output,
    Program,
)
from .writer import Writer

LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535)}


def computed_as(dtype: DType, program: Program) -> DType:
    """How an operand's storage is widened: floats to the program's float, integers to its int."""
    if dtype.kind == "c":
        return dtype
    return dtype.widened_to(program.float_type if dtype.kind == "f" else program.int_type)


def put_origin(w: Writer) -> None:
    """From the part of the product that runs to the whole."""
    w.put(1, f"row = row + table_integer(extra, {ORIGIN_ROW})")
    w.put(1, f"column = column + table_integer(extra, {ORIGIN_COLUMN})")
    w.put(1, f"batch = batch + table_integer(extra, {ORIGIN_BATCH})")


def prepare_operand(w: Writer, i: int, operand: Operand, row: str = "row") -> None:
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
        load_scalar(w, 1, i, operand, f"p{i}")


def load_scalar(w: Writer, depth: int, i: int, operand: Operand, p: str) -> None:
    lanes = w.shape.lanes
    if operand.dtype.kind == "c":
        w.put(depth, f"x{i}_0 = load_lanes({p}, {lanes}, 1)")
    else:
        w.put(depth, f"x{i}_0 = broadcast(load({p}), {lanes})")


def load_operand(w: Writer, depth: int, i: int, operand: Operand, p: str, start: str = "") -> None:
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


def prepare_output(w: Writer, o: int, output: Output, states: bool = True) -> None:
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


def stored(w: Writer, index: int, dtype: DType) -> str:
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
    if dtype.name in LIMITS and not is_clamped(w, index, *LIMITS[dtype.name]):
        low, high = LIMITS[dtype.name]
        value = f"smaller(larger({value}, fill(sample, {low}.0)), fill(sample, {high}.0))"
    elif dtype.name not in LIMITS and (dtype.bits > w.program.int_type.bits or dtype.kind == "u"):
        raise TypeError(f"an epilogue does not convert floating-point values to {dtype}")
    return f"to_integer({value}, I)"


def is_clamped(w: Writer, index: int, low: int, high: int) -> bool:
    """Whether a value is min(max(x, a), b) of numbers low <= a <= b <= high already."""
    nodes = w.program.nodes
    bounds = []
    for word in ("smaller", "larger"):
        op, *rest = nodes[index]
        if op != word or nodes[rest[1]][0] != "constant":
            return False
        bounds.append(nodes[rest[1]][1])
        index = rest[0]
    return low <= bounds[1] <= bounds[0] <= high


def store_output(w: Writer, o: int, output: Output) -> None:
    lanes, size = w.shape.lanes, output.dtype.size
    values = [stored(w, index, output.dtype) for index in output.nodes]

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
