"""The custom operators: three that are closed under differentiation, and linear.

y = conv(x, w) is linear in both operands, and so are its two gradients. The gradients of each of
``conv``, ``conv_input`` and ``conv_weight`` are two of the same three, so derivatives of any order
exist. Each operator has a fake kernel, which is all that ``torch.compile`` needs to keep a whole
graph. Geometry is passed as ``before`` (padding) and the spatial extents of the result, so that
transposed convolution, uneven padding and remainders need no operator of their own.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gemm import engine
from gemm.convolution import calls, filters, forward, gradients, transposed
from gemm.convolution.geometry import Geometry
from gemm.convolution.write_back import WriteBack
from gemm.targets import environment
from gemm.threads import get_num_threads
from gemm.torch.arrays import array, result_format


def _geometry(
    x: list[int] | torch.Size,
    w: Tensor | list[int],
    stride: list[int],
    before: list[int],
    output: list[int] | torch.Size,
    dilation: list[int],
) -> Geometry:
    kernel = w.shape[2:] if isinstance(w, Tensor) else w
    return Geometry(
        tuple(x), tuple(kernel), tuple(stride), tuple(dilation), tuple(before), tuple(output)
    )


def _grouped(tensor: Tensor, groups: int, axis: int = 1):
    values = array(tensor)
    shape = values.shape
    return values.reshape(*shape[:axis], groups, shape[axis] // groups, *shape[axis + 1 :])


def _write_back(bias: Tensor | None, groups: int) -> WriteBack:
    return WriteBack(None if bias is None else array(bias).reshape(groups, -1))


def _filters(w: Tensor, groups: int) -> filters.PackedFilters:
    """The filters arranged for the engine, once for as long as they do not change."""
    values = array(w)
    return filters.cached(w, values, groups, lambda: filters.of_array(values, groups, values.dtype))


def _call(x: Tensor, y: Tensor, bias: Tensor | None, geometry: tuple[int, ...]) -> Any:
    """What a call with the same filters depends on beside values."""
    return (
        x.shape, x.stride(), x.dtype, y.stride(), geometry,
        None if bias is None else (bias.stride(), bias.dtype), get_num_threads(),
        environment("GEMM_ISA"),
    )  # fmt: skip


@torch.library.custom_op("gemm::conv", mutates_args=(), device_types="cpu")
def conv(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: list[int],
    before: list[int],
    output: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """Convolution of x (N, C, *spatial) with w (O, C / groups, *kernel) to spatial extents
    ``output``.
    """
    y = _conv_result(x, w, bias, stride, before, output, dilation, groups)
    packed = _filters(w, groups)
    key = _call(x, y, bias, (*stride, *before, *output, *dilation))
    kept = packed.calls.get(key)
    if kept is not None:
        kept.repeat(array(x), array(y), None, {} if bias is None else {"bias": array(bias)})
        return y
    geometry = _geometry(x.shape[2:], w, stride, before, output, dilation)
    repeat = forward.convolve(
        _grouped(x, groups),
        packed,
        geometry.axes(),
        _grouped(y, groups),
        algorithm="auto",
        dtypes=(array(x).dtype,) * 2,
        write_back=_write_back(bias, groups),
    )
    if type(repeat) is forward.Repeat:
        calls.keep(packed, key, repeat, array(y))
    return y


@conv.register_fake
def _conv_result(x, w, bias, stride, before, output, dilation, groups):
    shape = (x.shape[0], w.shape[0], *output)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=result_format(x, w))


@torch.library.custom_op("gemm::conv_input", mutates_args=(), device_types="cpu")
def conv_input(
    dy: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: list[int],
    before: list[int],
    input: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """The transpose of ``conv`` in x: dy (N, O, *outputs) to (N, C, *input), plus a bias (C,)."""
    x = _conv_input_result(dy, w, bias, stride, before, input, dilation, groups)
    dtype = array(dy).dtype
    values = array(w)
    geometry = _geometry(input, w, stride, before, dy.shape[2:], dilation)
    way = ("transposed", *transposed.key(geometry, groups))
    packed = filters.cached(
        w, values, way, lambda: transposed.arranged(values, geometry, groups, dtype)
    )
    key = _call(dy, x, bias, (*stride, *before, *input, *dilation))
    kept = packed[0].calls.get(key) if packed else None
    if kept is not None:
        kept.repeat(array(dy), array(x), None, {} if bias is None else {"bias": array(bias)})
        return x
    repeat = transposed.convolve(
        _grouped(dy, groups),
        packed,
        geometry,
        _grouped(x, groups),
        algorithm="auto",
        dtypes=(dtype, dtype),
        write_back=_write_back(bias, groups),
    )
    if repeat is not None:
        calls.keep(packed[0], key, repeat, array(x))
    return x


@conv_input.register_fake
def _conv_input_result(dy, w, bias, stride, before, input, dilation, groups):
    shape = (dy.shape[0], w.shape[1] * groups, *input)
    return torch.empty(shape, dtype=dy.dtype, device=dy.device, memory_format=result_format(dy, w))


@torch.library.custom_op("gemm::conv_weight", mutates_args=(), device_types="cpu")
def conv_weight(
    dy: Tensor,
    x: Tensor,
    stride: list[int],
    before: list[int],
    kernel: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """The transpose of ``conv`` in w: dy (N, O, *outputs) and x (N, C, *spatial) to filters."""
    w = _conv_weight_result(dy, x, stride, before, kernel, dilation, groups)
    wide = torch.float32 if w.dtype in (torch.float16, torch.bfloat16) else w.dtype
    total = torch.empty(w.shape, dtype=wide)
    dtype = array(x).dtype
    gradients.filter_gradient(
        _grouped(x, groups),
        _grouped(dy, groups),
        _geometry(x.shape[2:], kernel, stride, before, dy.shape[2:], dilation).axes(),
        _grouped(total, groups, 0),
        dtypes=(dtype, dtype),
    )
    return w.copy_(total)


@conv_weight.register_fake
def _conv_weight_result(dy, x, stride, before, kernel, dilation, groups):
    shape = (dy.shape[1], x.shape[1] // groups, *kernel)
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=result_format(x, dy))


@torch.library.custom_op("gemm::linear", mutates_args=(), device_types="cpu")
def linear(x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., K) times the transpose of w (N, K), plus a bias (N,)."""
    y = _linear_result(x, w, bias)
    if bias is not None:
        y.copy_(bias.detach().expand_as(y))
    engine.product(
        array(_matrix(x)),
        array(w).swapaxes(0, 1),
        array(_matrix(y)),
        beta=0 if bias is None else 1,
    )
    return y


