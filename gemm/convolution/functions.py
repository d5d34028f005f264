"""The public convolution functions: check, see every array channels first, hand on to the drivers.

Each family is written once for 1, 2 and 3 spatial axes; the docstring of a function states its
whole contract.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemm.convolution import filters, forward, geometry, gradients, layouts, operands, transposed
from gemm.convolution.filters import PackedFilters

Integers = int | Sequence[int]
Function = Callable[..., np.ndarray]


def _grouped(array: np.ndarray, groups: int, axis: int = 1) -> np.ndarray:
    """Split an axis into (groups, extent / groups), a view."""
    head, extent, tail = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    return array.reshape(*head, groups, extent // groups, *tail)


def _addend(
    name: str,
    bias: np.ndarray | None,
    x_zero_point: Any,
    w_zero_point: Any,
    dtypes: tuple[np.dtype, np.dtype, np.dtype],
    count: int,
    groups: int,
) -> forward.Addend:
    """Bias and zero points, checked and spread over groups."""
    if bias is not None:
        bias = operands.array(name, "bias", bias)
        operands.check_bias(name, bias, count)
        bias = bias.reshape(groups, -1)
    if x_zero_point is None and w_zero_point is None:
        return forward.Addend(bias)
    if dtypes[2] != np.int32:
        raise TypeError(
            f"{name}: zero points need int8 or uint8 operands, got {dtypes[0]} and {dtypes[1]}"
        )
    points = []
    for what, value, dtype in (
        ("x_zero_point", x_zero_point, dtypes[0]),
        ("w_zero_point", w_zero_point, dtypes[1]),
    ):
        value = np.asarray(0 if value is None else value)
        limits = np.iinfo(dtype)
        if value.dtype.kind not in "iu":
            raise TypeError(f"{name}: {what} must be integers, got dtype {value.dtype}")
        if value.size and not (limits.min <= value.min() and value.max() <= limits.max):
            raise ValueError(f"{name}: {what} does not fit in {dtype}: {value!r}")
        points.append(value.astype(np.int32))
    if points[0].size != 1:
        raise ValueError(f"{name}: x_zero_point must be one number, got shape {points[0].shape}")
    if points[1].size not in (1, count):
        raise ValueError(
            f"{name}: w_zero_point must be one number or {count}, got shape {points[1].shape}"
        )
    w_zero = np.broadcast_to(points[1].reshape(-1), (count,)).reshape(groups, -1)
    return forward.Addend(bias, int(points[0].item()), w_zero if w_zero.any() else None)


def _conv(rank: int) -> Function:
    name = f"conv{rank}d"

    def conv(
        x: np.ndarray,
        w: np.ndarray | PackedFilters,
        bias: np.ndarray | None = None,
        stride: Integers = 1,
        padding: geometry.Padding = 0,
        dilation: Integers = 1,
        groups: int = 1,
        *,
        layout: layouts.Layout = "NCHW",
        x_zero_point: Any = None,
        w_zero_point: Any = None,
        epilogue: Any = None,
        algorithm: str = "auto",
        out: np.ndarray | None = None,
        threads: int | None = None,
    ) -> np.ndarray:
        x = operands.array(name, "x", x)
        operands.check_rank(name, "x", x, rank + 2)
        order = layouts.parse(name, layout, rank)
        source = layouts.view(x, order.input)
        if isinstance(w, PackedFilters):
            packed = w
            if groups not in (1, packed.groups):
                raise ValueError(
                    f"{name}: groups is {groups}, but the filters were packed in {packed.groups}"
                )
            groups = packed.groups
            if len(packed.kernel) != rank:
                raise ValueError(
                    f"{name}: the packed filters have {len(packed.kernel)} spatial axes, not {rank}"
                )
            kernel, per_group, count = packed.kernel, packed.channels, packed.out_channels
        else:
            w = operands.array(name, "w", w)
            operands.check_rank(name, "w", w, rank + 2)
            taken = layouts.view(w, order.filter)
            count, per_group, kernel = taken.shape[0], taken.shape[1], taken.shape[2:]
            operands.check_groups(name, groups, count)
        operands.check_channels(name, "x", source.shape[1], per_group, groups)
        shape = geometry.forward(name, source.shape[2:], kernel, stride, padding, dilation)
        forward.check_algorithm(name, algorithm, shape.pointwise)
        dtypes = operands.result_dtypes(name, x.dtype, w.dtype)
        addend = _addend(name, bias, x_zero_point, w_zero_point, dtypes, count, groups)
        result, target = operands.output(
            name,
            out,
            layouts.stored((len(source), count, *shape.output), order.output),
            dtypes[2],
            x,
            packed.matrix if isinstance(w, PackedFilters) else w,
            any_dtype=epilogue is not None,
        )
        matrix = packed.matrix if isinstance(w, PackedFilters) else filters.matrix(taken, groups)
        forward.convolve(
            _grouped(source, groups),
            matrix.astype(dtypes[1], copy=False),
            shape.axes(),
            _grouped(layouts.view(target, order.output), groups),
            algorithm=algorithm,
            dtype=dtypes[0],
            addend=addend,
            epilogue=epilogue,
            threads=threads,
        )
        if result is not target:
            result[...] = target
        return result

    return _named(
        conv,
        name,
        f"""{rank}-D convolution (cross-correlation, as in every deep-learning library).

        x: (N, C, *spatial). w: (O, C / groups, *kernel), or the result of ``pack_filters``. bias:
        (O,) or None. Both in any strides; ``layout`` says the order of axes: 'NCHW' (channels
        first), 'NHWC' (channels last, filters (O, *kernel, I)), or three words (input, filter,
        output). stride, dilation: integers of at least 1, one or one an axis. padding: an integer,
        one an axis, one (before, after) pair an axis, 'valid', 'same' or 'same_lower'; no padded
        copy is made. int8 and uint8 give int32, optionally with zero points: the result is that of
        (x - x_zero_point) and (w - w_zero_point), ``w_zero_point`` one number or one a filter, and
        padding counts as x_zero_point. Other dtypes give ``np.result_type(x, w)``; float16 and
        bfloat16 are summed in float32. algorithm: 'auto', 'implicit' (gathered by arithmetic),
        'indirect' (through an int32 table), 'direct' (1x1 without padding), 'im2col' (the explicit
        matrix, as an oracle). All give the same bits: one chain over (kernel axes, channels). out:
        an array to write into; it may overlap the operands.

        Returns (N, O, *outputs) in the layout's order. Raises ValueError for shapes, groups,
        strides or padding that do not fit, TypeError for dtypes; nothing has been written then.
        """,
    )


def _conv_transpose(rank: int) -> Function:
    name = f"conv_transpose{rank}d"

    def conv_transpose(
        x: np.ndarray,
        w: np.ndarray,
        bias: np.ndarray | None = None,
        stride: Integers = 1,
        padding: geometry.Padding = 0,
        output_padding: Integers = 0,
        groups: int = 1,
        dilation: Integers = 1,
        *,
        output_size: Sequence[int] | None = None,
        layout: layouts.Layout = "NCHW",
        epilogue: Any = None,
        algorithm: str = "auto",
        out: np.ndarray | None = None,
        threads: int | None = None,
    ) -> np.ndarray:
        x, source, w, taken, order = _pair(name, "x", x, w, layout, rank)
        operands.check_groups(name, groups, taken.shape[0])
        operands.check_channels(name, "x", source.shape[1], taken.shape[0] // groups, groups)
        shape = geometry.transposed(
            name,
            source.shape[2:],
            taken.shape[2:],
            stride,
            padding,
            output_padding,
            dilation,
            output_size,
        )
        return _collect(
            name, x, source, w, taken, shape, bias, groups, order, epilogue, algorithm, out, threads
        )

    return _named(
        conv_transpose,
        name,
        f"""{rank}-D transposed convolution: the input gradient of a convolution, as a layer of its
        own.

        x: (N, C, *spatial). w: (C, O / groups, *kernel) ('NHWC': (C, *kernel, O / groups)). bias:
        (O,) or None. Along an axis the result has (extent - 1) * stride - before - after + dilation
        * (kernel - 1) + 1 + output_padding positions; ``output_size`` names the spatial extents
        instead, within reach of output_padding; padding 'same' and 'same_lower' give extent *
        stride. The order of the parameters is PyTorch's; the other parameters, dtypes and errors
        are those of ``conv{rank}d``.

        Returns (N, O, *outputs). Each element is one chain over (the taps that reach it, channels).
        """,
    )


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
        dy, source, w, taken, order = _pair(name, "dy", dy, w, layout, rank)
        order = layouts.Layouts(order.output, order.filter, order.input)
        source = layouts.view(dy, order.input)
        operands.check_groups(name, groups, taken.shape[0])
        sizes = geometry.integers(name, "input_size", input_size, rank + 2, 0)
        sizes = tuple(sizes[i] for i in order.output)
        shape = geometry.forward(name, sizes[2:], taken.shape[2:], stride, padding, dilation)
        _check_gradient(name, source, sizes, taken, shape, groups)
        return _collect(
            name, dy, source, w, taken, shape, None, groups, order, None, algorithm, out, threads
        )

    return _named(
        conv_input,
        name,
        f"""Gradient of ``conv{rank}d`` with respect to its input.

        input_size: the shape of x, in the layout's order. w: the filters, as in ``conv{rank}d``.
        dy: the gradient of its result. The other parameters are those of the convolution. Inputs
        that no window read get zero.

        Returns an array of shape ``input_size``. Raises ValueError when dy does not have the
        convolution's shape. """,
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
        _check_gradient(name, gradient, source.shape, np.empty(sizes, bool), shape, groups)
        dtypes = operands.result_dtypes(name, x.dtype, dy.dtype)
        result, target = operands.output(
            name, out, layouts.stored(sizes, order.filter), dtypes[2], x, dy
        )
        total = np.empty(sizes, operands.accumulator(target.dtype))
        gradients.filter_gradient(
            _grouped(source, groups),
            _grouped(gradient, groups),
            shape.axes(),
            _grouped(total, groups, 0),
            dtypes=dtypes[:2],
            threads=threads,
        )
        layouts.view(result, order.filter)[...] = total
        return result

    return _named(
        conv_weight,
        name,
        f"""Gradient of ``conv{rank}d`` with respect to its filters.

        x: the input. weight_size: the shape of w, in the layout's order. dy: the gradient of the
        result. The other parameters are those of the convolution. An empty batch gives zeros.

        Returns an array of shape ``weight_size``; its bits depend on shapes and values alone.
        Raises ValueError when dy does not have the convolution's shape. """,
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

    return _named(
        conv_bias,
        name,
        f"""Gradient of ``conv{rank}d`` with respect to its bias: the sum of dy (N, O, *outputs).

        One chain over the pixels of an image, then one over the images; float16 and bfloat16 in
        float32. Returns (O,).
        """,
    )


def _pair(
    name: str, what: str, x: np.ndarray, w: np.ndarray, layout: layouts.Layout, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, layouts.Layouts]:
    """The two arrays that a transposed convolution reads, and their views channels first."""
    x, w = operands.array(name, what, x), operands.array(name, "w", w)
    operands.check_rank(name, what, x, rank + 2)
    operands.check_rank(name, "w", w, rank + 2)
    order = layouts.parse(name, layout, rank)
    return x, layouts.view(x, order.input), w, layouts.view(w, order.filter), order


def _check_gradient(
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


def _collect(
    name: str,
    x: np.ndarray,
    source: np.ndarray,
    w: np.ndarray,
    taken: np.ndarray,
    shape: geometry.Geometry,
    bias: np.ndarray | None,
    groups: int,
    order: layouts.Layouts,
    epilogue: Any,
    algorithm: str,
    out: np.ndarray | None,
    threads: int | None,
) -> np.ndarray:
    """Run a transposed convolution from ``source`` to (N, I * groups, *shape.input)."""
    forward.check_algorithm(name, algorithm, shape.pointwise)
    dtypes = operands.result_dtypes(name, x.dtype, w.dtype)
    count = taken.shape[1] * groups
    addend = _addend(name, bias, None, None, dtypes, count, groups)
    result, target = operands.output(
        name,
        out,
        layouts.stored((len(source), count, *shape.input), order.output),
        dtypes[2],
        x,
        w,
        any_dtype=epilogue is not None,
    )
    transposed.convolve(
        _grouped(source, groups),
        taken,
        shape,
        _grouped(layouts.view(target, order.output), groups),
        groups=groups,
        algorithm=algorithm,
        dtypes=dtypes[:2],
        addend=addend,
        epilogue=epilogue,
        threads=threads,
    )
    if result is not target:
        result[...] = target
    return result


def _named(function: Function, name: str, doc: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))
conv1d_input, conv2d_input, conv3d_input = map(_conv_input, (1, 2, 3))
conv1d_weight, conv2d_weight, conv3d_weight = map(_conv_weight, (1, 2, 3))
conv1d_bias, conv2d_bias, conv3d_bias = map(_conv_bias, (1, 2, 3))
