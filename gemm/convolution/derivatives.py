"""The gradients of a convolution as functions, once for 1, 2 and 3 spatial axes.

Names and parameter order are those of ``torch.nn.grad``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemm.convolution import geometry, gradients, layouts, operands
from gemm.convolution.calls import Function, collect, grouped, named, operand_pair

Integers = int | Sequence[int]


def _conv_input(rank: int) -> Function:
    name = f"conv{rank}d_input"

    def conv_input(
        input_size: Sequence[int],
        w: np.ndarray,
        dy: np.ndarray,
        stride: Integers = 1,
        padding: geometry.Padding = 0,
        dilation: Integers = 1,
        groups: int = 1,
        *,
        layout: layouts.Layout = "NCHW",
        algorithm: str = "auto",
        out: np.ndarray | None = None,
        threads: int | None = None,
    ) -> np.ndarray:
        dy, source, w, taken, order = operand_pair(name, "dy", dy, w, layout, rank)
        order = layouts.Layouts(order.output, order.filter, order.input)
        source = layouts.view(dy, order.input)
        operands.check_groups(name, groups, taken.shape[0])
        sizes = geometry.integers(name, "input_size", input_size, rank + 2, 0)
        sizes = tuple(sizes[i] for i in order.output)
        shape = geometry.forward(name, sizes[2:], taken.shape[2:], stride, padding, dilation)
        check_gradient(name, source, sizes, taken, shape, groups)
        return collect(
            name, dy, source, w, taken, shape, None, groups, order, None, algorithm, out, threads
        )

    return named(
        conv_input,
        name,
        f"""Gradient of ``conv{rank}d`` with respect to its input.

        input_size: the shape of x, in the layout's order. w: the filters. dy: the gradient of the
        result. The other parameters are those of the convolution.

        Returns an array of shape ``input_size``; inputs that no window reads get zero. Raises
        ValueError when dy does not have the convolution's shape.
        """,
    )


def _conv_weight(rank: int) -> Function:
    name = f"conv{rank}d_weight"

    def conv_weight(
        x: np.ndarray,
        weight_size: Sequence[int],
        dy: np.ndarray,
        stride: Integers = 1,
        padding: geometry.Padding = 0,
        dilation: Integers = 1,
        groups: int = 1,
        *,
        layout: layouts.Layout = "NCHW",
        out: np.ndarray | None = None,
        threads: int | None = None,
    ) -> np.ndarray:
        x, dy = operands.array(name, "x", x), operands.array(name, "dy", dy)
        operands.check_rank(name, "x", x, rank + 2)
        operands.check_rank(name, "dy", dy, rank + 2)
        order = layouts.parse(name, layout, rank)
        source, gradient = layouts.view(x, order.input), layouts.view(dy, order.output)
        sizes = geometry.integers(name, "weight_size", weight_size, rank + 2, 0)
        sizes = tuple(sizes[i] for i in order.filter)
        operands.check_groups(name, groups, sizes[0])
        shape = geometry.forward(name, source.shape[2:], sizes[2:], stride, padding, dilation)
        check_gradient(name, gradient, source.shape, np.empty(sizes, bool), shape, groups)
        dtypes = operands.result_dtypes(name, x.dtype, dy.dtype)
        result, target = operands.output(
            name, out, layouts.stored(sizes, order.filter), dtypes[2], x, dy
        )
        total = np.empty(sizes, operands.accumulator(target.dtype))
        gradients.filter_gradient(
            grouped(source, groups),
            grouped(gradient, groups),
            shape.axes(),
            grouped(total, groups, 0),
            dtypes=dtypes[:2],
            threads=threads,
        )
        layouts.view(result, order.filter)[...] = total
        return result

    return named(
        conv_weight,
        name,
        f"""Gradient of ``conv{rank}d`` with respect to its filters.

        x: the input. weight_size: the shape of w, in the layout's order. dy: the gradient of the
        result. The other parameters are those of the convolution. An empty batch gives zeros.

        Returns an array of shape ``weight_size``; its bits depend on shapes and values alone.
        Raises ValueError when dy does not have the convolution's shape.
        """,
    )


def _conv_bias(rank: int) -> Function:
    name = f"conv{rank}d_bias"

    def conv_bias(
        dy: np.ndarray, *, layout: layouts.Layout = "NCHW", threads: int | None = None
    ) -> np.ndarray:
        dy = operands.array(name, "dy", dy)
        operands.check_rank(name, "dy", dy, rank + 2)
        gradient = layouts.view(dy, layouts.parse(name, layout, rank).output)
        dtype = operands.result_dtypes(name, dy.dtype, dy.dtype)[2]
        total = np.empty(gradient.shape[1], operands.accumulator(dtype))
        gradients.bias_gradient(gradient, total, threads=threads)
        return total.astype(dtype, copy=False)

    return named(
        conv_bias,
        name,
        f"""Gradient of ``conv{rank}d`` with respect to its bias: the sum of dy (N, O, *outputs).

        One chain over the pixels of an image, then one over the images; float16 and bfloat16 in
        float32. Returns (O,).
        """,
    )


def check_gradient(
    name: str,
    gradient: np.ndarray,
    x_shape: Sequence[int],
    w: np.ndarray,
    shape: geometry.Geometry,
    groups: int,
) -> None:
    operands.check_channels(name, "x", x_shape[1], w.shape[1], groups)
    wanted = (x_shape[0], w.shape[0], *shape.output)
    if gradient.shape != wanted:
        raise ValueError(
            f"{name}: dy must be (N, O, *outputs) = {wanted} in channels-first order, "
            f"got {gradient.shape}"
        )


conv1d_input, conv2d_input, conv3d_input = map(_conv_input, (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = map(_conv_weight, (1, 2, 3))
conv1d_bias, conv2d_bias, conv3d_bias = map(_conv_bias, (1, 2, 3))
