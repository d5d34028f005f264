"""A product with a program, laid out: all that does not change from call to call.

The operand table (program.py says what its slots hold) is laid out once; a run fills in
addresses and numbers and starts the kernel. A product that takes long runs in parts, each of
which says in the table where it starts in the whole (gemm/slices.py).
"""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from gemm import execution, planner, slices, targets
from gemm.microkernels.arithmetic import Table
from gemm.microkernels.dtypes import DType

from .fitting import Problem, steps_of, uniform_step
from .partials import CHAINS
from .program import ORIGIN_ROW, OUTPUT_SLOTS, SLOTS, Program

_BITS = {
    "float32": struct.Struct("=f4x"),
    "float64": struct.Struct("=d"),
    "int32": struct.Struct("=i4x"),
    "int64": struct.Struct("=q"),
}
_slot = struct.Struct("=q")


def bits(value: Any, dtype: DType) -> int:
    """A number of this type as the integer whose first bytes it is."""
    try:
        return _slot.unpack(_BITS[dtype.name].pack(value))[0]
    except OverflowError:  # beyond float32
        return bits(math.copysign(math.inf, value), dtype)


class OperandTable:
    """A job's table for a kernel of another shape; `argument` is what it takes as `extra`."""

    def __init__(self, job: Job, sources):
        self.states = job.new_states()
        self.job, self.sources = job, sources
        self.memory = np.array(job.filled(sources, self.states), np.int64)

    def argument(self, level: str) -> Any:
        """The table in memory, or as the reference target reads it."""
        if level != "reference":
            return self.memory
        return self.job.checked(self.memory.tolist(), self.sources, self.states)


