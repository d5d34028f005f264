"""`@gemm.epilogue`: the decorator, and a program bound to its operands.

A plain function f(acc, operand...) of one output element, or f(acc_even, acc_odd, operand...) of
two adjacent columns, is checked and traced where it is defined; calling it with operands by name
binds them, and `gemm.matmul(a, b, epilogue=f(bias=bias))` runs it in the write-back.
"""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any

import numpy as np

from . import tracing
from .graph import Graph, Value, number
from .legal import replaced

PAIR = ("acc_even", "acc_odd")


class Epilogue:
    """A user's function as a program for the write-back; call it to bind operands by name."""

    def __init__(self, function: types.FunctionType):
        if not isinstance(function, types.FunctionType):
            raise TypeError(f"epilogue takes a plain Python function, not {function!r}")
        functools.update_wrapper(self, function)
        self.function = function
        name = self.name = function.__name__
        parameters = list(inspect.signature(function).parameters.values())
        for parameter in parameters:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise TypeError(f"epilogue {name}: operands have names, got {parameter}")
        names = [p.name for p in parameters]
        self.pairs = tuple(names[:2]) == PAIR
        accumulators = 2 if self.pairs else 1
        if len(parameters) < accumulators or any(x in names[accumulators:] for x in PAIR):
            raise TypeError(
                f"epilogue {name}({', '.join(names)}): the first parameter is the accumulator, or "
                f"the first two are {' and '.join(PAIR)}"
            )
        self.operands = {p.name: p for p in parameters[accumulators:]}
        for p in self.operands.values():
            free = p.default is p.empty or p.default is None
            if not free and number(p.default) is None:
                raise TypeError(f"epilogue {name}: the default of {p.name} is no number or None")
        self.traced: types.FunctionType = replaced(function)
        self._traces: dict[Any, Any] = {}
        # Traced once with every operand: misuse is an error here, and pairs show by unpacking.
        nodes, values = self.trace({key: "any" for key in self.operands})
        self.outputs = tuple(values)
        self.unpacked = {node[1] for node in nodes if node[0] == "operand" and node[2] != "any"}

    def __call__(self, /, *values: Any, **operands: Any) -> Bound:
        """The program with its operands: arrays or numbers by name.

        Shapes, for a product (..., M, N): () scalar, (N,) or (1, N) row vector, (M, 1) column
        vector, (M, N) full tile, each with batch axes before; of a program of pairs also with
        N / 2 in place of N, one value a pair. An operand whose default is None may be left out.
        """
        if values:
            raise TypeError(
                f"epilogue {self.name}: operands are bound by name, not place: "
                f"{self.name}({', '.join(f'{key}=...' for key in self.operands)})"
            )
        given = {key: x for key, x in operands.items() if x is not None}
        if given.keys() == self.operands.keys():
            return Bound(self, given)
        unknown = [key for key in given if key not in self.operands]
        if unknown:
            raise TypeError(
                f"epilogue {self.name} has no operand {', '.join(map(repr, unknown))}; "
                f"it has {', '.join(self.operands) or 'none'}"
            )
        missing = [k for k, p in self.operands.items() if p.default is p.empty and k not in given]
        if missing:
            raise TypeError(f"epilogue {self.name}: operand {', '.join(missing)} is missing")
        return Bound(self, given)

    def trace(self, each: dict[str, Any]) -> tuple[tuple[tuple, ...], dict[str, Value]]:
        """The graph for the operands present; each: 1, 2 (a pair of columns) or 'any'."""
        key = tuple(sorted(each.items(), key=lambda item: item[0]))
        if key not in self._traces:
            accumulators = [functools.partial(_accumulator, i) for i in range(1 + self.pairs)]
            keywords = {
                name: functools.partial(_operand, name, each[name])
                if name in each
                else functools.partial(_constant, parameter.default)
                for name, parameter in self.operands.items()
            }
            self._traces[key] = tracing.trace(self.traced, accumulators, keywords)
        return self._traces[key]

    def __repr__(self) -> str:
        return f"<epilogue {self.name}({', '.join(self.operands)})>"


