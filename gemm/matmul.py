"""matmul and its vector relatives, with the semantics of NumPy's generalised ufuncs.

A call without keywords tries the engine's door first, which knows plain aligned arrays only;
everything else takes the long way through `gemm.gufunc`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gemm import engine, gufunc, originals
from gemm.backends import devices

_MATMUL = gufunc.Signature("matmul", (("n", "k"), ("k", "m")), ("n", "m"), frozenset("nm"))
_MATVEC = gufunc.Signature("matvec", (("m", "n"), ("n",)), ("m",))
_VECMAT = gufunc.Signature("vecmat", (("n",), ("n", "m")), ("m",))
_VECDOT = gufunc.Signature("vecdot", (("n",), ("n",)), ())
# How plain products of an array's type are called, once one was on a device: PyTorch's only.
_device_products: dict[type, Any] = {}


def matmul(x1: Any, x2: Any, /, out: Any = None, **keywords: Any) -> Any:
    """Matrix product of `x1` (..., M, K) and `x2` (..., K, N): `numpy.matmul`.

    A 1-D operand is a row (x1) or a column (x2), and its axis is absent from the result; batch
    axes broadcast. `out` is an array of shape (..., M, N) or a 1-tuple of one.

    Keywords of NumPy: casting='same_kind', order='K', dtype=None, subok=True, signature, axes.
    Keywords of this package: accumulate (dtype of the accumulator), threads, kernel (name of a
    micro-kernel), epilogue, split_k (parts of K, summed in order afterwards: for small outputs over
    a huge K; the rounding is then that of the parts), subnormals ('flush': subnormal operands and
    results of each step are zero, docs/numerics.md; default 'keep').

    Device arrays (any object with `__cuda_array_interface__` or DLPack on a device) are multiplied
    where they are, on the caller's stream, and the result is of the caller's kind; device='cuda'
    sends host arrays there and back. They take dtype, split_k, precision ('tf32', 'tf32x3'),
    scale_a, scale_b and fast (gemm/device).

    dtype and result are NumPy's, except that ml_dtypes' bfloat16 and float8 stay what they are.
    Raises ValueError for shapes that do not match or a read-only `out`, TypeError for casts that
    `casting` forbids, NotImplementedError for a keyword that is not supported yet.
    """
    if not keywords:
        result = engine.door(x1, x2, out)
        if result is not None:
            return result
        quick = _device_products.get(type(x1))
        if quick is not None and x1.is_cuda:
            return quick(x1, x2, out)
        if out is None:
            result = engine.inner_door(x1, x2)
            if result is not None:
                return result
        result = engine.plain(x1, x2, out)
        if result is not None:
            return result
    elif "epilogue" in keywords:
        result = engine.again(x1, x2, out, keywords)
        if result is not None:
            return result
    place = keywords.pop("device", None)
    if place is not None or type(x1) is not np.ndarray or type(x2) is not np.ndarray:
        backend = devices.backend_of(x1) or devices.backend_of(x2)
        if backend is not None or place not in (None, "cpu"):
            return _on_device(backend, place, x1, x2, out, keywords)
    if type(x2).__module__ == "gemm.packed" or type(x1).__module__ == "gemm.packed":
        from gemm.packed import product

        return product(x1, x2, out, keywords)
    if keywords.get("epilogue") is not None or _is_packed(x1) or _is_packed(x2):
        from gemm.epilogues.run import call

        return call(x1, x2, out, keywords)
    return gufunc.call(_MATMUL, originals.matmul, _product, x1, x2, out, keywords)


def _is_packed(x: Any) -> bool:
    return type(x).__module__ == "gemm.epilogues.contract"


_DEVICE_KEYWORDS = {"dtype", "precision", "split_k", "scale_a", "scale_b", "fast"}
_FUSED_KEYWORDS = {"precision", "fast"}


def _on_device(backend: Any, place: Any, x1: Any, x2: Any, out: Any, keywords: dict) -> Any:
    """matmul of device arrays, or of host arrays on the device named `place`."""
    from gemm import device

    program = keywords.pop("epilogue", None)
    unknown = keywords.keys() - (_DEVICE_KEYWORDS if program is None else _FUSED_KEYWORDS)
    if unknown:
        such = "" if program is None else " with epilogue="
        raise TypeError(f"matmul of device arrays{such} does not take {', '.join(sorted(unknown))}")
    if program is not None and not (backend is not None and place == "cpu"):
        from gemm.epilogues import on_device

        if backend is None:
            return on_device.matmul_of_host(devices.named(place), x1, x2, out, program, **keywords)
        return on_device.matmul(backend, x1, x2, out, program, **keywords)
    if keywords.get("dtype") is not None:
        keywords["dtype"] = np.dtype(keywords["dtype"]).name
    if backend is None:
        target = devices.named(place)
        return device.matmul_of_host(target, np.asarray(x1), np.asarray(x2), out, **keywords)
    if place == "cpu":
        raise TypeError("device='cpu' with a device array: copy it to the host first")
    if hasattr(x1, "is_cuda"):
        _device_products[type(x1)] = functools.partial(device.matmul, backend)
    return device.matmul(backend, x1, x2, out, **keywords)


def matvec(x1: Any, x2: Any, /, out: Any = None, **keywords: Any) -> Any:
    """Matrix-vector product of `x1` (..., M, K) and `x2` (..., K): `numpy.matvec`.

    Keywords and errors as for `matmul`.
    """
    if not keywords and type(x2) is np.ndarray and x2.ndim == 1:
        result = engine.door(x1, x2, out)
        if result is not None:
            return result
    return gufunc.call(_MATVEC, originals.matvec, _product, x1, x2, out, keywords)


def vecmat(x1: Any, x2: Any, /, out: Any = None, **keywords: Any) -> Any:
    """Vector-matrix product of the conjugate of `x1` (..., K) and `x2` (..., K, N):
    `numpy.vecmat`. Keywords and errors as for `matmul`.
    """
    if not keywords and type(x1) is np.ndarray and x1.ndim == 1 and x1.dtype.kind != "c":
        result = engine.door(x1, x2, out)
        if result is not None:
            return result
    return gufunc.call(_VECMAT, originals.vecmat, _conjugate_product, x1, x2, out, keywords)


def vecdot(x1: Any, x2: Any, /, out: Any = None, **keywords: Any) -> Any:
    """Sum over the last axis of the conjugate of `x1` times `x2`: `numpy.vecdot`.

    `x1` and `x2` (..., K), batch axes broadcast. Keywords and errors as for `matmul`, and NumPy's
    axis=-1 and keepdims=False.
    """
    if out is None and not keywords:
        result = engine.inner_door(x1, x2, True)
        if result is not None:
            return result
    return gufunc.call(_VECDOT, originals.vecdot, _conjugate_inner, x1, x2, out, keywords)


def _product(problem: gufunc.Problem, out: np.ndarray) -> None:
    a, b = problem.x1, problem.x2
    first, second, _ = problem.labels
    if len(first) == len(second) == 1 and _is_inner(problem):
        engine.inner(a, b, out, **problem.options)
        return
    if len(first) == 1:
        a, out = a[..., None, :], out[..., None, :] if len(second) == 2 else out[..., None]
    if len(second) == 1:
        b, out = b[..., :, None], out[..., None]
    engine.product(a, b, out, **problem.options)


def _conjugate_product(problem: gufunc.Problem, out: np.ndarray) -> None:
    vector = _conjugate(problem.x1)[..., None, :]
    engine.product(vector, problem.x2, out[..., None, :], **problem.options)


def _conjugate_inner(problem: gufunc.Problem, out: np.ndarray) -> None:
    x, y = problem.x1, problem.x2
    if _is_inner(problem):
        engine.inner(x, y, out, conjugate=True, **problem.options)
        return
    x = _conjugate(x)
    engine.product(x[..., None, :], y[..., :, None], out[..., None, None], **problem.options)


def _is_inner(problem: gufunc.Problem) -> bool:
    """True when engine.inner takes the options."""
    return problem.options.keys() <= {"accumulate", "threads", "kernel", "subnormals"}


def _conjugate(x: np.ndarray) -> np.ndarray:
    return x.conj() if x.dtype.kind == "c" else x
