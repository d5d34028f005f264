"""The words of an epilogue beyond Python's own operators and `math`."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm.microkernels.dtypes import DTYPES
from gemm.microkernels.vocabulary import storage
from gemm.operands import is_extended

from .graph import Value, as_node, node

COMBINE = ("add", "max", "max_abs", "log_sum_exp")


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return node("sigmoid", x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x)."""
    return node("rsqrt", x)


def nearest(x: Any) -> Any:
    """The nearest integer, ties to even; still a float."""
    return node("nearest", x)


def significant(x: Any, bits: int) -> Any:
    """x with its first `bits` binary digits after the leading one, the rest cleared; with 0 the
    power of two at or below |x|, signed as x is."""
    if not isinstance(bits, int) or not 0 <= bits <= 23:
        raise ValueError(f"significant: bits must be an integer from 0 to 23, got {bits!r}")
    return node("significant", x, bits)


def select(condition: Any, x: Any, y: Any) -> Any:
    """x where the condition holds, else y; the conditional expression without a fork."""
    return node("select", condition, x, y)


def row_index() -> Any:
    """The row of the output in which the value stands, an int32."""
    return node("row_index")


def column_index() -> Any:
    """The column of the output, an int32; in a program of pairs, the number of the pair."""
    return node("column_index")


def uniform(seed: Any) -> Any:
    """A number in [0, 1) of this element: a hash of (seed, row, column), 24 random bits.

    seed: an int32 scalar operand or a constant. The same place and seed give the same number,
    whatever the tile, the thread or the target, so a backward program can draw it again.
    """
    return node("uniform", seed, row_index(), column_index())


def per_row(x: Any, combine: str = "add", block: int | None = 128) -> Value:
    """Partials of x along each row: an output of shape (M, ceil(N / block)).

    combine: 'add', 'max', 'max_abs' or 'log_sum_exp'; block: columns a partial, a multiple of
    16, None for the whole row. The order is fixed: sixteen chains by column, then a tree.
    """
    if block is not None and (not isinstance(block, int) or block < 16 or block % 16):
        raise ValueError(f"per_row: block must be a positive multiple of 16, got {block!r}")
    return Value("row", (as_node(x),), _combine(combine), block or 0)


def per_column(x: Any, combine: str = "add", block: int | None = 128) -> Value:
    """Partials of x down each column: an output of shape (ceil(M / block), N).

    combine: 'add', 'max', 'max_abs' or 'log_sum_exp'; block: rows a partial, None for the whole
    column. The order is that of the rows.
    """
    if block is not None and (not isinstance(block, int) or block < 1):
        raise ValueError(f"per_column: block must be a positive number of rows, got {block!r}")
    return Value("column", (as_node(x),), _combine(combine), block or 0)


def _combine(name: str) -> str:
    if name not in COMBINE:
        raise ValueError(f"combine must be one of {', '.join(COMBINE)}, got {name!r}")
    return name


def as_type(x: Any, dtype: Any) -> Value:
    """x as an output of a dtype of its own; without it an output has the product's dtype."""
    dtype = (
        storage(DTYPES[dtype]) if isinstance(dtype, str) and dtype in DTYPES else np.dtype(dtype)
    )
    if dtype.kind not in "biufc" and not is_extended(dtype):
        raise TypeError(f"as_type: {dtype} is no type of numbers")
    if isinstance(x, Value):
        return Value(x.kind, x.nodes, x.combine, x.block, dtype)
    nodes = tuple(map(as_node, x)) if isinstance(x, tuple) else (as_node(x),)
    return Value("tile", nodes, dtype=dtype)


WORDS = {
    function.__name__: function
    for function in (
        sigmoid, rsqrt, nearest, significant, select, row_index, column_index, uniform,
        per_row, per_column, as_type,
    )
}  # fmt: skip