class Job:
    """A program over a problem. Its arrays are known by (part, name): part 0 is the write-back,
    1 and on are the packing programs; outputs are named ('out', name)."""

    def __init__(self, problem: Problem, program: Program, threads: int, kernel: str | None):
        self.problem, self.program = problem, program
        self.threads, self.kernel = threads, kernel
        self.template = [0] * program.end_of_all
        self.template[0], self.template[1] = problem.m, problem.n
        self.addresses: list[tuple[int, Any, DType]] = []
        self.numbers: list[tuple[int, Any, DType]] = []
        self.states: list[tuple[int, tuple[int, ...], DType]] = []
        self.pack = struct.Struct(f"={len(self.template)}q").pack
        self.whole: Any = None  # the arrangement of a product that runs in one part

    def lay_out(self, part: int, program: Program, arrays, written, rows: int) -> None:
        """The slots of one program; arrays, written: its operands and outputs by name."""
        batch = self.problem.batch
        slots, count = self.template, math.prod(batch)
        for i, ((key, x), operand) in enumerate(zip(arrays.items(), program.operands, strict=True)):
            at = program.slot(i)
            if operand.kind == "number":
                self.numbers.append((at, (part, key), operand.dtype))
                continue
            step = uniform_step(x, batch)[1]
            slots[at + 1 : at + SLOTS] = (*steps_of(x), step)
            self.addresses.append((at, (part, key), operand.dtype))
        for o, ((key, x), output) in enumerate(zip(written.items(), program.outputs, strict=True)):
            if x.ndim < 2:
                continue  # the packed element itself
            at = program.output_slot(o)
            steps = x.strides[-2], x.strides[-1], uniform_step(x, batch)[1]
            self.addresses.append((at, (part, ("out", key)), output.dtype))
            both = 2 if output.combine == "log_sum_exp" else 1
            size, state = output.dtype.size, (0, 0)
            if output.kind == "row":
                shape: tuple[int, ...] = (count, rows, both * CHAINS)
                state = both * CHAINS * size, rows * both * CHAINS * size
                self.states.append((at + 4, shape, output.dtype))
            elif output.kind == "column" and both == 2:
                shape = (count, both, x.shape[-1])
                state = x.shape[-1] * size, both * x.shape[-1] * size
                self.states.append((at + 4, shape, output.dtype))
            slots[at + 1 : at + OUTPUT_SLOTS] = (*steps, 0, *state)

    def new_states(self) -> list[np.ndarray]:
        return [np.empty(shape, dtype.name) for _, shape, dtype in self.states]

    def filled(self, sources, states) -> list[int]:
        """The slots with every address and number; sources: the arrays by (part, name)."""
        slots = self.template.copy()
        for slot, key, dtype in self.numbers:
            slots[slot] = bits(sources[key].item(), dtype)
        self.point(slots, [sources[key] for _, key, _ in self.addresses], states)
        return slots

    def point(self, slots: list[int], arrays, states) -> None:
        """Addresses of arrays and states, in the order of `addresses` and `states`."""
        address = execution.address_function()
        for (slot, _, _), x in zip(self.addresses, arrays, strict=True):
            slots[slot] = address(x)
        for (slot, _, _), x in zip(self.states, states, strict=True):
            slots[slot] = address(x)

    def checked(self, slots: list[Any], sources, states) -> Table:
        """The table of the reference target: checked pointers."""
        from gemm.backends.reference.run import pointer

        for slot, key, dtype in self.addresses:
            slots[slot] = pointer(sources[key], dtype)
        for (slot, _, dtype), x in zip(self.states, states, strict=True):
            slots[slot] = pointer(x, dtype)
        return Table(slots)

    def run(self, a: np.ndarray, b: np.ndarray, home: np.ndarray, scratch: bool, sources) -> None:
        """One call. home: where partial sums rest, or a stand-in of its shape and type where they
        rest in scratch; sources: the arrays by (part, name)."""
        work = math.prod(self.problem.shape(self.problem.n)) * a.shape[-1]
        states = self.new_states()
        slots = self.filled(sources, states)
        if work <= slices.LONG * self.threads:
            self._part(a, b, home, scratch, sources, states, slots, (0, 0, 0))
            return
        for index in slices.pieces(home.shape, a.shape[-1], self.threads):
            *batch, rows, columns = (part.indices(n)[0] for part, n in
                                     zip(index, home.shape, strict=True))  # fmt: skip
            first = int(np.ravel_multi_index(batch, home.shape[:-2])) if batch else 0
            x, y, z = slices.operands(index, a, b, home)
            self._part(x, y, z, scratch, sources, states, slots, (rows, columns, first))

    def _part(self, a, b, home, scratch: bool, sources, states, slots, origin) -> None:
        plan, count, rows = self.planned(a, b, home, scratch)
        slots = slots.copy()
        slots[ORIGIN_ROW : ORIGIN_ROW + 3] = origin
        if plan.level == "reference":
            table = self.checked(slots, sources, states)
            execution.execute(plan, a, b, home, count, rows, scratch, table)
            return
        arranged = execution.Arranged(plan, a, b, home, count, rows, scratch)
        if home.shape == self.problem.shape(self.problem.n):
            self.whole = arranged
        self.start(arranged, a, b, home, slots)

    def start(self, arranged, a, b, home, slots: list[int]) -> None:
        """The kernel on these arrays and slots."""
        address = execution.address_function()
        table = self.pack(*slots)
        arranged.run(address(a), address(b), address(home), execution.content(table))

    def planned(self, a, b, home, scratch: bool):
        """(plan, number of matrices, their steps) of a part of the product."""
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        count, rows = execution.batches(
            home.shape[:-2], a.strides[:-2], b.strides[:-2], home.strides[:-2]
        )
        isa = None if self.kernel else targets.environment("GEMM_ISA")
        types = [targets.element_type(x.dtype) for x in (a, b, home)]
        brs, bcs = b.strides[-2:]
        layout = "columns" if bcs == b.itemsize or n == 1 else "none"
        layout = "rows" if layout == "none" and brs == b.itemsize else layout
        plan = planner.make_plan(
            *types, self.problem.acc, m, n, k, count, scratch, self.threads, self.kernel, isa,
            self.program, layout, True, False, k == 1 or a.strides[-1] == a.itemsize,
        )  # fmt: skip
        return plan, count, rows
