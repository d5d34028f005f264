"""A program's nodes as lines of Python in the words of the tile: the body of every hook.

Each node becomes one assignment to v0, v1...; lanes are floats, integers or masks, and a node that
meets another kind is converted where it is used.
"""

from __future__ import annotations

from gemm.microkernels import arithmetic, mathematics, rounding, vocabulary
from gemm.microkernels.dtypes import TileShape

from .program import FLOAT, INT, MASK, NUMBER, Program, common, types_of


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
            "copy_sign": rounding.copy_sign,
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
            return f"fill(sample, {literal(float(rest[0]), self)})"
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
            function = self.name(op, rounding.make_significant(self.program.float_type, bits))
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


def literal(x: float, writer: Writer) -> str:
    if x != x:
        writer.scope["NAN"] = mathematics.NAN
        return "NAN"
    if x in (mathematics.INFINITY, -mathematics.INFINITY):
        writer.scope["INFINITY"] = mathematics.INFINITY
        return "INFINITY" if x > 0 else "-INFINITY"
    return repr(x)
