"""A problem of device arrays without its addresses, and which unit computes it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gemm.microkernels.dtypes import DTYPES, DType, float32, float64, int32, int64

from ..epilogues.program import Program
from ..team import choice as plans

LARGEST_GRID = 2**31 - 1


TABLE_ROWS = 4


PRECISIONS = (None, "tf32", "tf32x3")


@dataclass(frozen=True)
class Matrix:
    """One operand as the kernels see it: `rows` x `depth` at steps in bytes (rows of A, columns
    of B; depth is k); `aligned`: its address is a multiple of 16."""

    rows: int
    depth: int
    row_step: int
    k_step: int
    dtype: DType
    aligned: bool

    def along(self) -> str:
        """The adjacent index: 'k', 'rows' or ''; an index of extent 1 is adjacent to all."""
        size = self.dtype.size
        if self.k_step == size and not (self.depth == 1 and self.row_step == size):
            return "k"
        if self.row_step == size or self.rows == 1:
            return "rows"
        return "k" if self.depth == 1 else ""

    def near(self) -> str:
        """The index with the smaller step."""
        return "k" if abs(self.k_step) <= abs(self.row_step) else "rows"

    def even(self, batch_steps) -> bool:
        """Whether every line starts at a multiple of 16 bytes, at positive steps."""
        along = self.along()
        if not along or not self.aligned:
            return False
        extent, step = (self.rows, self.row_step) if along == "k" else (self.depth, self.k_step)
        steps = [step] if extent > 1 else []
        return all(0 <= s < 2**40 and s % 16 == 0 for s in [*steps, *batch_steps]) and all(
            s > 0 for s in steps
        )


@dataclass(frozen=True)
class Signature:
    """A problem without addresses. batch: rows (extent, a, b, c step in bytes), innermost first;
    program: the write-back's; `out` is then the type it accumulates in."""

    a: Matrix
    b: Matrix
    out: DType
    c_row: int
    c_aligned: bool
    batch: tuple[tuple[int, int, int, int], ...]
    precision: str | None = None
    fast: bool = False
    scaled: bool = False
    program: Program | None = None

    @property
    def partials(self) -> set[str]:
        """'row', 'column': which kinds of partials its program has."""
        outputs = self.program.outputs if self.program else ()
        return {output.kind for output in outputs} - {"tile"}

    @property
    def results(self) -> int:
        """Outputs of its program that are as large as the product."""
        outputs = self.program.outputs if self.program else ()
        return sum(output.kind == "tile" for output in outputs)

    @property
    def exponential(self) -> bool:
        """Whether its program has a log-sum-exp, which takes the registers of half a block."""
        outputs = self.program.outputs if self.program else ()
        return any(output.combine == "log_sum_exp" for output in outputs)

    @property
    def count(self) -> int:
        return math.prod(row[0] for row in self.batch)


def accumulator(a: DType, out: DType) -> DType:
    """The type in which a product of `a` into `out` is accumulated (docs/numerics.md)."""
    if a.kind == "c":
        return DTYPES["complex128"] if out.name == "complex128" else a
    if a.kind == "f":
        return float64 if "float64" in (a.name, out.name) else float32
    return int64 if max(a.bits, out.bits) == 64 else int32


def unit_of(facts, s: Signature) -> tuple[str, str]:
    """(unit, kind) that computes this signature: a pure function of types, never of sizes."""
    a, b, acc = s.a.dtype, s.b.dtype, accumulator(s.a.dtype, s.out)
    kind = "tf32" if s.precision else a.name
    if a != b or (a.name == "float32" and not s.precision):
        return "lanes", ""
    if a.name == "float64" and acc.name == "float64":
        return ("matrix", kind) if facts.capability >= 80 else ("lanes", "")
    if kind not in plans.MATRIX_KINDS or acc.size != 4:
        return "lanes", ""
    if facts.wide:
        return "wide", kind
    least = 89 if kind.startswith("float8") else 80
    return ("matrix", kind) if facts.capability >= least else ("lanes", "")


def unit_name(facts, dtype: DType, precision: str | None) -> str:
    one = Matrix(1, 1, dtype.size, dtype.size, dtype, True)
    out = float32 if dtype.kind == "f" else dtype
    return unit_of(facts, Signature(one, one, out, 4, True, (), precision))[0]


def round_up(x: int, step: int) -> int:
    return -(-x // step) * step