@linear.register_fake
def _linear_result(x, w, bias):
    return torch.empty((*x.shape[:-1], w.shape[0]), dtype=x.dtype, device=x.device)


def _matrix(tensor: Tensor) -> Tensor:
    """All axes but the last as one; the extents are spelt out because an empty tensor has no -1."""
    return tensor.reshape(math.prod(tensor.shape[:-1]), tensor.shape[-1])


def _conj(tensor: Tensor) -> Tensor:
    return tensor.conj().resolve_conj() if tensor.is_complex() else tensor


def _keep_conv(ctx, inputs, output):
    first, second, bias, ctx.stride, ctx.before, _, ctx.dilation, ctx.groups = inputs
    ctx.save_for_backward(first, second)
    ctx.has_bias = bias is not None


def _bias_gradient(ctx, g: Tensor) -> Tensor | None:
    return g.sum((0, *range(2, g.ndim))) if ctx.has_bias and ctx.needs_input_grad[2] else None


def _conv_backward(ctx, g):
    x, w = ctx.saved_tensors
    dx = dw = None
    if ctx.needs_input_grad[0]:
        dx = conv_input(
            g, _conj(w), None, ctx.stride, ctx.before, x.shape[2:], ctx.dilation, ctx.groups
        )
    if ctx.needs_input_grad[1]:
        dw = conv_weight(g, _conj(x), ctx.stride, ctx.before, w.shape[2:], ctx.dilation, ctx.groups)
    return dx, dw, _bias_gradient(ctx, g), None, None, None, None, None


def _conv_input_backward(ctx, g):
    dy, w = ctx.saved_tensors
    ddy = dw = None
    if ctx.needs_input_grad[0]:
        ddy = conv(
            g, _conj(w), None, ctx.stride, ctx.before, dy.shape[2:], ctx.dilation, ctx.groups
        )
    if ctx.needs_input_grad[1]:
        dw = conv_weight(
            _conj(dy), g, ctx.stride, ctx.before, w.shape[2:], ctx.dilation, ctx.groups
        )
    return ddy, dw, _bias_gradient(ctx, g), None, None, None, None, None


def _keep_weight(ctx, inputs, output):
    dy, x, ctx.stride, ctx.before, _, ctx.dilation, ctx.groups = inputs
    ctx.save_for_backward(dy, x)


def _conv_weight_backward(ctx, g):
    dy, x = ctx.saved_tensors
    ddy = dx = None
    rest = (ctx.dilation, ctx.groups)
    if ctx.needs_input_grad[0]:
        ddy = conv(_conj(x), g, None, ctx.stride, ctx.before, dy.shape[2:], *rest)
    if ctx.needs_input_grad[1]:
        dx = conv_input(_conj(dy), g, None, ctx.stride, ctx.before, x.shape[2:], *rest)
    return ddy, dx, None, None, None, None, None


def _keep_linear(ctx, inputs, output):
    x, w, bias = inputs
    ctx.save_for_backward(x, w)
    ctx.has_bias = bias is not None


def _linear_backward(ctx, g):
    x, w = ctx.saved_tensors
    rows = _matrix(g)
    dx = dw = db = None
    if ctx.needs_input_grad[0]:
        dx = linear(g, _conj(w).t(), None)
    if ctx.needs_input_grad[1]:
        dw = linear(rows.t(), _conj(_matrix(x)).t(), None)
    if ctx.has_bias and ctx.needs_input_grad[2]:
        db = rows.sum(0)
    return dx, dw, db


conv.register_autograd(_conv_backward, setup_context=_keep_conv)
conv_input.register_autograd(_conv_input_backward, setup_context=_keep_conv)
conv_weight.register_autograd(_conv_weight_backward, setup_context=_keep_weight)
linear.register_autograd(_linear_backward, setup_context=_keep_linear)
