"""The layers: PyTorch's own classes with the arithmetic replaced.

Constructors, initialisation, parameters, state_dict, padding modes, ``extra_repr``, pickling and
copying are inherited. What the operators need is worked out here in plain Python that
``torch.compile`` can trace.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from gemm.convolution import geometry, operands
from gemm.torch import operators


def _autocast(*tensors: Tensor | None) -> list[Any]:
    """The operands in autocast's dtype where autocast is on, as for PyTorch's own layers."""
    kind = tensors[0].device.type  # type: ignore[union-attr]
    if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [
        t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t
        for t in tensors
    ]


def _check_device(name: str, *tensors: Tensor | None) -> None:
    """Refuse tensors of a device that the operators have no kernels for."""
    for tensor in tensors:
        if tensor is not None and tensor.device.type not in ("cpu", "meta"):
            raise TypeError(
                f"{name}: a tensor on device {tensor.device} is not supported; move it to the CPU, "
                "or use gemm.torch.revert"
            )


def _checked(name: str, x: Tensor, w: Tensor, bias: Tensor | None, channels: int) -> None:
    rank = w.ndim - 2
    _check_device(name, x, w, bias)
    if x.ndim not in (rank + 1, rank + 2):
        raise ValueError(f"{name}: x must have {rank + 1} or {rank + 2} axes, got {tuple(x.shape)}")
    if x.shape[-rank - 1] != channels:
        raise ValueError(
            f"{name}: x has {x.shape[-rank - 1]} channels, the filters take {channels}"
        )
    if x.dtype != w.dtype or (bias is not None and bias.dtype != w.dtype):
        raise TypeError(
            f"{name}: x, weight and bias must have one dtype, got {x.dtype}, {w.dtype} and "
            f"{bias.dtype if bias is not None else None}"
        )


def convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...],
    groups: int,
) -> Tensor:
    """``torch.nn.functional.conv1d``, ``conv2d`` or ``conv3d`` by the rank of ``w``, on the engine.

    x: (N, C, *spatial) or (C, *spatial). Also takes (before, after) pairs as padding, and 'same'
    and 'same_lower' with any stride. Raises ValueError and TypeError as ``gemm.conv2d`` does.
    """
    rank = w.ndim - 2
    name = f"conv{rank}d"
    x, w, bias = _autocast(x, w, bias)
    _checked(name, x, w, bias, w.shape[1] * groups)
    batch = x if x.ndim == rank + 2 else x.unsqueeze(0)
    sizes = batch.shape[2:]
    if torch.compiler.is_compiling() and not isinstance(padding, str):
        # Extents may be symbolic here, which the geometry's checks would pin to one value.
        pairs = [(p, p) if isinstance(p, int) else p for p in padding]
        before = [b for b, _ in pairs]
        output = [
            (i + b + a - (k - 1) * d - 1) // s + 1
            for i, (b, a), k, d, s in zip(sizes, pairs, w.shape[2:], dilation, stride, strict=True)
        ]
    else:
        shape = geometry.forward(name, sizes, w.shape[2:], stride, padding, dilation)
        before, output = list(shape.before), list(shape.output)
    y = operators.conv(batch, w, bias, list(stride), before, output, list(dilation), groups)
    return y if x.ndim == rank + 2 else y.squeeze(0)


def transposed_convolution(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    groups: int,
    dilation: tuple[int, ...],
) -> Tensor:
    """``torch.nn.functional.conv_transpose1d``, ``2d`` or ``3d`` by the rank of ``w``, on the
    engine.
    """
    rank = w.ndim - 2
    name = f"conv_transpose{rank}d"
    x, w, bias = _autocast(x, w, bias)
    _checked(name, x, w, bias, w.shape[0])
    batch = x if x.ndim == rank + 2 else x.unsqueeze(0)
    sizes = batch.shape[2:]
    if torch.compiler.is_compiling():
        output = [
            (i - 1) * s - 2 * p + (k - 1) * d + e + 1
            for i, s, p, k, d, e in zip(
                sizes, stride, padding, w.shape[2:], dilation, output_padding, strict=True
            )
        ]
    else:
        shape = geometry.transposed(
            name, sizes, w.shape[2:], stride, padding, output_padding, dilation, None
        )
        output = list(shape.input)
    y = operators.conv_input(
        batch, w, bias, list(stride), list(padding), output, list(dilation), groups
    )
    return y if x.ndim == rank + 2 else y.squeeze(0)


def _checking(base: type) -> Any:
    """The constructor of ``base`` with its exact signature, refusing what no convolution can
    have.
    """

    signature = inspect.signature(base.__init__)  # type: ignore[misc]
    rank = int(base.__name__[-2])

    @functools.wraps(base.__init__)  # type: ignore[misc]
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        given = signature.bind(self, *args, **kwargs)
        given.apply_defaults()
        values, name = given.arguments, base.__name__
        for what in ("kernel_size", "stride", "dilation", "padding"):
            if not isinstance(values[what], str):
                geometry.integers(name, what, values[what], rank, int(what != "padding"))
        operands.check_groups(name, values["groups"], values["in_channels"], "input channels")
        operands.check_groups(name, values["groups"], values["out_channels"], "output channels")
        base.__init__(self, *args, **kwargs)  # type: ignore[misc]

    return __init__


class _Forward:
    """The forward pass that the convolution layers share."""

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            input = nn.functional.pad(
                input, self._reversed_padding_repeated_twice, mode=self.padding_mode
            )
            padding = (0,) * len(self.kernel_size)
        elif padding == "same":
            # PyTorch's 'same' has stride 1, so that the padding does not depend on the input.
            totals = [d * (k - 1) for d, k in zip(self.dilation, self.kernel_size, strict=True)]
            padding = tuple((t // 2, t - t // 2) for t in totals)
        elif padding == "valid":
            padding = (0,) * len(self.kernel_size)
        return convolution(input, weight, bias, self.stride, padding, self.dilation, self.groups)


class _TransposedForward:
    """The forward pass that the transposed convolution layers share."""

    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        output_padding = self._output_padding(
            input,
            output_size,
            self.stride,
            self.padding,
            self.kernel_size,
            len(self.kernel_size),
            self.dilation,
        )
        return transposed_convolution(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            tuple(output_padding),
            self.groups,
            self.dilation,
        )


class Conv1d(_Forward, nn.Conv1d):
    """``torch.nn.Conv1d`` on the engine."""

    __init__ = _checking(nn.Conv1d)


class Conv2d(_Forward, nn.Conv2d):
    """``torch.nn.Conv2d`` on the engine."""

    __init__ = _checking(nn.Conv2d)


class Conv3d(_Forward, nn.Conv3d):
    """``torch.nn.Conv3d`` on the engine."""

    __init__ = _checking(nn.Conv3d)


class ConvTranspose1d(_TransposedForward, nn.ConvTranspose1d):
    """``torch.nn.ConvTranspose1d`` on the engine."""

    __init__ = _checking(nn.ConvTranspose1d)


class ConvTranspose2d(_TransposedForward, nn.ConvTranspose2d):
    """``torch.nn.ConvTranspose2d`` on the engine."""

    __init__ = _checking(nn.ConvTranspose2d)


class ConvTranspose3d(_TransposedForward, nn.ConvTranspose3d):
    """``torch.nn.ConvTranspose3d`` on the engine."""

    __init__ = _checking(nn.ConvTranspose3d)


class Linear(nn.Linear):
    """``torch.nn.Linear`` on the engine."""

    def forward(self, input: Tensor) -> Tensor:
        """x (..., in_features) to (..., out_features)."""
        x, w, bias = _autocast(input, self.weight, self.bias)
        _check_device("Linear", x, w, bias)
        if x.shape[-1:] != w.shape[1:]:
            raise ValueError(
                f"Linear: x must have {w.shape[1]} entries in its last axis, got {tuple(x.shape)}"
            )
        if x.dtype != w.dtype:
            raise TypeError(
                f"Linear: x and weight must have one dtype, got {x.dtype} and {w.dtype}"
            )
        return operators.linear(x, w, bias)
