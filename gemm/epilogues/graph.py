"""The expression graph of a program, and the symbols that stand for its nodes.

A symbol behaves as a Python number: each operator adds a node. A condition is asked of the graph,
which follows one way at a time (tracing.py walks them all).
"""

from __future__ import annotations

import contextvars
from typing import Any

import numpy as np

MOST_DECISIONS = 24
HINT = "an epilogue is traced; docs/epilogues.md lists its words"

current: contextvars.ContextVar[Any] = contextvars.ContextVar("graph")


class Value:
    """What a traced function may return under a name: nodes and how they leave the kernel.

    kind: 'tile', 'row' (one partial a row and column block) or 'column'; combine, block: of the
    partials; dtype: NumPy dtype asked for, or None.
    """

    __slots__ = ("block", "combine", "dtype", "kind", "nodes")

    def __init__(self, kind, nodes, combine="", block=0, dtype=None):
        self.kind, self.nodes, self.combine, self.block = kind, nodes, combine, block
        self.dtype = dtype

    @property
    def form(self):
        return self.kind, len(self.nodes), self.combine, self.block, self.dtype


class Graph:
    """Nodes (op, argument...) numbered in order, equal ones only once, and the path's decisions."""

    def __init__(self):
        self.nodes: list[tuple] = []
        self.index: dict[tuple, int] = {}
        self.plan: list[bool] = []
        self.taken: list[tuple[int, bool]] = []
        self.known: dict[int, bool] = {}

    def node(self, op: str, *arguments) -> Symbol:
        key = (op, *arguments)
        # 0.0 and -0.0, 1 and 1.0 and True are equal keys but different constants.
        name = (op, *map(repr, arguments)) if op == "constant" else key
        if name not in self.index:
            self.index[name] = len(self.nodes)
            self.nodes.append(key)
        return Symbol(self.index[name])

    def decide(self, condition: int) -> bool:
        if condition in self.known:
            return self.known[condition]
        depth = len(self.taken)
        if depth >= MOST_DECISIONS:
            raise TypeError(
                f"more than {MOST_DECISIONS} decisions on one path: a loop whose end depends on "
                "data cannot be part of an epilogue"
            )
        answer = self.plan[depth] if depth < len(self.plan) else True
        self.taken.append((condition, answer))
        self.known[condition] = answer
        return answer


def _unsupported(what: str):
    def refuse(self, *_):
        raise TypeError(f"{what} of a value known only when the kernel runs: {HINT}")

    return refuse


class Symbol:
    """A value of the graph; operators add nodes."""

    __slots__ = ("index",)
    __hash__ = object.__hash__
    __array_ufunc__ = None  # NumPy scalars leave the operator to us

    def __init__(self, index: int):
        self.index = index

    def __repr__(self):
        return "<value of an epilogue>"

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        raise TypeError(f"a value of an epilogue has no attribute {name!r}: {HINT}")

    def __add__(self, other):
        return node("add", self, other)

    def __radd__(self, other):
        # `sum` starts from 0, and x + 0 would turn -0 into +0.
        return self if type(other) is int and other == 0 else node("add", other, self)

    def __sub__(self, other):
        return node("subtract", self, other)

    def __rsub__(self, other):
        return node("subtract", other, self)

    def __mul__(self, other):
        return node("multiply", self, other)

    def __rmul__(self, other):
        return node("multiply", other, self)

    def __truediv__(self, other):
        return node("divide", self, other)

    def __rtruediv__(self, other):
        return node("divide", other, self)

    def __pow__(self, exponent):
        if exponent == 0.5:
            return node("square_root", self)
        if isinstance(exponent, float) and exponent.is_integer():
            exponent = int(exponent)
        if not isinstance(exponent, int) or not -64 <= exponent <= 64:
            raise TypeError(f"x ** {exponent!r}: exponents are 0.5 and integers from -64 to 64")
        if exponent < 0:
            return 1.0 / self**-exponent
        result, square = None, self
        while exponent:
            if exponent & 1:
                result = square if result is None else result * square
            exponent >>= 1
            square = square * square if exponent else square
        return self * 0 + 1 if result is None else result

    def __neg__(self):
        return node("negate", self)

    def __pos__(self):
        return self

    def __abs__(self):
        return node("absolute", self)

    def __round__(self, digits=None):
        if digits is not None:
            raise TypeError("round(x, digits) has no digits in an epilogue")
        return node("nearest", self)

    def __lt__(self, other):
        return node("less", self, other)

    def __le__(self, other):
        return node("less_equal", self, other)

    def __gt__(self, other):
        return node("less", other, self)

    def __ge__(self, other):
        return node("less_equal", other, self)

    def __eq__(self, other):
        return node("equal", self, other)

    def __ne__(self, other):
        return node("opposite", self == other)

    def __and__(self, other):
        return node("both", self, other)

    __rand__ = __and__

    def __or__(self, other):
        return node("either", self, other)

    __ror__ = __or__

    def __invert__(self):
        return node("opposite", self)

    def __bool__(self):
        return current.get().decide(self.index)

    def __iter__(self):
        # At definition an operand may turn out to be a pair of columns.
        graph = current.get()
        op, *rest = graph.nodes[self.index]
        if op == "operand" and rest[1] == "any":
            return iter((graph.node("operand", rest[0], 0), graph.node("operand", rest[0], 1)))
        raise TypeError(f"a single value is no pair of columns: {HINT}")

    __float__ = _unsupported("float()")
    __int__ = _unsupported("int()")
    __index__ = _unsupported("an index")
    __len__ = _unsupported("len()")
    __getitem__ = _unsupported("an element")
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _unsupported("floor division")
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _unsupported("a shift")
    __xor__ = __rxor__ = _unsupported("^")
    __matmul__ = __rmatmul__ = _unsupported("a matrix product")
    __rpow__ = _unsupported("a power")
    __complex__ = _unsupported("complex()")
    __format__ = __str__ = _unsupported("text")  # type: ignore[assignment]


def number(x: Any) -> Any:
    """x as a Python int, float or bool when it is one number; else None."""
    if isinstance(x, np.generic):
        x = x.item()
    return x if isinstance(x, (bool, int, float)) else None


def as_node(x: Any) -> int:
    if isinstance(x, Symbol):
        return x.index
    constant = number(x)
    if constant is None:
        raise TypeError(f"{x!r} ({type(x).__name__}) is no number: {HINT}")
    return current.get().node("constant", constant).index


def node(op: str, *arguments) -> Symbol:
    """The graph's node of an operation on symbols and numbers."""
    graph = current.get(None)
    if graph is None:
        raise TypeError(f"{op}() works inside an epilogue, on the values that it is given")
    return graph.node(op, *map(as_node, arguments))
