"""What a traced function may name, and the refusal of everything else.

The function's code is read for side effects, and its globals, closure and defaults are replaced,
once, by constants, words, and functions of the same kind; whatever cannot be is refused by name.
"""

from __future__ import annotations

import builtins
import dis
import math
import types
from typing import Any

import numpy as np

from .graph import HINT, Symbol, node, number


def word(op: str, doc: str = ""):
    def call(x):
        return node(op, x)

    call.__name__ = call.__qualname__ = op
    call.__doc__ = doc
    return call


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
    if isinstance(value, np.dtype):
        return value  # for as_type
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
