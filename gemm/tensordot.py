"""tensordot: the product over any axes of two arrays, and `transpose`.

opt_einsum takes a package as a backend when it exports `tensordot`, `transpose` and `einsum`.
"""

from __future__ import annotations

import operator
from functools import lru_cache
from typing import Any

import numpy as np

from gemm import contraction, operands, originals

transpose = originals.transpose

Ints = tuple[int, ...]


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """`numpy.tensordot`: sum over pairs of axes of `a` and `b`.

    axes: an int n for the last n axes of `a` and the first n of `b`, or a pair of (lists of) axes.
    The result has the remaining axes of `a`, then those of `b`, in C order. Raises ValueError for
    axes that do not match, repeat or lie outside an operand.
    """
    if not operands.all_plain((a, b)):
        return originals.tensordot(a, b, axes=axes)
    x, y = operands.as_array(a), operands.as_array(b)
    dtype = operands.shared_dtype(x.dtype, y.dtype)
    if dtype is None:
        return originals.tensordot(a, b, axes=axes)
    x, y = operands.convert(x, dtype), operands.convert(y, dtype)
    order, shape, recipe = _plan(_checked(axes), x.shape, x.strides, y.shape, y.strides, dtype)
    if order is not None:
        x = x.transpose(order)
    if not shape:
        return np.asarray(recipe(x, y, dtype))
    return recipe(x, y, dtype, np.empty(shape, dtype))


@lru_cache(maxsize=1024)
def _plan(
    axes: int | tuple[Ints, Ints],
    x_shape: Ints,
    x_strides: Ints,
    y_shape: Ints,
    y_strides: Ints,
    dtype: np.dtype,
) -> tuple[Ints | None, Ints, contraction.Contraction]:
    """(how to transpose `a`, shape of the result, how to contract into it)."""
    if isinstance(axes, int):
        axes = tuple(range(-axes, 0)), tuple(range(axes))
    first, second = axes
    if len(first) != len(second):
        raise ValueError(
            f"shape-mismatch for sum: {len(first)} axes {first} of shape {x_shape} and "
            f"{len(second)} axes {second} of shape {y_shape}"
        )
    first, second = _normalised(first, x_shape), _normalised(second, y_shape)
    for i, j in zip(first, second, strict=True):
        if x_shape[i] != y_shape[j]:
            raise ValueError(
                f"shape-mismatch for sum: axis {i} of shape {x_shape} and axis {j} of shape "
                f"{y_shape} have sizes {x_shape[i]} and {y_shape[j]}"
            )
    # The order of the axes as given is the order of summation: it names the labels of `a`.
    x_labels = tuple(range(len(x_shape)))
    rows = tuple(i for i in x_labels if i not in first)
    order = rows + first
    names = dict(zip(second, first, strict=True))
    y_labels = tuple(names.get(j, len(x_shape) + j) for j in range(len(y_shape)))
    columns = tuple(j for j in range(len(y_shape)) if j not in second)
    shape = tuple(x_shape[i] for i in rows) + tuple(y_shape[j] for j in columns)
    recipe = contraction.plan(
        order, tuple(x_shape[i] for i in order), tuple(x_strides[i] for i in order),
        y_labels, y_shape, y_strides, rows + tuple(len(x_shape) + j for j in columns),
        operands.contiguous_strides(shape, dtype.itemsize) if shape else None,
    )  # fmt: skip
    return None if order == x_labels else order, shape, recipe


def _checked(axes: Any) -> int | tuple[Ints, Ints]:
    """`axes` as NumPy reads them: an int, or two tuples of ints."""
    if type(axes) is not int:
        try:
            first, second = axes
        except TypeError:
            axes = operator.index(axes)
        else:
            return _as_tuple(first), _as_tuple(second)
    if axes < 0:
        raise ValueError(f"tensordot: the number of axes must not be negative, got {axes}")
    return axes


def _as_tuple(axes: Any) -> Ints:
    try:
        return tuple(map(operator.index, axes))
    except TypeError:
        return (operator.index(axes),)


def _normalised(axes: Ints, shape: Ints) -> Ints:
    for axis in axes:
        if not -len(shape) <= axis < len(shape):
            raise np.exceptions.AxisError(
                f"tensordot: axis {axis} is out of bounds for shape {shape}"
            )
    result = tuple(axis % len(shape) for axis in axes)
    if len(set(result)) != len(result):
        raise ValueError(f"duplicate axes are not allowed in tensordot: {axes} of shape {shape}")
    return result
