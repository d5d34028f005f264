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

import types
from typing import Any

from .graph import Graph, Value, as_node, current

MOST_PATHS = 64


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
    token = current.set(graph)
    try:
        return _trace(graph, function, arguments, keywords)
    finally:
        current.reset(token)


def _trace(graph: Graph, function, arguments, keywords):
    name = function.__name__
    paths: list[tuple[list[tuple[int, bool]], dict[str, Value]]] = []
    graph.plan = []
    while True:
        graph.taken, graph.known = [], {}
        values = [a(graph) for a in arguments]
        named = {key: a(graph) for key, a in keywords.items()}
        try:
            found = outputs(function(*values, **named), name)
        except RecursionError:
            raise TypeError(f"epilogue {name} calls itself without an end") from None
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
