"""Products of 8-bit integers with zero points, and the way back to 8 bits."""

from __future__ import annotations

from typing import Any

import numpy as np

import gemm
from gemm import engine
from gemm.epilogues import as_type, nearest


@gemm.epilogue
def _to_uint8(acc, scale, zero, bias=None):
    x = acc if bias is None else acc + bias
    return as_type(min(max(nearest(x * scale) + zero, 0.0), 255.0), "uint8")


@gemm.epilogue
def _to_int8(acc, scale, zero, bias=None):
    x = acc if bias is None else acc + bias
    return as_type(min(max(nearest(x * scale) + zero, -128.0), 127.0), "int8")


# `requantise` in the write-back of a convolution, by the dtype of its result.
REQUANTISED = {"uint8": _to_uint8, "int8": _to_int8}


def rows(values: np.ndarray, a: np.ndarray) -> np.ndarray:
    """Zero points or scales of the rows of ``a``: a 1-D tensor of M entries becomes a column."""
    return values[:, None] if values.ndim == 1 and values.size > 1 and a.ndim > 1 else values


def product(a: np.ndarray, b: np.ndarray, a_zero: Any = None, b_zero: Any = None) -> np.ndarray:
    """(a - a_zero) @ (b - b_zero) in int32, modulo 2**32.

    a (..., M, K) or (K,), b (..., K, N) or (K,), int8 or uint8, batches broadcast. a_zero: one
    number, (M,) or (..., M, 1); b_zero: one number, (N,) or (..., 1, N). The zero points are taken
    out of the sum: the product itself stays one of 8-bit integers.
    """
    x = a[None] if a.ndim == 1 else a
    y = b[:, None] if b.ndim == 1 else b
    if x.shape[-1] != y.shape[-2]:
        raise ValueError(f"product: a {a.shape} and b {b.shape} do not match")
    batch = np.broadcast_shapes(x.shape[:-2], y.shape[:-2])
    left = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    right = np.broadcast_to(y, (*batch, *y.shape[-2:]))
    sums = np.empty((*batch, x.shape[-2], y.shape[-1]), np.int32)
    engine.product(left, right, sums)
    of_a = np.int32(0) if a_zero is None else rows(np.asarray(a_zero).astype(np.int32), x)
    of_b = np.int32(0) if b_zero is None else np.asarray(b_zero).astype(np.int32)
    if np.any(of_a):
        sums -= of_a * y.sum(-2, dtype=np.int32, keepdims=True)
    if np.any(of_b):
        sums -= (x.sum(-1, dtype=np.int32, keepdims=True) - of_a * np.int32(x.shape[-1])) * of_b
    if a.ndim == 1:
        sums = sums[..., 0, :]
    return sums[..., 0] if b.ndim == 1 else sums


def requantise(sums: np.ndarray, scale: np.ndarray, zero_point: np.ndarray) -> np.ndarray:
    """sums * scale rounded to nearest even, plus ``zero_point``, saturated to its dtype."""
    dtype = zero_point.dtype
    limits = np.iinfo(dtype)
    values = np.rint(sums.astype(np.float32) * scale) + zero_point.astype(np.float32)
    return np.clip(values, limits.min, limits.max).astype(dtype)
