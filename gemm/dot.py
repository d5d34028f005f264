"""dot, vdot and inner: NumPy's products of one axis of each operand, without broadcasting."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gemm import contraction, engine, operands, originals


def dot(a: Any, b: Any, out: Any = None) -> Any:
    """`numpy.dot`: sum over the last axis of `a` and the second last (or only) axis of `b`.

    a (..., K), b (K,) or (..., K, N); the result has the other axes of `a`, then those of `b`. A
    scalar operand multiplies. `out` must have exactly the shape and dtype of the result and be
    C-contiguous; it may overlap the operands. Raises ValueError for shapes that do not match and
    for an `out` that does not fit.
    """
    if out is None:
        result = engine.door(a, b, None)
        if result is None:
            result = engine.inner_door(a, b)
        if result is not None:
            return result
    return _product("dot", originals.dot, a, b, out, second_axis=-2)


def inner(a: Any, b: Any, /) -> Any:
    """`numpy.inner`: sum over the last axis of both operands.

    a (..., K), b (..., K); the result has the other axes of `a`, then those of `b`. A scalar
    operand multiplies. Raises ValueError for shapes that do not match.
    """
    result = engine.inner_door(a, b)
    if result is not None:
        return result
    return _product("inner", originals.inner, a, b, None, second_axis=-1)


def vdot(a: Any, b: Any, /) -> Any:
    """`numpy.vdot`: both operands flattened, the first conjugated, summed to a scalar.

    Raises ValueError when the sizes differ.
    """
    result = engine.inner_door(a, b, True)
    if result is not None:
        return result
    if not operands.all_plain((a, b)):
        return originals.vdot(a, b)
    x, y = operands.as_array(a), operands.as_array(b)
    dtype = operands.shared_dtype(x.dtype, y.dtype)
    if dtype is None:
        return originals.vdot(a, b)
    if x.size != y.size:
        raise ValueError(
            f"vdot: operands have {x.size} and {y.size} elements, of shapes "
            f"{operands.shapes_text(x, y)}"
        )
    x = operands.convert(x.reshape(-1), dtype)
    y = operands.convert(y.reshape(-1), dtype)
    result = np.empty((), dtype)
    engine.inner(x, y, result, conjugate=dtype.kind == "c")
    return result[()]


def _product(
    name: str, original: Callable[..., Any], a: Any, b: Any, out: Any, second_axis: int
) -> Any:
    arguments = (a, b) if out is None else (a, b, out)
    if not operands.all_plain(arguments):
        return original(*arguments)
    x, y = operands.as_array(a), operands.as_array(b)
    dtype = operands.shared_dtype(x.dtype, y.dtype)
    if dtype is None or not x.ndim or not y.ndim:
        return original(*arguments)
    axis = max(y.ndim + second_axis, 0)
    if x.shape[-1] != y.shape[axis]:
        raise ValueError(
            f"{name}: shapes {x.shape} and {y.shape} not aligned: "
            f"{x.shape[-1]} (dim {x.ndim - 1}) != {y.shape[axis]} (dim {axis})"
        )
    first = tuple(range(x.ndim))
    second = tuple(range(x.ndim, x.ndim + y.ndim))
    rest = second[:axis] + second[axis + 1 :]
    labels = (first, second[:axis] + first[-1:] + second[axis + 1 :], first[:-1] + rest)
    shape = x.shape[:-1] + y.shape[:axis] + y.shape[axis + 1 :]
    if out is not None:
        _check_output(name, out, shape, dtype)
        contraction.contract(x, labels[0], y, labels[1], labels[2], dtype, out)
        return out if shape else out[()]  # as NumPy does
    result = np.empty(shape, dtype)
    contraction.contract(x, labels[0], y, labels[1], labels[2], dtype, result)
    return result if shape else result[()]


def _check_output(name: str, out: Any, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if not isinstance(out, np.ndarray):
        raise TypeError(f"'out' must be an array, not {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype or not out.flags.c_contiguous:
        raise ValueError(
            f"{name}: output array is not acceptable (must have the right datatype, number of "
            f"dimensions, and be a C-Array): it has dtype {out.dtype}, shape {out.shape} and "
            f"strides {out.strides}, the result has dtype {dtype} and shape {shape}"
        )
    if not out.flags.writeable:
        raise ValueError(f"{name}: output array is read-only: it has shape {out.shape}")
