"""A user's plain function, run once on symbols, becomes an expression graph.

    f(acc, bias) -> max(acc + bias, 0.0)            0: acc
                                                    1: operand bias
                                                    2: add 0 1
                                                    3: constant 0.0
                                                    4: less 2 3
                                                    5: select 4 3 2

The function's globals, closure and defaults are read once, here, and end up in the graph as
constants or words; whatever cannot is refused by name. A condition (`if`, `and`, `min`...) is
followed both ways and joined by `select`. The graph, and nothing else, identifies the program.
"""

from __future__ import annotations

import builtins
import contextvars
import dis
import math
import types
from typing import Any

import numpy as np

MOST_PATHS = 64
MOST_DECISIONS = 24

_graph: contextvars.ContextVar[Any] = contextvars.ContextVar("graph")


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


HINT = "an epilogue is traced; docs/epilogues.md lists its words"


class Symbol:
    """A value of the graph; operators add nodes."""

    __slots__ = ("index",)
    __hash__ = object.__hash__
    __array_ufunc__ = None  # NumPy scalars leave the operator to us

    def __init__(self, index: int):
        self.index = index

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
        return _graph.get().decide(self.index)

    def __iter__(self):
        # At definition an operand may turn out to be a pair of columns.
        graph = _graph.get()
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
    return _graph.get().node("constant", constant).index


def node(op: str, *arguments) -> Symbol:
    """The graph's node of an operation on symbols and numbers."""
    graph = _graph.get(None)
    if graph is None:
        raise TypeError(f"{op}() works inside an epilogue, on the values that it is given")
    return graph.node(op, *map(as_node, arguments))


def word(op: str, doc: str = ""):
    def call(x):
        return node(op, x)

    call.__name__ = op
    call.__doc__ = doc
    return call


# -- what a traced function may name ---------------------------------------------------------------


def _extreme(op: str, original):
    def choose(*values, **keywords):
        values = values[0] if len(values) == 1 else values
        if keywords:
            raise TypeError(f"{original.__name__} takes no keywords in an epilogue")
        values = tuple(values)
        if not any(isinstance(x, Symbol) for x in values):
            return original(values)
        result = values[0]
        for x in values[1:]:
            result = node(op, result, x)
        return result

    return choose


def copysign(x, y):
    return node("copy_sign", abs(x) if isinstance(x, Symbol) else math.fabs(x), y)


def fma(x, y, z):
    return node("fused", x, y, z)


MATH = {
    "exp": word("exp"),
    "exp2": word("exp2"),
    "log": word("log"),
    "log2": word("log2"),
    "log10": word("log10"),
    "log1p": word("log1p"),
    "tanh": word("tanh"),
    "erf": word("erf"),
    "sqrt": word("square_root"),
    "fabs": word("absolute"),
    "floor": word("floor"),
    "ceil": word("ceil"),
    "trunc": word("trunc"),
    "copysign": copysign,
    "fma": fma,
    **{name: getattr(math, name) for name in ("pi", "e", "tau", "inf", "nan")},
}
_OF_BUILTIN = {getattr(math, name): value for name, value in MATH.items() if hasattr(math, name)
               and callable(value)}  # fmt: skip
BUILTINS = {
    "min": _extreme("smaller", min),
    "max": _extreme("larger", max),
    **{name: getattr(builtins, name) for name in (
        "abs", "round", "range", "sum", "tuple", "list", "dict", "zip", "enumerate", "reversed",
    )},
}  # fmt: skip
_REPLACED = {min: BUILTINS["min"], max: BUILTINS["max"]}

