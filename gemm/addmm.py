"""addmm and baddbmm: a product added to what is there, without an array in between.

Source of the semantics: PyTorch's torch.addmm and torch.baddbmm (and BLAS' gemm under them).
"""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from gemm import engine, operands
from gemm.backends import devices


def addmm(
    input: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: np.ndarray | None = None
) -> np.ndarray:
    """beta * input + alpha * (a @ b), for a (M, K), b (K, N) and `input` broadcast to (M, N).

    `out` may be `input` itself, of any strides: then the product is accumulated into it in one
    pass, with no M x N temporary. It may overlap `a` or `b` too. With beta == 0 `input` is not
    read, whatever it holds. The dtype is the common dtype of the three operands; `out` must have
    it. For integers alpha and beta must be integers. Device arrays are added where they are, in one
    launch; `out` then overlaps neither `a` nor `b`.

    Raises ValueError for shapes that do not match, TypeError for dtypes, bool among them.
    """
    return _add("addmm", 2, input, a, b, beta, alpha, out)


def baddbmm(
    input: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1, out: np.ndarray | None = None
) -> np.ndarray:
    """`addmm` for a batch: a (B, M, K), b (B, K, N), `input` broadcast to (B, M, N)."""
    return _add("baddbmm", 3, input, a, b, beta, alpha, out)


def on_device(
    backend: Any, name: str, ndim: int, given: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any
) -> Any:
    """The same of device arrays: alpha, beta and `input` are operands of the write-back."""
    from gemm.epilogues import on_device, stock

    shapes = [tuple(backend.view(x).shape) for x in (a, b)]
    if any(len(shape) != ndim for shape in shapes) or shapes[0][:-2] != shapes[1][:-2]:
        raise ValueError(
            f"{name}: a and b must be {ndim}-D with equal batches, got shapes {shapes[0]} and "
            f"{shapes[1]}"
        )
    factors = {
        "alpha": None if alpha == 1 else alpha,
        "beta": None if beta in (0, 1) else beta,
        "c": None if beta == 0 else given,
    }
    return on_device.matmul(backend, a, b, out, stock.alpha_beta(**factors))


def _add(name: str, ndim: int, given: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any) -> Any:
    backend = devices.backend_of(a)
    if backend is not None:
        return on_device(backend, name, ndim, given, a, b, beta, alpha, out)
    for what, x in (("input", given), ("a", a), ("b", b), ("out", out)):
        if x is not None and not operands.is_plain(x):
            raise TypeError(f"{name}: {what} must be a plain array, not {type(x).__name__}")
    c, x, y = (operands.as_array(array) for array in (given, a, b))
    dtype = operands.common_dtype(c.dtype, x.dtype, y.dtype)
    if dtype == np.bool_ or not operands.is_engine_dtype(dtype):
        raise TypeError(
            f"{name}: no kernel for dtype {dtype} (of {c.dtype}, {x.dtype} and {y.dtype})"
        )
    alpha, beta = (_scalar(name, n, v, dtype) for n, v in (("alpha", alpha), ("beta", beta)))
    if x.ndim != ndim or y.ndim != ndim or x.shape[:-2] != y.shape[:-2]:
        raise ValueError(
            f"{name}: a and b must be {ndim}-D with equal batches, got shapes "
            f"{operands.shapes_text(x, y)}"
        )
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(
            f"{name}: a {x.shape} and b {y.shape} cannot be multiplied: "
            f"{x.shape[-1]} columns of a, {y.shape[-2]} rows of b"
        )
    shape = x.shape[:-1] + y.shape[-1:]
    try:
        fits = np.broadcast_shapes(c.shape, shape) == shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"{name}: input {c.shape} cannot be broadcast to the result {shape}")
    result = np.empty(shape, dtype) if out is None else operands.as_array(out)
    if out is not None:
        _check_output(name, result, shape, dtype)

    x, y = operands.convert(x, dtype), operands.convert(y, dtype)
    target = result
    if not operands.can_write(result, dtype, x, y):
        target = np.empty(shape, dtype)
    if beta != 0 and not _is_same(target, c):
        # np.copyto keeps what `input` holds even where it overlaps `out`.
        np.copyto(target, c)
    engine.product(x, y, target, alpha=alpha, beta=beta)
    if target is not result:
        np.copyto(result, target)
    return result if out is None else out


def _is_same(x: np.ndarray, y: np.ndarray) -> bool:
    """True when the two are one array: the same elements at the same places."""
    return (
        x.dtype == y.dtype
        and x.shape == y.shape
        and x.strides == y.strides
        and x.__array_interface__["data"] == y.__array_interface__["data"]
    )


def _scalar(name: str, what: str, value: Any, dtype: np.dtype) -> Any:
    """alpha or beta as a Python number that `dtype` can be scaled by."""
    if dtype.kind in "iu":
        try:
            return operator.index(value)
        except TypeError:
            raise TypeError(
                f"{name}: {what} must be an integer for dtype {dtype}, got {value!r}"
            ) from None
    number = complex(value)
    if dtype.kind == "c":
        return number
    if number.imag:
        raise TypeError(f"{name}: {what} must be real for dtype {dtype}, got {value!r}")
    return number.real


def _check_output(name: str, out: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> None:
    if out.shape != shape or out.dtype != dtype:
        raise (ValueError if out.dtype == dtype else TypeError)(
            f"{name}: out has shape {out.shape} and dtype {out.dtype}, "
            f"the result has shape {shape} and dtype {dtype}"
        )
    if not out.flags.writeable:
        raise ValueError(f"{name}: out is read-only: it has shape {out.shape}")
