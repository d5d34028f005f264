"""A traced graph with types: everything a kernel must know of an epilogue, and its name.

`Program` is frozen and its repr is canonical: only nodes that an output needs, numbered in one
order, with every constant, operand kind and dtype. It is part of the kernel's specification and
so of the key in the kernel cache; two functions that say the same share one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from gemm.microkernels import mathematics
from gemm.microkernels.dtypes import DType, float32, float64, int32, int64

FLOAT, INT, MASK, NUMBER = "float", "int", "mask", "number"
MATHEMATICS = tuple(mathematics.MAKERS)
SLOTS = 4  # of an operand in the table: address, row step, column step, batch step
OUTPUT_SLOTS = 7  # and the address, row step and batch step of a reduction's running state
# Before them: M and N of the whole product, and where the part that runs now starts in it.
ORIGIN_ROW, ORIGIN_COLUMN, ORIGIN_BATCH = 2, 3, 4
FIRST_SLOT = 5


@dataclass(frozen=True)
class Operand:
    """kind: scalar, row, column, tile, or number (the value itself stands in the table, not an
    address); dtype: in memory; unit: columns are adjacent in memory;
    each: values an operand has for one of the program (2: a pair of columns); group: rows of the
    program that share one of the operand; nibbles: two values a byte, 'signed' or 'unsigned'."""

    kind: str
    dtype: DType
    unit: bool = True
    each: int = 1
    group: int = 1
    nibbles: str = ""


@dataclass(frozen=True)
class Output:
    """kind: tile, row or column; nodes: one, or a pair of columns; dtype: in memory (partials:
    the type they are computed in); combine, block: of partials; unit: columns are adjacent."""

    kind: str
    nodes: tuple[int, ...]
    dtype: DType
    combine: str = ""
    block: int = 0
    unit: bool = True


@dataclass(frozen=True)
class Program:
    """pairs: each value stands for two adjacent columns; acc: the accumulator's type; start: its
    first slot in the table; pack_a, pack_b: programs that change an operand while it is packed,
    whose columns begin at slot `origin` (B's are the product's columns, A's its rows)."""

    acc: DType
    pairs: bool
    nodes: tuple[tuple, ...]
    operands: tuple[Operand, ...]
    outputs: tuple[Output, ...]
    start: int = FIRST_SLOT
    origin: int = ORIGIN_COLUMN
    pack_a: Program | None = None
    pack_b: Program | None = None

    @property
    def reads_acc(self) -> bool:
        """Whether the value that was there before is used at all."""
        return any(node[0] == "acc" for node in self.nodes)

    @property
    def end(self) -> int:
        """The slot after its last."""
        return self.output_slot(len(self.outputs))

    @property
    def needs_pairs(self) -> bool:
        """Whether the tile must have an even number of vectors."""
        return self.pairs or (self.pack_b is not None and self.pack_b.pairs)

    @property
    def end_of_all(self) -> int:
        """The slot after the last, packing programs included."""
        parts = [p for p in (self, self.pack_a, self.pack_b) if p is not None]
        return max(p.end for p in parts)

    @property
    def float_type(self) -> DType:
        return float_type(self.acc, [o.dtype for o in self.operands])

    @property
    def int_type(self) -> DType:
        return int64 if self.acc is int64 else int32

    @property
    def splits(self) -> tuple[bool, bool]:
        """May workers share M, and N? Partials along a dimension are one worker's."""
        kinds = {output.kind for output in self.outputs}
        statistics = [p is not None and len(p.outputs) > 1 for p in (self.pack_b, self.pack_a)]
        return "column" not in kinds and not statistics[0], (
            "row" not in kinds and not statistics[1]
        )

    def suits(self, b_layout: str) -> bool:
        """Whether a kernel that reads B in place may run it: pairs need B's columns adjacent.

        (Direct kernels run no program: where vectors overlap they compute an element twice.)
        """
        return (
            self.pack_a is None
            and self.pack_b is None
            and (b_layout == "columns" or not self.pairs)
        )

    @property
    def reads_tiles(self) -> bool:
        """Whether each element of the product meets one of an operand as large, in memory."""
        return any(x.kind == "tile" and x.unit for x in self.operands)

    @property
    def is_identity(self) -> bool:
        """Nothing but the plain write-back of the product."""
        return (
            not self.pairs
            and self.pack_a is None
            and self.pack_b is None
            and len(self.outputs) == 1
            and self.outputs[0].kind == "tile"
            and self.nodes[self.outputs[0].nodes[0]] == ("acc", 0)
            and (self.outputs[0].dtype.kind == self.acc.kind)
        )

    def slot(self, operand: int) -> int:
        return self.start + SLOTS * operand

    def output_slot(self, output: int) -> int:
        return self.slot(len(self.operands)) + OUTPUT_SLOTS * output


def float_type(acc: DType, operands) -> DType:
    """The type of an epilogue's floating-point values: the accumulator's; for an integer one
    float32, or float64 where an operand or a 64-bit accumulator asks for it."""
    if acc.kind in "fc":
        return acc
    return float64 if acc is int64 or float64 in operands else float32


def pruned(nodes, roots) -> tuple[tuple[tuple, ...], dict[int, int]]:
    """(the nodes that roots need, numbered anew; old index -> new)."""
    needed = set(roots)
    for index in range(len(nodes) - 1, -1, -1):
        if index in needed and nodes[index][0] not in ("acc", "operand", "constant"):
            needed.update(nodes[index][1:])
    place = {old: new for new, old in enumerate(sorted(needed))}
    kept = []
    for old in place:
        op, *arguments = nodes[old]
        if op not in ("acc", "operand", "constant"):
            arguments = [place[a] for a in arguments]
        kept.append((op, *arguments))
    return tuple(kept), place


def types_of(nodes, operands, acc: DType) -> list[str]:
    """Of each node: float, int, mask, or number (an integer literal that takes any type)."""
    kinds: list[str] = []
    for op, *arguments in nodes:
        kinds.append(_type_of(op, arguments, kinds, operands, acc))
    return kinds


def common(kinds) -> str:
    kinds = set(kinds)
    if FLOAT in kinds:
        return FLOAT
    return INT if kinds & {INT, MASK} else NUMBER


def _type_of(op, arguments, kinds, operands, acc) -> str:
    if op == "acc":
        return FLOAT if acc.kind in "fc" else INT
    if op == "operand":
        return FLOAT if operands[arguments[0]].dtype.kind in "fc" else INT
    if op == "constant":
        return FLOAT if isinstance(arguments[0], float) else NUMBER
    if op in ("row_index", "column_index"):
        result = INT
    elif op in ("less", "less_equal", "equal", "both", "either", "opposite"):
        result = MASK
    elif op == "select":
        result = common(kinds[a] for a in arguments[1:])
    elif op in ("add", "subtract", "multiply", "larger", "smaller", "negate", "absolute"):
        result = common(kinds[a] for a in arguments)
    elif op in (
        "divide",
        "fused",
        "square_root",
        "copy_sign",
        "uniform",
        "significant",
        *MATHEMATICS,
    ):
        result = FLOAT
    else:
        raise TypeError(f"{op} is no word of an epilogue")
    if acc.kind == "c" and op not in ("add", "subtract", "multiply", "negate"):
        raise TypeError(
            f"an epilogue of a {acc} product may add, subtract, multiply and negate; it has {op}"
        )
    if op == "uniform" and kinds[arguments[0]] == FLOAT:
        raise TypeError("uniform(seed) takes an integer, and its seed is a floating-point value")
    if op == "uniform" and acc is int64:
        raise TypeError("uniform() has no 64-bit integer form: accumulate in int32 or a float")
    return result
