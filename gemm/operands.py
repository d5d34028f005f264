"""What an operand is: which objects and dtypes the engine takes, and what shares memory with what.

Everything else is NumPy's: an operand that is more than an array (a subclass, or an object with
`__array_ufunc__`, `__array_function__` or `__array_wrap__`) and a dtype without an engine kernel
(longdouble, object, datetime, strings, records) make the public functions call NumPy's original.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from gemm.microkernels.dtypes import DTYPES

ndarray = np.ndarray
_NATIVE = frozenset(np.dtype(char) for char in "?bhilqBHILQefdFD")
_HALF = np.dtype(np.float16)
_BYTES = {np.dtype(np.int8), np.dtype(np.uint8)}
_PROTOCOLS = ("__array_ufunc__", "__array_function__", "__array_wrap__")

# The bound on the exact overlap test: past this many steps the answer is "it may overlap".
_OVERLAP_WORK = 10_000


def is_plain(x: Any) -> bool:
    """True when `x` is an array, a scalar or something NumPy would turn into a plain array."""
    kind = type(x)
    if kind is ndarray or kind is np.memmap or issubclass(kind, np.generic):
        return True
    return not any(hasattr(kind, name) for name in _PROTOCOLS)


def all_plain(operands: Iterable[Any]) -> bool:
    return all(map(is_plain, operands))


def as_array(x: Any) -> np.ndarray:
    """`x` as a base-class ndarray, without a copy where it is one already."""
    return x if type(x) is ndarray else np.asarray(x)


@lru_cache(maxsize=256)
def is_extended(dtype: np.dtype) -> bool:
    """True for the small floats of the ml_dtypes package that the engine has kernels for."""
    return dtype.type.__module__ == "ml_dtypes" and dtype.name in DTYPES


@lru_cache(maxsize=256)
def is_engine_dtype(dtype: np.dtype) -> bool:
    """True when the engine multiplies native arrays of this dtype."""
    return dtype in _NATIVE or is_extended(dtype)


def accumulates_wider(dtype: np.dtype) -> bool:
    """True for the floats that the engine sums in float32: float16, bfloat16 and float8."""
    return dtype == _HALF or is_extended(dtype)


@lru_cache(maxsize=1024)
def widens(x1: np.dtype, x2: np.dtype, out: np.dtype) -> bool:
    """True when the engine takes (x1, x2) as they are and writes the wider `out`, with no overflow
    before: integers modulo the width of `out`, floats accumulated in `out`.

    Any other mix is computed as NumPy does it, on converted operands.
    """
    if not all(map(is_engine_dtype, (x1, x2, out))) or x1.itemsize >= out.itemsize:
        return False
    if x1.kind in "iu":
        return out.kind in "iu" and (x1 == x2 or {x1, x2} == _BYTES)
    return x1 == x2 and x1.kind in "fV" and out.kind == "f"


def convert(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """`x` in `dtype`, a native one; `x` itself where it is so already."""
    return x if x.dtype == dtype else x.astype(dtype)


def common_dtype(*dtypes: np.dtype) -> np.dtype:
    """The dtype of a product of arrays of these dtypes, in native byte order.

    Raises TypeError where NumPy has no common dtype, as for bfloat16 with float16.
    """
    first = dtypes[0]
    if first.isnative and all(x is first for x in dtypes):
        return first
    return _promoted(*dtypes)


def shared_dtype(*dtypes: np.dtype) -> np.dtype | None:
    """`common_dtype` where the engine computes it; None where the call is NumPy's, the refusal of
    dtypes that have none in common included."""
    try:
        dtype = common_dtype(*dtypes)
    except TypeError:
        return None
    return dtype if is_engine_dtype(dtype) else None


@lru_cache(maxsize=1024)
def _promoted(*dtypes: np.dtype) -> np.dtype:
    return np.result_type(*dtypes).newbyteorder("=")


def overlaps(out: np.ndarray, *operands: np.ndarray) -> bool:
    """True unless it is certain that writing `out` leaves every operand unchanged."""
    for x in operands:
        if not np.may_share_memory(out, x):
            continue
        try:
            if np.shares_memory(out, x, max_work=_OVERLAP_WORK):  # type: ignore[arg-type]
                return True
        except np.exceptions.TooHardError:
            return True
    return False


def writes_twice(out: np.ndarray) -> bool:
    """True when two elements of `out` are one place in memory because of a zero stride."""
    return 0 in out.strides and any(
        stride == 0 and size > 1 for stride, size in zip(out.strides, out.shape, strict=True)
    )


def contiguous_strides(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """The strides of a new array in C order."""
    return tuple(itemsize * prod(max(n, 1) for n in shape[i + 1 :]) for i in range(len(shape)))


def can_write(out: np.ndarray, dtype: np.dtype, *operands: np.ndarray) -> bool:
    """True when the engine may write its results of `dtype` straight into `out`."""
    return out.dtype == dtype and not writes_twice(out) and not overlaps(out, *operands)


def check_order(order: Any) -> str:
    """`order` as NumPy reads it: 'C', 'F', 'A' or 'K', None for 'K', in either case."""
    result = "K" if order is None else order
    if not isinstance(result, str) or result.upper() not in ("C", "F", "A", "K"):
        raise ValueError(f"order must be one of 'C', 'F', 'A', or 'K' (got {order!r})")
    return result.upper()


def memory_order(order: str, *inputs: np.ndarray) -> Any:
    """A checked `order` as 'C' or 'F'; 'K' gives 'C', as matmul does it."""
    if order == "A":
        fortran = all(x.flags.f_contiguous for x in inputs)
        return "F" if fortran and not all(x.flags.c_contiguous for x in inputs) else "C"
    return "F" if order == "F" else "C"


def shapes_text(*operands: np.ndarray) -> str:
    """Shapes for an error message: '(2, 3) and (4, 5)'."""
    return " and ".join(str(x.shape) for x in operands)