_FORBIDDEN = {
    "STORE_GLOBAL": "assigns a global",
    "DELETE_GLOBAL": "deletes a global",
    "STORE_NAME": "assigns a global",
    "STORE_ATTR": "assigns an attribute",
    "DELETE_ATTR": "deletes an attribute",
    "STORE_SUBSCR": "assigns an element",
    "STORE_SLICE": "assigns a slice",
    "DELETE_SUBSCR": "deletes an element",
    "IMPORT_NAME": "imports a module",
    "RAISE_VARARGS": "raises an exception",
    "LOAD_BUILD_CLASS": "defines a class",
    "BEFORE_WITH": "uses `with`",
    "SETUP_WITH": "uses `with`",
    "PUSH_EXC_INFO": "handles exceptions",
    "SETUP_FINALLY": "handles exceptions",
    "GET_AWAITABLE": "awaits",
}


def scan(code: types.CodeType, name: str) -> set[str]:
    """The global names that a code object reads; TypeError for a side effect."""
    read = set()
    for instruction in dis.get_instructions(code):
        op = instruction.opname
        why = _FORBIDDEN.get(op)
        if op == "STORE_DEREF" and instruction.argval in code.co_freevars:
            why = f"assigns {instruction.argval!r} of the enclosing function"
        if why:
            # A comprehension's hidden exception table in newer Pythons handles nothing.
            if op in ("PUSH_EXC_INFO", "SETUP_FINALLY") and not _has_try(code):
                continue
            raise TypeError(f"epilogue {name}: it {why}; an epilogue has no side effects")
        if op in ("LOAD_GLOBAL", "LOAD_NAME"):
            read.add(instruction.argval)
    if code.co_flags & 0x280:
        raise TypeError(f"epilogue {name}: a coroutine is no epilogue")
    if code.co_flags & 0x20 and code.co_name != "<genexpr>":
        raise TypeError(f"epilogue {name}: a generator is no epilogue")
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            read |= scan(constant, name)
    return read


def _has_try(code: types.CodeType) -> bool:
    return any(i.opname in ("CHECK_EXC_MATCH", "RERAISE", "POP_EXCEPT", "JUMP_IF_NOT_EXC_MATCH")
               for i in dis.get_instructions(code)) and code.co_name[0] != "<"  # fmt: skip


class _Namespace:
    """A module as an epilogue sees it: its words, and a clear refusal of the rest."""

    def __init__(self, name: str, members: dict[str, Any]):
        self._name = name
        self.__dict__.update(members)

    def __getattr__(self, name: str):
        raise TypeError(f"{self._name}.{name} is no word of an epilogue: {HINT}")


def legal(value: Any, name: str, owner: str, seen: dict) -> Any:
    """`value`, found under `name`, as the traced function sees it."""
    from . import words

    if number(value) is not None or value is None or isinstance(value, str):
        return number(value) if number(value) is not None else value
    if value is math:
        return _Namespace("math", MATH)
    if isinstance(value, types.ModuleType) and value.__name__ in ("gemm", "gemm.epilogues"):
        return _Namespace(value.__name__, words.WORDS)
    if isinstance(value, tuple):
        return tuple(legal(x, f"{name}[{i}]", owner, seen) for i, x in enumerate(value))
    try:
        if value in _OF_BUILTIN:
            return _OF_BUILTIN[value]
        if value in _REPLACED:
            return _REPLACED[value]
        if value in words.WORDS.values():
            return value
    except TypeError:
        pass
    from .contract import Epilogue

    if isinstance(value, Epilogue):
        value = value.function
    if isinstance(value, types.FunctionType):
        return replaced(value, seen)
    raise TypeError(
        f"epilogue {owner}: {name} is {type(value).__name__} {value!r:.60}, which cannot be part "
        f"of a kernel: only numbers and words can; pass arrays as operands. {HINT}"
    )