def _accumulator(index: int, graph: Graph) -> Any:
    return graph.node("acc", index)


def _operand(name: str, each: Any, graph: Graph) -> Any:
    if each == 2:
        return graph.node("operand", name, 0), graph.node("operand", name, 1)
    return graph.node("operand", name, each if each == "any" else 0)


def _constant(value: Any, graph: Graph) -> Any:
    return value


class Nibbles:
    """Integers of four bits, two a byte along the rows: byte (r, n) holds value 2 r in its low
    half and value 2 r + 1 in its high half.

    values: uint8, (ceil(K / 2), N); signed: -8 to 7 instead of 0 to 15.
    """

    def __init__(self, values: Any, signed: bool = False):
        self.values = np.asarray(values)
        self.signed = signed
        if self.values.dtype != np.uint8 or self.values.ndim < 2:
            raise TypeError(
                f"Nibbles takes uint8 of shape (ceil(K / 2), N), not {self.values.dtype} of "
                f"shape {self.values.shape}"
            )


class Packed:
    """An operand of a product that a program makes while it is packed.

    operand: an array (..., K, N) or (..., M, K) whose elements the program changes, or None
    where the program makes the matrix of `shape` out of its own operands alone. program: an
    epilogue on one element of the operand; its operands fit the operand's shape, or have one row
    (as A: column) for each group of k. Extra outputs per_row(x, 'add' or 'max'..., None) of A, or
    per_column of B, are statistics: an operand of the product's epilogue takes one by its name.
    """

    def __init__(self, operand: Any, program: Any, shape: tuple[int, ...] | None = None,
                 dtype: Any = None):  # fmt: skip
        self.program = bind(program)
        self.operand = None if operand is None else np.asarray(operand)
        if (self.operand is None) == (shape is None):
            raise TypeError("Packed takes either an operand or a shape")
        self.shape = tuple(shape) if self.operand is None else self.operand.shape  # type: ignore[arg-type]
        self.dtype = np.dtype(dtype) if self.operand is None and dtype else None
        if self.operand is not None:
            self.dtype = self.operand.dtype
        if len(self.shape) < 2:
            raise ValueError(f"Packed takes matrices, got shape {self.shape}")

    @property
    def ndim(self) -> int:
        return len(self.shape)


class Bound:
    """An epilogue with its operands, ready for `matmul(..., epilogue=)`."""

    def __init__(self, epilogue: Epilogue, operands: dict[str, Any]):
        self.epilogue, self.operands = epilogue, operands

    def __repr__(self) -> str:
        return f"<epilogue {self.epilogue.name} with {', '.join(self.operands) or 'no operands'}>"


def epilogue(function: Any) -> Epilogue:
    """Make `function(acc, operand...)` a program that runs where a product is written back.

    The function computes one element (two, if its parameters start with acc_even and acc_odd)
    and returns the new value, a pair of values, or a dict of named outputs, the main one first:
    values, `as_type(value, dtype)`, `per_row(...)` and `per_column(...)` partials. Its words:
    + - * / **, comparisons, `if`, and, or, not, min, max, abs, round, math's exp, exp2, log,
    log2, log10, log1p, tanh, erf, sqrt, fabs, floor, ceil, trunc, copysign, fma, and gemm's
    sigmoid, rsqrt, nearest, select, row_index, column_index, uniform. Globals and closure
    variables must be numbers or functions of the same kind; they are read now.

    Raises TypeError for anything else, at definition.
    """
    return Epilogue(function)


def bind(program: Any) -> Bound:
    """What a caller passed as epilogue=, bound."""
    if isinstance(program, Bound):
        return program
    if isinstance(program, Epilogue):
        return program()
    raise TypeError(
        f"epilogue= takes a function decorated with @gemm.epilogue, called with its operands, "
        f"not {type(program).__name__} {program!r:.80}"
    )
