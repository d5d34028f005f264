"""tensordot: the product over any axes of two arrays, and `transpose`.

opt_einsum takes a package as a backend when it exports `tensordot`, `transpose` and `einsum`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from gemm import contraction, operands, originals

transpose = originals.transpose


def tensordot(a: Any, b: Any, axes: Any = 2) -> Any:
    """`numpy.tensordot`: sum over pairs of axes of `a` and `b`.

    axes: an int n for the last n axes of `a` and the first n of `b`, or a pair of (lists of) axes.
    The result has the remaining axes of `a`, then those of `b`, in C order. Raises ValueError for
    axes that do not match, repeat or lie outside an operand.
    """
    if not operands.all_plain((a, b)):
        return originals.tensordot(a, b, axes=axes)
    x, y = operands.as_array(a), operands.as_array(b)
    dtype = operands.common_dtype(x.dtype, y.dtype)
    if not operands.is_engine_dtype(dtype):
        return originals.tensordot(a, b, axes=axes)
    first, second = _axes_pair(axes, x.ndim, y.ndim)
    if len(first) != len(second):
        raise ValueError(
            f"shape-mismatch for sum: {len(first)} axes {first} of shape {x.shape} and "
            f"{len(second)} axes {second} of shape {y.shape}"
        )
    first, second = _normalised(first, x), _normalised(second, y)
    for i, j in zip(first, second, strict=True):
        if x.shape[i] != y.shape[j]:
            raise ValueError(
                f"shape-mismatch for sum: axis {i} of shape {x.shape} and axis {j} of shape "
                f"{y.shape} have sizes {x.shape[i]} and {y.shape[j]}"
            )
    # The order of the axes as given is the order of summation: it names the labels of `a`.
    x_labels = tuple(range(x.ndim))
    names = dict(zip(second, first, strict=True))
    y_labels = tuple(names.get(j, x.ndim + j) for j in range(y.ndim))
    out_labels = tuple(i for i in x_labels if i not in first) + tuple(
        label for label in y_labels if label >= x.ndim
    )
    order = [i for i in x_labels if i not in first] + first
    x = x.transpose(order)
    result = np.empty(
        tuple(x.shape[: x.ndim - len(first)])
        + tuple(y.shape[j] for j in range(y.ndim) if j not in second),
        dtype,
    )
    return contraction.contract(x, tuple(order), y, y_labels, out_labels, dtype, result)


def _axes_pair(axes: Any, x_ndim: int, y_ndim: int) -> tuple[list[int], list[int]]:
    """`axes` as two lists, as NumPy reads them."""
    if not isinstance(axes, Iterable):
        count = operator.index(axes)
        if count < 0:
            raise ValueError(f"tensordot: the number of axes must not be negative, got {count}")
        return list(range(-count, 0)), list(range(count))
    first, second = axes
    return _as_list(first), _as_list(second)


def _as_list(axes: Any) -> list[int]:
    if isinstance(axes, Iterable):
        return [operator.index(axis) for axis in axes]
    return [operator.index(axes)]


def _normalised(axes: list[int], x: np.ndarray) -> list[int]:
    for axis in axes:
        if not -x.ndim <= axis < x.ndim:
            raise np.exceptions.AxisError(
                f"tensordot: axis {axis} is out of bounds for shape {x.shape}"
            )
    result = [axis % x.ndim for axis in axes]
    if len(set(result)) != len(result):
        raise ValueError(f"duplicate axes are not allowed in tensordot: {axes} of shape {x.shape}")
    return result
