"""One contraction of two operands whose axes carry labels: the core of dot, tensordot and einsum.

Each label is in one of four groups: batch (both operands and the output), row (first operand and
output), column (second operand and output) or depth (both operands, summed). The engine wants
(*batch, M, K) @ (*batch, K, N). Rows, columns and depth become one axis each by reshaping, which
is free when the strides allow it:

    'abk,kcd->abcd', C order:   a (a b) k  ->  (ab, k)     b  k (c d)  ->  (k, cd)     no copy

Where row or column axes do not merge, the longest run that does becomes the matrix axis and the
rest become batch axes of zero stride in the other operand: no copy either, but the other operand
is packed once per batch step, so short runs are copied together instead. Depth axes that do not
merge are always copied, in the order of the first operand: another order would be another
summation order, and the bits of a result must not depend on its operands' strides.

A recipe depends on labels, shapes and strides alone, so it is made once and cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from gemm import engine, operands

Labels = tuple[int, ...]
Ints = tuple[int, ...]

# A run shorter than this is copied together with its neighbours: packing the other operand for
# each of its batch steps would cost more than the product itself.
_SHORT_RUN = 32


class Contraction:
    """How to contract two operands: what to transpose, reshape and call. See `plan`.

    kind: 'product' (engine.product; an outer product has a depth of 1), 'inner' (engine.inner: no
    rows, no columns) or 'multiply' (nothing is summed, one operand has all labels: elementwise).
    `natural` is the shape that the call writes, in C order for a result that is allocated here;
    `labels` are the labels of the result's axes. is_plain: the operands go through a door as
    they are, and so does the result.
    """

    __slots__ = (
        "a",
        "b",
        "batch",
        "is_plain",
        "kind",
        "labels",
        "natural",
        "split",
        "to_labels",
        "from_out",
    )

    def __init__(
        self,
        kind: str,
        a: tuple[Ints | None, Ints | None],
        b: tuple[Ints | None, Ints | None],
        batch: Ints | None,
        natural: Ints,
        split: Ints | None,
        natural_labels: Labels,
        labels: Labels,
        is_plain: bool = False,
    ) -> None:
        self.kind = kind
        self.a, self.b = a, b
        self.batch = batch
        self.natural = natural
        self.split = split
        self.labels = labels
        self.to_labels = _permutation(natural_labels, labels)
        self.from_out = _permutation(labels, natural_labels)
        self.is_plain = is_plain

    def __call__(
        self, a: np.ndarray, b: np.ndarray, dtype: np.dtype, out: np.ndarray | None = None
    ) -> np.ndarray:
        """Contract `a` with `b` in `dtype`; `out` is one that the plan was made for."""
        product = self.kind == "product"
        # The doors know a dtype by its object, as does `is`.
        if self.is_plain and out is None and a.dtype is dtype:
            result = engine.door(a, b, None) if product else engine.inner_door(a, b)
            if result is not None:
                return result
        permutation, shape = self.a
        if permutation is not None:
            a = a.transpose(permutation)
        if shape is not None:
            a = a.reshape(shape)
        permutation, shape = self.b
        if permutation is not None:
            b = b.transpose(permutation)
        if shape is not None:
            b = b.reshape(shape)
        if self.batch is not None:
            a = np.broadcast_to(a, self.batch + a.shape[-2:])
            b = np.broadcast_to(b, self.batch + b.shape[-2:])
        target = None
        if out is not None:
            target = out if self.from_out is None else out.transpose(self.from_out)
            if target.shape != self.natural:
                target = target.reshape(self.natural)
        if self.kind == "multiply" and target is None and self.natural:
            return _multiply(a, b, dtype)
        result = None
        if a.dtype is dtype:
            if product:
                result = engine.door(a, b, target)
            elif target is None and self.kind == "inner":
                result = engine.inner_door(a, b)
        if result is None:
            result = np.empty(self.natural, dtype) if target is None else target
            if product:
                engine.product(a, b, result)
            elif self.kind == "inner":
                engine.inner(a, b, result)
            else:
                _multiply(a, b, dtype, result)
        if out is not None:
            return out
        if self.split is not None:
            result = result.reshape(self.split)
        return result if self.to_labels is None else result.transpose(self.to_labels)


def _multiply(
    a: np.ndarray, b: np.ndarray, dtype: np.dtype, out: np.ndarray | None = None
) -> np.ndarray:
    if a.dtype == b.dtype == dtype:
        return np.multiply(a, b, out, order="C")
    return np.multiply(a, b, out, order="C", dtype=dtype)


@lru_cache(maxsize=2048)
def plan(
    a_labels: Labels,
    a_shape: Ints,
    a_strides: Ints,
    b_labels: Labels,
    b_shape: Ints,
    b_strides: Ints,
    out_labels: Labels,
    out_strides: Ints | None = None,
) -> Contraction:
    """The contraction of operands with these labels, shapes and strides.

    No label repeats within an operand; a label of one operand only is in the output; the sizes of
    a shared label agree (the callers check). `out_strides` are those of an `out` with axes as in
    `out_labels`; without it the result's memory may be laid out as suits the operands.
    """
    size = dict(zip(a_labels, a_shape, strict=True)) | dict(zip(b_labels, b_shape, strict=True))
    stride_a = dict(zip(a_labels, a_strides, strict=True))
    stride_b = dict(zip(b_labels, b_strides, strict=True))
    stride_out = None if out_strides is None else dict(zip(out_labels, out_strides, strict=True))
    out_shape = tuple(size[x] for x in out_labels)
    batch = [x for x in out_labels if x in stride_a and x in stride_b]
    rows = [x for x in out_labels if x not in stride_b]
    columns = [x for x in out_labels if x not in stride_a]
    depth = [x for x in a_labels if x not in out_labels]

    def sizes(labels: Sequence[int]) -> Ints:
        return tuple(size[x] for x in labels)

    if not depth and not (rows and columns):
        return Contraction(
            "multiply",
            _recipe(a_labels, a_shape, [x for x in out_labels if x in stride_a],
                    _aligned(out_labels, stride_a, size)),
            _recipe(b_labels, b_shape, [x for x in out_labels if x in stride_b],
                    _aligned(out_labels, stride_b, size)),
            None, out_shape, None, out_labels, out_labels,
        )  # fmt: skip
    k = (prod(sizes(depth)),)
    if not rows and not columns:
        return Contraction(
            "inner",
            _recipe(a_labels, a_shape, batch + depth, sizes(batch) + k),
            _recipe(b_labels, b_shape, batch + depth, sizes(batch) + k),
            None, out_shape, None, out_labels, out_labels,
            a_labels == b_labels == tuple(depth) and len(depth) == 1,
        )  # fmt: skip

    m, n = prod(sizes(rows)), prod(sizes(columns))
    row_rest, row_run = _split(rows, size, stride_a, stride_out, depth, other=n)
    column_rest, column_run = _split(columns, size, stride_b, stride_out, depth, other=m)
    m, n = prod(sizes(row_run)), prod(sizes(column_run))
    full = sizes(batch) + sizes(row_rest) + sizes(column_rest)
    ones_a, ones_b = (1,) * len(column_rest), (1,) * len(row_rest)
    natural = full + (m, n)
    natural_labels = tuple(batch + row_rest + column_rest + row_run + column_run)
    split = sizes(natural_labels)
    return Contraction(
        "product",
        _recipe(a_labels, a_shape, batch + row_rest + row_run + depth,
                sizes(batch) + sizes(row_rest) + ones_a + (m,) + k),
        _recipe(b_labels, b_shape, batch + column_rest + depth + column_run,
                sizes(batch) + ones_b + sizes(column_rest) + k + (n,)),
        full if row_rest or column_rest else None,
        natural,
        None if split == natural else split,
        natural_labels,
        out_labels,
        len(rows) < 2 and len(columns) < 2 and len(depth) == 1
        and (a_labels, b_labels, out_labels)
        == ((*rows, *depth), (*depth, *columns), (*rows, *columns)),
    )  # fmt: skip


def _split(
    labels: list[int],
    size: dict[int, int],
    stride: dict[int, int],
    stride_out: dict[int, int] | None,
    depth: list[int],
    other: int,
) -> tuple[list[int], list[int]]:
    """Row (or column) labels as (labels to treat as batch, labels to merge into one axis)."""
    if len(labels) < 2:
        return [], labels
    out_only = [] if stride_out is None else [stride_out]
    if len(_runs(depth, size, [stride])) > 1:
        runs = _runs(labels, size, out_only)  # the operand is copied anyway
    else:
        runs = _runs(labels, size, [stride, *out_only])
        if len(runs) > 1 and stride_out is None:
            by_stride = sorted(labels, key=lambda x: -abs(stride[x]))
            runs = min(runs, _runs(by_stride, size, [stride]), key=len)
        if len(runs) > 1:
            longest = max(prod(size[x] for x in run) for run in runs)
            if longest < _SHORT_RUN or other > 4 * longest:
                runs = _runs(labels, size, out_only)
    run = max(runs, key=lambda labels: prod(size[x] for x in labels))
    return [x for r in runs if r is not run for x in r], run


def _runs(
    labels: list[int], size: dict[int, int], strides: list[dict[int, int]]
) -> list[list[int]]:
    """`labels` cut into runs whose axes merge into one, in that order, under all `strides`."""
    if any(size[x] == 0 for x in labels):
        return [labels]
    runs: list[list[int]] = []
    previous = None
    for label in labels:
        if size[label] == 1 and runs:
            runs[-1].append(label)
            continue
        merges = previous is None or all(
            stride[previous] == stride[label] * size[label] for stride in strides
        )
        if runs and merges:
            runs[-1].append(label)
        else:
            runs.append([label])
        if size[label] != 1:
            previous = label
    return runs


def _recipe(
    labels: Labels, shape: Ints, order: Sequence[int], wanted: Ints
) -> tuple[Ints | None, Ints | None]:
    """(permutation, shape) that bring an operand to `wanted`; None where nothing is to be done."""
    permuted = tuple(shape[labels.index(x)] for x in order)
    return _permutation(labels, tuple(order)), None if permuted == wanted else wanted


def _aligned(labels: Labels, own: dict[int, int], size: dict[int, int]) -> Ints:
    """The shape that broadcasts against all of `labels`: 1 for those that are not its own."""
    shape = [size[x] if x in own else 1 for x in labels]
    first = next((i for i, x in enumerate(labels) if x in own), len(shape))
    return tuple(shape[first:])


def _permutation(have: Labels, want: Labels) -> Ints | None:
    return None if have == want else tuple(have.index(x) for x in want)


def contract(
    a: np.ndarray,
    a_labels: Labels,
    b: np.ndarray,
    b_labels: Labels,
    out_labels: Labels,
    dtype: np.dtype,
    out: np.ndarray | None = None,
) -> np.ndarray:
    """Contract two native arrays in `dtype`, into `out` if that is given (any dtype it casts to).

    a, b: any strides. Returns `out`, or a new array whose axes follow `out_labels`.
    """
    a, b = operands.convert(a, dtype), operands.convert(b, dtype)
    direct: Any = None
    if out is not None and operands.can_write(out, dtype, a, b):
        direct = out
    recipe = plan(
        a_labels, a.shape, a.strides, b_labels, b.shape, b.strides, out_labels,
        None if direct is None else direct.strides,
    )  # fmt: skip
    result = recipe(a, b, dtype, direct)
    if out is not None and direct is None:
        np.copyto(out, result, casting="unsafe")
        return out
    return result
