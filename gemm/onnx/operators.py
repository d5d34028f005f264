"""ONNX operators on the engine, in the form that onnx's reference evaluator runs.

Attributes arrive as keywords, None where the model leaves them out. Semantics: the operator
specifications of the onnx package, opset 28, which contain those of every earlier opset here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

import gemm
from gemm import convolution
from gemm.convolution import filters, functions
from gemm.onnx import deformable, quantised

_WORDS = {"VALID": "valid", "SAME_UPPER": "same", "SAME_LOWER": "same_lower"}


def _padding(auto_pad: str | None, pads: Any, rank: int) -> Any:
    """ONNX's two padding attributes as this package's one parameter."""
    if auto_pad not in (None, "", "NOTSET"):
        return _WORDS[auto_pad]
    if pads is None:
        return 0
    return tuple((int(b), int(a)) for b, a in zip(pads[:rank], pads[rank:], strict=True))


def _check_kernel(name: str, kernel_shape: Any, w: np.ndarray) -> None:
    if kernel_shape is not None and tuple(kernel_shape) != w.shape[2:]:
        raise ValueError(
            f"{name}: kernel_shape is {tuple(kernel_shape)}, but W has shape {w.shape}"
        )


def _function(name: str, x: np.ndarray) -> Any:
    rank = x.ndim - 2
    if rank not in (1, 2, 3):
        raise ValueError(f"{name}: X must have 3, 4 or 5 axes, got shape {x.shape}")
    return getattr(convolution, f"{name}{rank}d")


def _convolve(name: str, x: np.ndarray, w: np.ndarray, bias: Any, attributes: dict, **more: Any):
    """Conv, ConvInteger and QLinearConv: the filters of a model are arranged once."""
    function = _function("conv", x)
    _check_kernel(name, attributes["kernel_shape"], w)
    groups = attributes["group"] or 1
    convolution.operands.check_groups(name, groups, w.shape[0])
    packed = filters.cached(w, w, groups, lambda: convolution.pack_filters(w, groups))
    return function(
        x,
        packed,
        bias,
        _each(attributes["strides"]),
        _padding(attributes["auto_pad"], attributes["pads"], x.ndim - 2),
        _each(attributes["dilations"]),
        groups,
        **more,
    )


def _each(values: Any) -> Any:
    """Strides or dilations, 1 where the model leaves them out."""
    return tuple(map(int, values)) if values else 1


def _zeros(x_zero_point: Any, w_zero_point: Any) -> dict[str, Any]:
    """Zero points as a convolution takes them: x's a number, w's only where it is not zero."""
    found: dict[str, Any] = {}
    if x_zero_point is not None:
        x_zero_point = np.asarray(x_zero_point)
        found["x_zero_point"] = int(x_zero_point.item()) if x_zero_point.size == 1 else x_zero_point
    if w_zero_point is not None and np.any(w_zero_point):
        found["w_zero_point"] = w_zero_point
    return found


class Conv(OpRun):
    op_domain = ""

    def _run(self, X, W, B=None, **attributes):  # noqa: N803
        return (_convolve("Conv", X, W, B, attributes),)


class ConvInteger(OpRun):
    op_domain = ""

    def _run(self, x, w, x_zero_point=None, w_zero_point=None, **attributes):
        zeros = _zeros(x_zero_point, w_zero_point)
        return (_convolve("ConvInteger", x, w, None, attributes, **zeros),)


class QLinearConv(OpRun):
    op_domain = ""

    def _run(
        self,
        x,
        x_scale,
        x_zero_point,
        w,
        w_scale,
        w_zero_point,
        y_scale,
        y_zero_point,
        B=None,  # noqa: N803
        **attributes,
    ):
        scale = np.float32(x_scale) * np.asarray(w_scale, np.float32) / np.float32(y_scale)
        requantised = quantised.REQUANTISED[y_zero_point.dtype.name]
        bound = requantised(
            scale=scale if scale.size > 1 else np.float32(scale.item()),
            zero=np.float32(y_zero_point.item()),
        )
        zeros = _zeros(x_zero_point, w_zero_point)
        return (_convolve("QLinearConv", x, w, B, attributes, epilogue=bound, **zeros),)


class ConvTranspose(OpRun):
    op_domain = ""

    def _run(self, X, W, B=None, **attributes):  # noqa: N803
        rank = X.ndim - 2
        name = _function("conv_transpose", X).__name__
        _check_kernel("ConvTranspose", attributes["kernel_shape"], W)
        padding = _padding(attributes["auto_pad"], attributes["pads"], rank)
        size = attributes["output_shape"]
        if size is not None:
            # The wanted size sets the padding; all but SAME_UPPER put an odd one before.
            size = list(size)[-rank:]
            padding = "same" if attributes["auto_pad"] == "SAME_UPPER" else "same_lower"
        y = functions.transpose(
            name,
            X,
            W,
            B,
            attributes["strides"] or 1,
            padding,
            attributes["output_padding"] or 0,
            attributes["group"] or 1,
            attributes["dilations"] or 1,
            size,
            keep=True,
        )
        return (y,)


class MatMul(OpRun):
    op_domain = ""

    def _run(self, A, B):  # noqa: N803
        return (np.asarray(gemm.matmul(A, B)),)


class MatMulInteger(OpRun):
    op_domain = ""

    def _run(self, A, B, a_zero_point=None, b_zero_point=None):  # noqa: N803
        return (quantised.product(A, B, a_zero_point, b_zero_point),)


class QLinearMatMul(OpRun):
    op_domain = ""

    def _run(self, a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
        sums = quantised.product(a, b, a_zero_point, b_zero_point)
        a_scale = quantised.rows(np.asarray(a_scale, np.float32), a)
        scale = a_scale * np.asarray(b_scale, np.float32) / np.float32(y_scale)
        return (quantised.requantise(sums, scale, y_zero_point),)


class Gemm(OpRun):
    op_domain = ""

    def _run(self, A, B, C=None, alpha=None, beta=None, transA=None, transB=None, **_):  # noqa: N803
        a, b = (A.T if transA else A), (B.T if transB else B)
        alpha, beta = (1.0 if v is None else v for v in (alpha, beta))
        if A.dtype.kind in "iu":
            alpha, beta = (int(v) if v == int(v) else v for v in (alpha, beta))
        if C is None:
            C, beta = np.zeros((), A.dtype), 0  # noqa: N806
        return (gemm.addmm(C, a, b, alpha=alpha, beta=beta),)


class Einsum(OpRun):
    op_domain = ""

    def _run(self, *inputs, equation=None):
        return (np.asarray(gemm.einsum(equation, *inputs)),)


class Col2Im(OpRun):
    op_domain = ""

    def _run(self, data, image_shape, block_shape, dilations=None, pads=None, strides=None):
        image, block = (tuple(int(n) for n in s) for s in (image_shape, block_shape))
        padding = _padding(None, pads, len(image))
        return (convolution.fold(data, image, block, dilations or 1, padding, strides or 1),)


class DeformConv(OpRun):
    op_domain = ""

    def _run(self, X, W, offset, B=None, mask=None, **attributes):  # noqa: N803
        _check_kernel("DeformConv", attributes["kernel_shape"], W)
        y = deformable.convolve(
            X,
            W,
            offset,
            B,
            mask,
            stride=attributes["strides"] or 1,
            padding=_padding(None, attributes["pads"], X.ndim - 2),
            dilation=attributes["dilations"] or 1,
            groups=attributes["group"] or 1,
            offset_groups=attributes["offset_group"] or 1,
        )
        return (y,)


class CausalConvWithState(OpRun):
    op_domain = ""

    def _run(self, input, weight, bias=None, past_state=None, activation=None):
        channels, _, taps = weight.shape
        if past_state is None:
            past_state = np.zeros((len(input), channels, taps - 1), input.dtype)
        x = np.concatenate([past_state, input], axis=2)
        y = convolution.conv1d(x, weight, bias, groups=channels)
        if activation in ("silu", "swish"):
            wide = y.astype(np.float32) if y.dtype.itemsize < 4 else y
            y = (wide / (1 + np.exp(-wide))).astype(y.dtype)
        elif activation not in (None, "none"):
            raise ValueError(f"CausalConvWithState: unknown activation {activation!r}")
        return y, x[:, :, x.shape[2] - (taps - 1) :].copy()


OPERATORS: tuple[Any, ...] = (
    Conv,
    ConvInteger,
    QLinearConv,
    ConvTranspose,
    MatMul,
    MatMulInteger,
    QLinearMatMul,
    Gemm,
    Einsum,
    Col2Im,
    DeformConv,
    CausalConvWithState,
)
