"""An operand under a packing program, fitted: its own operands, statistics and program."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm import operands
from gemm.microkernels.dtypes import DType, int32
from gemm.targets import element_type

from .contract import Bound, Nibbles, Packed
from .fitting import Problem, convert, fit_operand, kind_of, uniform_step
from .program import (
    FLOAT,
    ORIGIN_COLUMN,
    ORIGIN_ROW,
    Operand,
    Output,
    Program,
    pruned,
    types_of,
)


def operand_of(x: Any, common: np.dtype) -> tuple[np.ndarray, Packed | None]:
    """(the array that the kernel packs, the program that changes it)."""
    if not isinstance(x, Packed):
        return x, None
    if x.operand is None:
        # Made by the program alone: the array lends its shape and type, and is never read.
        return np.broadcast_to(np.zeros(1, x.dtype or common), x.shape), x
    return x.operand, x


def statistic(name: str, key: str, wanted: str, known: dict[str, np.ndarray]) -> np.ndarray:
    if wanted not in known:
        raise TypeError(
            f"epilogue {name}: operand {key} names the statistic {wanted!r}; the packing programs "
            f"give {', '.join(known) or 'none'}"
        )
    return known[wanted]


class Side:
    """A packing program fitted to its operand: rows are k, columns N (or M, for A, turned)."""

    def __init__(self, side: str, packed: Packed, shape: tuple[int, ...], acc: DType):
        bound = packed.program
        self.name = bound.epilogue.name
        where = f"packing program {self.name}"
        if acc.kind != "f":
            raise TypeError(f"{where}: packing programs need a float accumulator, not {acc}")
        if side == "a" and bound.epilogue.pairs:
            raise TypeError(f"{where}: pairs of columns are adjacent in B only, not along A's rows")
        self.turned = side == "a"
        self.problem = Problem(self.name, shape, acc, bound.epilogue.pairs)
        each = {key: 2 if key in bound.epilogue.unpacked else 1 for key in bound.operands}
        specs: list[tuple[str, Operand]] = []
        self.arrays: dict[str, np.ndarray] = {}
        for key, x in bound.operands.items():
            array, group, nibbles = self._fit(key, x, each[key])
            array = convert(self.problem, key, array, acc)
            kind = kind_of(array)
            if kind == "row" and array.strides[-1] != array.itemsize:
                array = np.ascontiguousarray(array)
            if group > 1 and kind in ("row", "scalar"):
                group = 1
            array = uniform_step(array, self.problem.batch)[0]
            unit = kind != "tile" or array.strides[-1] == array.itemsize
            self.arrays[key] = array
            specs.append(
                (key, Operand(kind, element_type(array.dtype), unit, each[key], group, nibbles))
            )
        self.program = self._program(bound, each, specs, acc)
        if packed.operand is None and self.program.reads_acc:
            raise TypeError(f"{where} reads the operand, and Packed was given a shape only")

    def _fit(self, key: str, x: Any, each: int) -> tuple[np.ndarray, int, str]:
        """(the operand, rows that share one of it, form of its nibbles)."""
        problem = self.problem
        k, columns = problem.m, problem.lanes * each
        if isinstance(x, Nibbles):
            want = (*problem.batch, -(-k // 2), columns)
            if self.turned or x.values.shape[-2:] != want[-2:]:
                raise ValueError(
                    f"packing program {self.name}: nibbles {key} of shape {x.values.shape} do not "
                    f"fill {want[-2:]} bytes of B"
                )
            return x.values, 2, "signed" if x.signed else "unsigned"
        array = operands.as_array(x)
        if self.turned:
            array = array[:, None] if array.ndim == 1 else array
            array = array.swapaxes(-1, -2) if np.ndim(x) > 1 else array
        rows = array.shape[-2] if array.ndim > 1 else 1
        if rows not in (1, k) and rows and k % rows == 0 and array.shape[-1] in (1, columns):
            return array, k // rows, ""
        try:
            return fit_operand(problem, key, array, each), 1, ""
        except ValueError:
            m, n = (columns, k) if self.turned else (k, columns)
            raise ValueError(
                f"packing program {self.name}: operand {key} of shape {np.shape(x)} is no scalar, "
                f"row vector ({n},), column vector ({m}, 1) or tile ({m}, {n}), nor has it one "
                "value a group of k"
            ) from None

    def _program(self, bound: Bound, each, specs, acc: DType) -> Program:
        nodes, values = bound.epilogue.trace(each)
        names = [name for name, _ in specs]
        swap = {"row_index": "column_index", "column_index": "row_index"} if self.turned else {}
        nodes = tuple(
            (op, names.index(rest[0]), rest[1]) if op == "operand" else (swap.get(op, op), *rest)
            for op, *rest in nodes
        )
        nodes, place = pruned(nodes, [i for value in values.values() for i in value.nodes])
        partial = "row" if self.turned else "column"
        main, *others = values.items()
        if main[1].kind != "tile" or (len(main[1].nodes) == 2) != bound.epilogue.pairs:
            raise TypeError(f"packing program {self.name}: {main[0]} must be the packed element")
        operand_specs = tuple(spec for _, spec in specs)
        kinds = types_of(nodes, operand_specs, acc)
        outputs = [Output("tile", tuple(place[i] for i in main[1].nodes), acc)]
        self.statistics: dict[str, np.ndarray] = {}
        self.results: dict[str, np.ndarray] = {}
        self.written: dict[str, np.ndarray] = {main[0]: np.empty(0, acc.name)}
        for key, value in others:
            if value.kind != partial or value.block or value.combine == "log_sum_exp":
                raise TypeError(
                    f"packing program {self.name}: {key} must be per_{partial}(x, 'add', 'max' or "
                    "'max_abs', None), a statistic over all of k"
                )
            kind = acc if kinds[value.nodes[0]] == FLOAT else int32
            outputs.append(Output("column", (place[value.nodes[0]],), kind, value.combine, 0))
            shape = (*self.problem.batch, 1, self.problem.lanes)
            array = np.zeros(shape, kind.name)
            self.written[key] = array
            self.results[key] = array.swapaxes(-1, -2) if self.turned else array
            self.statistics[key] = self.results[key]
        origin = ORIGIN_ROW if self.turned else ORIGIN_COLUMN
        return Program(
            acc, bound.epilogue.pairs, nodes, operand_specs, tuple(outputs), origin=origin
        )
