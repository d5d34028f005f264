"""Fitting operands to a product: shapes to kinds, dtypes to what a kernel loads, steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm import execution, operands, targets
from gemm.microkernels.dtypes import DType, int64

INT32 = np.iinfo(np.int32)
_KINDS = {(False, False): "scalar", (False, True): "row", (True, False): "column",
          (True, True): "tile"}  # fmt: skip


def known(dtype: np.dtype) -> DType | None:
    """The kernels' name of a dtype that they load, None for another."""
    try:
        return targets.element_type(dtype)
    except TypeError:
        return None


class Problem:
    """Shapes and types that every operand and output is fitted to: of the product, or of an
    operand that a program changes while it is packed."""

    def __init__(self, name: str, shape: tuple[int, ...], acc: DType, pairs: bool):
        self.name, self.acc, self.pairs = name, acc, pairs
        *batch, self.m, self.n = shape
        self.batch = tuple(batch)
        if pairs and self.n % 2:
            raise ValueError(f"epilogue {name} takes pairs of columns, N = {self.n} is odd")
        self.lanes = self.n // 2 if pairs else self.n

    def shape(self, width: int) -> tuple[int, ...]:
        return (*self.batch, self.m, width)


def fit_operand(problem: Problem, key: str, x: Any, each: int) -> np.ndarray:
    """The operand as an array that broadcasts to the product; each: its values for one lane."""
    array = operands.as_array(x)
    shape = problem.shape(problem.lanes * each)
    if array.shape in (shape, shape[-1:], ()):
        return array
    try:
        if array.ndim <= len(shape) and np.broadcast_shapes(array.shape, shape) == shape:
            if each == 1 or array.shape[-1:] == shape[-1:]:
                return array
    except ValueError:
        pass
    m, n = shape[-2:]
    hint = f"; a column vector has shape ({m}, 1)" if array.shape == (m,) else ""
    if array.shape[-1:] == ((3 - each) * (n // each),):
        hint = "; the function must unpack it as a pair of columns" if each == 1 else hint
    batch = f" after batch axes {problem.batch}" if problem.batch else ""
    raise ValueError(
        f"epilogue {problem.name}: operand {key} of shape {array.shape} is no scalar, row vector "
        f"({n},), column vector ({m}, 1) or tile ({m}, {n}){batch}{hint}"
    )


def convert(problem: Problem, key: str, x: np.ndarray, floats: DType) -> np.ndarray:
    """The operand in a dtype that the kernel loads."""
    kind, acc = x.dtype.kind, problem.acc
    where = f"epilogue {problem.name}: operand {key}"
    if acc.kind == "c":
        if kind not in "biufc":
            raise TypeError(f"{where} has dtype {x.dtype}")
        return operands.convert(x, np.dtype(acc.name))
    if operands.is_extended(x.dtype) or kind == "f":
        if x.dtype.itemsize > floats.size or known(x.dtype) is None:
            with np.errstate(over="ignore"):
                return x.astype(floats.name)
        return x
    if kind in "iub":
        if acc is int64:
            return operands.convert(x, np.dtype(np.int64)) if x.dtype.itemsize < 8 else x
        if x.dtype.itemsize > 4 or x.dtype == np.uint32:
            if x.size and (x.max() > INT32.max or x.min() < INT32.min):
                raise ValueError(f"{where} holds integers beyond int32: {x.min()} to {x.max()}")
            return x.astype(np.int32)
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    raise TypeError(f"{where} has dtype {x.dtype}, an epilogue of a {acc} product takes no such")


def as_number(x: np.ndarray, acc: DType, floats: DType) -> np.ndarray:
    """A 0-d operand in the type in which the program computes with it."""
    if x.dtype.kind in "iub":
        return x.astype(np.int64 if acc is int64 else np.int32)
    with np.errstate(over="ignore"):
        return x.astype(floats.name)


def kind_of(x: np.ndarray) -> str:
    tall = x.ndim > 1 and x.shape[-2] > 1
    wide = x.ndim > 0 and x.shape[-1] > 1
    return _KINDS[tall, wide]


def uniform_step(x: np.ndarray, batch: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """(x with one step between consecutive matrices of the batch, that step)."""
    if not batch or x.ndim < 3 or all(s == 1 for s in x.shape[:-2]):
        return x, 0
    full = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    _, rows = execution.batches(batch, full.strides[:-2])
    if len(rows) > 1:
        full = np.ascontiguousarray(full)
        _, rows = execution.batches(batch, full.strides[:-2])
    return full, rows[0][1] if rows else 0


def steps_of(x: np.ndarray) -> tuple[int, int]:
    row = x.strides[-2] if x.ndim > 1 and x.shape[-2] > 1 else 0
    return row, x.strides[-1] if x.ndim and x.shape[-1] > 1 else 0


def same_view(x: np.ndarray, y: np.ndarray) -> bool:
    return (x.shape, x.strides, x.itemsize) == (y.shape, y.strides, y.itemsize) and (
        execution.address(x) == execution.address(y)
    )


def same_start(x: np.ndarray, y: Any) -> bool:
    """Whether x is y itself as far as addresses go: nothing was copied to make it."""
    return (
        type(y) is np.ndarray
        and x.dtype == y.dtype
        and (execution.address(x) == execution.address(y))
    )
