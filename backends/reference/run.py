"""The reference target: the very kernel source, called as plain Python.

Operands become checked `Pointer`s, so an access outside an array raises IndexError. Slow by
design; small sizes only.
"""

from __future__ import annotations

import ctypes

import numpy as np

from gemm.microkernels.dtypes import DType
from gemm.microkernels.fused import rounding_twice
from gemm.microkernels.vocabulary import Pointer

try:
    from numpy.lib.array_utils import byte_bounds
except ImportError:  # NumPy 1
    from numpy import byte_bounds  # type: ignore[attr-defined, no-redef]


def pointer(array: np.ndarray, dtype: DType, at: int = 0) -> Pointer:
    """A pointer `at` bytes after an array's first element; the memory is what the array spans."""
    low, high = byte_bounds(array)
    address = array.__array_interface__["data"][0]
    if array.size == 0:
        return Pointer(np.empty(0, np.uint8), at, dtype)
    block = (ctypes.c_uint8 * (high - low)).from_address(low)
    memory = np.frombuffer(block, np.uint8)  # type: ignore[call-overload]
    return Pointer(memory, address - low + at, dtype)


def run(function, arguments, workers: int, fused: bool = True) -> None:
    """Calls a kernel once for each worker; the last argument is the worker's index."""
    with rounding_twice(not fused):
        for worker in range(workers):
            function(*arguments, worker)
