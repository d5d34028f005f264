"""`unfold` and `fold`: windows as columns and back, with PyTorch's parameter order, in any number
of axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from gemm.convolution import geometry, im2col, operands

Integers = int | Sequence[int]


def unfold(
    x: np.ndarray,
    kernel_size: Integers,
    dilation: Integers = 1,
    padding: geometry.Padding = 0,
    stride: Integers = 1,
) -> np.ndarray:
    """Every window of ``x`` (N, C, *spatial) as a column: (N, C * prod(kernel_size), windows).

    Rows go channel by channel, taps row-major in each. An ``x`` without N gives a result without N
    when ``kernel_size`` names its axes. Raises as ``conv2d`` does.
    """
    name = "unfold"
    x = operands.array(name, "x", x)
    rank = _rank(x.ndim, kernel_size)
    operands.check_rank(name, "x", x, rank + 2 if x.ndim > rank + 1 else rank + 1)
    kernel = geometry.integers(name, "kernel size", kernel_size, rank, 1)
    shape = geometry.forward(name, x.shape[-rank:], kernel, stride, padding, dilation)
    view = im2col.windows(x, shape.axes())  # (..., C, *outputs, *taps)
    lead = x.ndim - rank
    view = np.moveaxis(view, range(lead, lead + rank), range(-rank, 0))
    return view.reshape(
        *x.shape[: lead - 1], x.shape[lead - 1] * math.prod(kernel), math.prod(shape.output)
    )


def fold(
    columns: np.ndarray,
    output_size: Sequence[int],
    kernel_size: Integers,
    dilation: Integers = 1,
    padding: geometry.Padding = 0,
    stride: Integers = 1,
) -> np.ndarray:
    """Sum columns (N, C * prod(kernel_size), windows) into an array (N, C, *output_size): the
    transpose of `unfold`.

    Overlapping windows are added, taps in row-major order; float16 and bfloat16 in float32. Raises
    ValueError when the number of rows or windows does not fit.
    """
    name = "fold"
    columns = operands.array(name, "columns", columns)
    if columns.ndim not in (2, 3):
        raise ValueError(f"{name}: columns must have 2 or 3 axes, got shape {columns.shape}")
    rank = len(output_size)
    size = geometry.integers(name, "output_size", output_size, rank, 1)
    kernel = geometry.integers(name, "kernel size", kernel_size, rank, 1)
    shape = geometry.forward(name, size, kernel, stride, padding, dilation)
    taps, windows = math.prod(kernel), math.prod(shape.output)
    rows = columns.shape[-2]
    if rows % taps or columns.shape[-1] != windows:
        raise ValueError(
            f"{name}: columns of shape {columns.shape} are not {taps} taps a channel "
            f"by {windows} windows"
        )
    channels = rows // taps
    lead = (*columns.shape[:-2], channels)
    total = np.zeros((*lead, *size), operands.accumulator(columns.dtype))
    im2col.scatter(columns.reshape(*lead, *kernel, *shape.output), shape.axes(), total)
    return total.astype(columns.dtype, copy=False)


def _rank(axes: int, kernel_size: Integers) -> int:
    return len(kernel_size) if isinstance(kernel_size, Sequence) else max(axes - 2, 1)
