"""The products of numpy.linalg; every other name of numpy.linalg is NumPy's own.

`gemm.linalg` can stand where `numpy.linalg` stood.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemm import operands, originals
from gemm.dot import dot
from gemm.matmul import matmul as _matmul
from gemm.matmul import vecdot as _vecdot
from gemm.tensordot import tensordot as _tensordot

_LinAlgError = np.linalg.LinAlgError


def matmul(x1: Any, x2: Any, /) -> Any:
    """`numpy.linalg.matmul`: `gemm.matmul` without keywords."""
    return _matmul(x1, x2)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Any:
    """`numpy.linalg.vecdot`: `gemm.vecdot` along `axis`."""
    return _vecdot(x1, x2, axis=axis)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Any:
    """`numpy.linalg.tensordot`: `gemm.tensordot`."""
    return _tensordot(x1, x2, axes=axes)


def multi_dot(arrays: Sequence[Any], *, out: np.ndarray | None = None) -> Any:
    """`numpy.linalg.multi_dot`: the product of a chain of matrices, in the cheapest order.

    arrays: two or more; the first and the last may be 1-D (a row and a column), the others are
    2-D. `out` as for `gemm.dot`. Raises ValueError for fewer than two arrays or shapes that do
    not match, LinAlgError for other dimensions.

    Source of the order: the matrix-chain recurrence of Cormen et al., "Introduction to
    Algorithms", 15.2.
    """
    if len(arrays) < 2:
        raise ValueError(f"multi_dot: expecting at least two arrays, got {len(arrays)}")
    if not operands.all_plain(arrays):
        return originals.multi_dot(arrays, out=out)
    if len(arrays) == 2:
        return dot(arrays[0], arrays[1], out=out)
    chain = [operands.as_array(x) for x in arrays]
    first_is_row, last_is_column = chain[0].ndim == 1, chain[-1].ndim == 1
    if first_is_row:
        chain[0] = chain[0][None, :]
    if last_is_column:
        chain[-1] = chain[-1][:, None]
    for i, x in enumerate(chain):
        if x.ndim != 2:
            raise _LinAlgError(
                f"multi_dot: array {i} is {x.ndim}-dimensional, of shape {x.shape}; all but the "
                "first and the last must be two-dimensional"
            )
    for i, (x, y) in enumerate(zip(chain, chain[1:])):  # noqa: B905 (pairs of neighbours)
        if x.shape[1] != y.shape[0]:
            raise ValueError(
                f"multi_dot: shapes {x.shape} and {y.shape} of arrays {i} and {i + 1} not "
                f"aligned: {x.shape[1]} (dim 1) != {y.shape[0]} (dim 0)"
            )
    split = _chain_order([x.shape[0] for x in chain] + [chain[-1].shape[1]])

    def product(i: int, j: int, out: np.ndarray | None = None) -> np.ndarray:
        if i == j:
            return chain[i]
        k = split[i][j]
        return dot(product(i, k), product(k + 1, j), out)

    if out is not None and (first_is_row or last_is_column):
        shape = chain[0].shape[:1] * (not first_is_row) + chain[-1].shape[1:] * (not last_is_column)
        if out.shape != shape:
            raise ValueError(
                f"multi_dot: out has shape {out.shape}, but the result has shape {shape}"
            )
        product(0, len(chain) - 1, out.reshape(chain[0].shape[0], chain[-1].shape[1]))
        return out
    result = product(0, len(chain) - 1, out)
    if first_is_row and last_is_column:
        return result[0, 0]
    if first_is_row or last_is_column:
        return result.reshape(-1)
    return result


def _chain_order(sizes: Sequence[int]) -> list[list[int]]:
    """split[i][j]: after which matrix to cut the chain i..j; matrix i is sizes[i] x sizes[i+1]."""
    n = len(sizes) - 1
    cost = [[0] * n for _ in range(n)]
    split = [[0] * n for _ in range(n)]
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            cost[i][j], split[i][j] = min(
                (cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            )
    return split


def matrix_power(a: Any, n: int) -> Any:
    """`numpy.linalg.matrix_power`: square matrices (..., M, M) to the integer power `n`.

    n == 0 gives identities and n < 0 powers of the inverse (NumPy's `inv`). Raises LinAlgError for
    matrices that are not square or not invertible, TypeError for an exponent that is no integer.
    """
    if not operands.is_plain(a):
        return originals.matrix_power(a, n)
    x = operands.as_array(a)
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise _LinAlgError(f"matrix_power: square matrices are needed, got shape {x.shape}")
    try:
        power = operator.index(n)
    except TypeError as error:
        raise TypeError(f"matrix_power: exponent must be an integer, got {n!r}") from error
    if power == 0 or not operands.is_engine_dtype(x.dtype.newbyteorder("=")):
        return originals.matrix_power(a, power)
    if power < 0:
        x, power = np.linalg.inv(x), -power
    result = None
    while True:
        if power & 1:
            result = x if result is None else _matmul(result, x)
        power >>= 1
        if not power:
            return result
        x = _matmul(x, x)


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(np.linalg, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *np.linalg.__all__})