def replaced(function: types.FunctionType, seen: dict | None = None) -> types.FunctionType:
    """The function with every global and closure variable replaced by what is legal."""
    seen = {} if seen is None else seen
    if function in seen:
        return seen[function]
    name = function.__name__
    scope: dict[str, Any] = {"__builtins__": {}, "__name__": function.__module__}
    cells = tuple(types.CellType() for _ in function.__closure__ or ())
    code = function.__code__
    new = types.FunctionType(code, scope, name, function.__defaults__, cells)
    new.__kwdefaults__ = function.__kwdefaults__
    seen[function] = new
    for read in sorted(scan(code, name)):
        if read in function.__globals__:
            scope[read] = legal(function.__globals__[read], read, name, seen)
        elif read in BUILTINS:
            scope[read] = BUILTINS[read]
        else:
            what = "a builtin that is" if hasattr(builtins, read) else "defined nowhere,"
            raise TypeError(f"epilogue {name}: {read!r} is {what} no word of an epilogue: {HINT}")
    for variable, cell, given in zip(code.co_freevars, cells, function.__closure__ or (),
                                     strict=True):  # fmt: skip
        try:
            content = given.cell_contents
        except ValueError:
            raise TypeError(f"epilogue {name}: {variable!r} has no value yet") from None
        cell.cell_contents = legal(content, variable, name, seen)
    return new


# -- running ---------------------------------------------------------------------------------------


def _value(x: Any, name: str, key: str) -> Value:
    if isinstance(x, Value):
        return x
    if isinstance(x, tuple):
        if len(x) != 2:
            raise TypeError(f"epilogue {name}: {key} is a tuple of {len(x)}, a pair has 2 columns")
        return Value("tile", tuple(map(as_node, x)))
    return Value("tile", (as_node(x),))


def outputs(result: Any, name: str) -> dict[str, Value]:
    """What a traced function returned, as named values; the first is the main output."""
    if result is None:
        raise TypeError(f"epilogue {name} returns nothing")
    if not isinstance(result, dict):
        result = {"out": result}
    if not result or not all(isinstance(key, str) and key.isidentifier() for key in result):
        raise TypeError(f"epilogue {name}: outputs have names, got {list(result)!r}")
    return {key: _value(x, name, key) for key, x in result.items()}


def trace(function: types.FunctionType, arguments, keywords) -> tuple[tuple, dict[str, Value]]:
    """(nodes, outputs) of one call; arguments: functions of a graph that give each argument."""
    graph = Graph()
    token = _graph.set(graph)
    try:
        return _trace(graph, function, arguments, keywords)
    finally:
        _graph.reset(token)


def _trace(graph: Graph, function, arguments, keywords):
    name = function.__name__
    paths: list[tuple[list[tuple[int, bool]], dict[str, Value]]] = []
    graph.plan = []
    while True:
        graph.taken, graph.known = [], {}
        found = outputs(
            function(*(a(graph) for a in arguments),
                     **{key: a(graph) for key, a in keywords.items()}), name
        )  # fmt: skip
        paths.append((graph.taken, found))
        if len(paths) > MOST_PATHS:
            raise TypeError(f"epilogue {name} has more than {MOST_PATHS} paths through its "
                            "conditions; use select() or min and max")  # fmt: skip
        taken = list(graph.taken)
        while taken and not taken[-1][1]:
            taken.pop()
        if not taken:
            joined = _joined(graph, paths, 0, name)
            return tuple(graph.nodes), joined
        graph.plan = [answer for _, answer in taken[:-1]] + [False]


def _joined(graph: Graph, paths, depth: int, name: str) -> dict[str, Value]:
    """The outputs of all paths that agree up to `depth`, joined by select."""
    if len(paths) == 1:
        return paths[0][1]
    condition = paths[0][0][depth][0]
    true = _joined(graph, [p for p in paths if p[0][depth][1]], depth + 1, name)
    false = _joined(graph, [p for p in paths if not p[0][depth][1]], depth + 1, name)
    if true.keys() != false.keys():
        raise TypeError(f"epilogue {name} returns {list(true)} or {list(false)}, by a condition")
    joined = {}
    for key, a in true.items():
        b = false[key]
        if a.form != b.form:
            raise TypeError(f"epilogue {name}: {key} is {a.form} or {b.form}, by a condition")
        nodes = tuple(
            x if x == y else graph.node("select", condition, x, y).index
            for x, y in zip(a.nodes, b.nodes, strict=True)
        )
        joined[key] = Value(*(a.kind, nodes, a.combine, a.block, a.dtype))
    return joined
