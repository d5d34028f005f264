"""The right answer, independent of every contender: the check each passes before it is timed.

Integers are exact modulo 2^width: the operands are cut into 16-bit limbs whose products are exact
in float64. Floats narrower than float64 are compared element by element with the float64 product.
For float64 and complex128 a sample of rows, and the product with a random vector of signs (which
every element enters), are computed in long double.
"""

from __future__ import annotations

import numpy as np

from .cases import Case
from .operands import Array, Operands, numpy_dtype

_ROWS = 6


class WrongResult(ArithmeticError):
    """A contender's result is wrong; the message holds the error and the bound."""


def exact_integer_product(a: Array, b: Array, dtype: np.dtype) -> Array:
    """`a @ b` modulo 2^width of the integer `dtype`, exact for K up to 2^21."""

    def limbs(x: Array) -> list[Array]:
        if x.dtype.itemsize <= 2:
            return [x.astype(np.float64)]
        wide = x.astype(np.int64).astype(np.uint64)  # sign-extended, modulo 2^64
        return [
            ((wide >> np.uint64(s)) & np.uint64(0xFFFF)).astype(np.float64) for s in (0, 16, 32, 48)
        ]

    total = np.zeros(np.matmul(a[..., :1], b[..., :1, :]).shape, np.uint64)
    for i, left in enumerate(limbs(a)):
        for j, right in enumerate(limbs(b)):
            if i + j < 4:
                part = np.matmul(left, right).astype(np.int64).astype(np.uint64)
                total += part << np.uint64(16 * (i + j))
    return total.astype(dtype)


def convolution(a: Array, b: Array, stride: int, padding: int, groups: int) -> Array:
    """float64 convolution of NCHW `a` with OIHW `b`: windows gathered, then one product a group."""
    padded = np.pad(a.astype(np.float64), ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2))
    windows = np.lib.stride_tricks.sliding_window_view(padded, b.shape[2:], (2, 3))
    windows = windows[:, :, ::stride, ::stride]
    n, c, oh, ow, kh, kw = windows.shape
    o, per = b.shape[:2]
    columns = windows.reshape(n, groups, per, oh, ow, kh, kw).transpose(0, 1, 2, 5, 6, 3, 4)
    columns = columns.reshape(n, groups, per * kh * kw, oh * ow)
    weights = b.astype(np.float64).reshape(groups, o // groups, per * kh * kw)
    return np.matmul(weights, columns).reshape(n, o, oh, ow)


def epilogue(name: str, x: Array, bias: Array) -> Array:
    """The stock epilogues of the table, in float64."""
    from scipy.special import erf, expit

    functions = {
        "bias": lambda v: v,
        "relu": lambda v: np.maximum(v, 0),
        "gelu": lambda v: 0.5 * v * (1 + erf(v / np.sqrt(2))),
        "silu": lambda v: v * expit(v),
    }
    return functions[name](x + bias)


def bias(case: Case) -> Array:
    """The bias row (N,) of an epilogue case, in the output dtype."""
    values = np.linspace(-1, 1, case.shape[1])
    return values.astype(numpy_dtype(case.c))


def _unit_roundoff(name: str) -> float:
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        return {"bfloat16": 2.0**-8, "float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}[name]
    return float(np.finfo(name).eps) / 2


def _wide(x: Array) -> Array:
    if x.dtype.kind == "c":
        return x.astype(np.complex128)
    return x.astype(np.float64)


def _compare(got: Array, want: Array, bound: Array, what: str) -> None:
    error = np.abs(got - want)
    bad = ~(error <= bound)  # a NaN is bad
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise WrongResult(
            f"{what} at {where}: got {got[where]!s}, expected {want[where]!s}, "
            f"error {error[where]:.3g} above the bound {bound[where]:.3g}; {int(bad.sum())} wrong"
        )


def check(case: Case, operands: Operands, result: Array) -> None:
    """Raise `WrongResult` unless `result` (NumPy array, convolutions NCHW) is the case's answer.

    The float bound is (K + 8) u_acc |A||B| for the chain, in any order, and u_out |result| for the
    last rounding; u_acc is that of float32 for narrower operands.
    """
    a, b = operands.a, operands.b
    kind = numpy_dtype(case.c).kind
    k = case.shape[2]
    if case.operation == "conv2d":
        k = (case.shape[1] // case.groups) * case.shape[5] * case.shape[6]
        geometry = case.stride, case.padding, case.groups
        want = convolution(a, b, *geometry)
        size = convolution(np.abs(_wide(a)), np.abs(_wide(b)), *geometry)
    elif kind == "b":
        want = np.matmul(a.astype(np.float64), b.astype(np.float64)) > 0
        return _exact(result, want)
    elif kind in "iu":
        return _exact(result, exact_integer_product(a, b, numpy_dtype(case.c)))
    elif case.a in ("float64", "complex128"):
        return _sampled(case, operands, result)
    else:
        want = np.matmul(_wide(a), _wide(b))
        size = np.matmul(np.abs(_wide(a)), np.abs(_wide(b)))
    if result.shape != want.shape:
        raise WrongResult(f"shape {result.shape} instead of {want.shape}")
    accumulate = _unit_roundoff("float64" if case.a == "float64" else "float32")
    bound = (k + 8) * accumulate * size
    out = case.c.replace("complex64", "float32")
    if case.epilogue:  # slopes are below 1.2; unfused peers round before the function, too
        before = np.abs(want + _wide(bias(case)))
        want = epilogue(case.epilogue, want, _wide(bias(case)))
        bound = (
            1.2 * bound + 2.4 * _unit_roundoff(out) * before + 8 * accumulate * (1 + np.abs(want))
        )
    bound = bound + 2 * _unit_roundoff(out) * np.abs(want) + 1e-30
    _compare(_wide(result), want, bound, "result")


def _exact(result: Array, want: Array) -> None:
    if result.shape != want.shape:
        raise WrongResult(f"shape {result.shape} instead of {want.shape}")
    if not np.array_equal(result, want):
        where = tuple(int(i) for i in np.argwhere(result != want)[0])
        raise WrongResult(f"result at {where}: got {result[where]!s}, expected {want[where]!s}")


def _sampled(case: Case, operands: Operands, result: Array) -> None:
    a, b, k = operands.a, operands.b, case.shape[2]
    wide = np.clongdouble if case.a.startswith("complex") else np.longdouble
    shape = (*a.shape[:-1], b.shape[-1])
    if result.shape != shape:
        raise WrongResult(f"shape {result.shape} instead of {shape}")
    unit = float(np.finfo(np.float64).eps) / 2
    rows = np.unique(np.linspace(0, a.shape[-2] - 1, _ROWS).astype(int))
    if a.ndim > 2:
        items = np.unique(np.linspace(0, len(a) - 1, 16).astype(int))
        pick_a, pick_b, pick_c = a[items][:, rows], b[items], result[items][:, rows]
    else:
        pick_a, pick_b, pick_c = a[rows], b, result[rows]
    want = np.matmul(pick_a.astype(wide), pick_b.astype(wide))
    bound = (k + 8) * unit * np.matmul(np.abs(pick_a), np.abs(pick_b))
    _compare(pick_c.astype(wide), want, bound, "sampled row")
    signs = np.random.default_rng(1).choice([-1.0, 1.0], (b.shape[-1], 1)).astype(wide)
    want = np.matmul(a.astype(wide), np.matmul(b.astype(wide), signs))
    size = np.matmul(np.abs(a), np.abs(b).sum(-1, keepdims=True))
    _compare(np.matmul(result.astype(wide), signs), want, (k + 8) * unit * size, "signed row sum")
