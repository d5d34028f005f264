"""A namespace of the Python array API standard: NumPy's, with this package's products.

`matmul`, `tensordot` and `vecdot`, here and in `linalg`, are the engine's; everything else is
NumPy's main namespace, which follows the standard from NumPy 2.1 on. Arrays are NumPy arrays, so
`x.__array_namespace__()` still answers NumPy and `x @ y` is NumPy's.

Source: https://data-apis.org/array-api/latest/
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm import linalg
from gemm.linalg import matmul, tensordot, vecdot

__all__ = ["linalg", "matmul", "tensordot", "vecdot"]
__array_api_version__: str = getattr(np, "__array_api_version__", "2022.12")


def __array_namespace_info__() -> Any:
    """What NumPy tells of its dtypes and devices."""
    return np.__array_namespace_info__()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(np, name)


def __dir__() -> list[str]:
    return sorted({*np.__all__, "__array_namespace_info__", "__array_api_version__", "linalg"})
