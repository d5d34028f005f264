"""Backward epilogues: acc is the gradient of what the forward one returned.

They ride on the product that makes that gradient, and compute the activation again instead of
reading a stored one. stock.py, which exports them, says what operands may be.
"""

from __future__ import annotations

import functools
import math

from .activations import (
    gelu_of,
    gelu_slope_at,
    gelu_tanh_of,
    gelu_tanh_slope_at,
    silu_of,
    silu_slope_at,
)
from .contract import Epilogue, epilogue
from .words import per_column, per_row, select, sigmoid


@epilogue
def relu_backward(acc, x):
    """acc where the pre-activation x > 0, else 0."""
    return select(x > 0.0, acc, 0.0)


@epilogue
def leaky_relu_backward(acc, x, slope=0.01):
    """acc where the pre-activation x >= 0, slope * acc below, and 'activation' = leaky_relu(x)."""
    above = x >= 0.0
    return {"out": select(above, acc, slope * acc), "activation": select(above, x, slope * x)}


@epilogue
def gelu_backward(acc, x):
    """acc * gelu'(x), and 'activation' = gelu(x) computed again for the weight gradient."""
    return {"out": acc * gelu_slope_at(x), "activation": gelu_of(x)}


@epilogue
def gelu_tanh_backward(acc, x):
    """acc * gelu_tanh'(x), and 'activation' = gelu_tanh(x)."""
    return {"out": acc * gelu_tanh_slope_at(x), "activation": gelu_tanh_of(x)}


@epilogue
def silu_backward(acc, x):
    """acc * silu'(x), and 'activation' = silu(x)."""
    return {"out": acc * silu_slope_at(x), "activation": silu_of(x)}


@epilogue
def tanh_backward(acc, x):
    """acc * (1 - tanh(x)^2), and 'activation' = tanh(x)."""
    t = math.tanh(x)
    return {"out": acc * (1.0 - t * t), "activation": t}


@epilogue
def sigmoid_backward(acc, x):
    """acc * s (1 - s), and 'activation' = s = sigmoid(x)."""
    s = sigmoid(x)
    return {"out": acc * s * (1.0 - s), "activation": s}


@functools.cache
def swiglu_backward(block: int = 128) -> Epilogue:
    """acc = gradient of silu(G) U; z (M, 2 N): saved pairs (G, U).

    out: pairs (dG, dU), (M, 2 N); 'activation': silu(G) U computed again; 'inner': partial means
    of G dG + U dU, the statistic of the RMSNorm before.
    """

    def partial_swiglu_bwd(acc, z):
        gate, up = z
        s = sigmoid(gate)
        silu = gate * s
        d_up = acc * silu
        d_gate = acc * up * (s + silu * (1.0 - s))
        inner = per_row((gate * d_gate + up * d_up) * (1.0 / block), "add", block)
        return {"out": (d_gate, d_up), "activation": silu * up, "inner": inner}

    return epilogue(partial_swiglu_bwd)


@functools.cache
def geglu_backward(block: int = 128) -> Epilogue:
    """swiglu_backward for gelu(G) U."""

    def partial_geglu_bwd(acc, z):
        gate, up = z
        gelu = gelu_of(gate)
        d_up = acc * gelu
        d_gate = acc * up * gelu_slope_at(gate)
        inner = per_row((gate * d_gate + up * d_up) * (1.0 / block), "add", block)
        return {"out": (d_gate, d_up), "activation": gelu * up, "inner": inner}

    return epilogue(partial_geglu_bwd)


@functools.cache
def residual_rmsnorm_backward(block: int = 128) -> Epilogue:
    """Backward of RMSNorm and residual on the product that makes the gradient of h * gamma * r.

    x: the norm's input; r (M, 1): its rsqrt; s (M, 1): the mean of (d x-hat)(x-hat), made one
    product earlier; gamma (N,); out: gradient (residual stream) + (acc gamma - x-hat s) r;
    'normed': x-hat gamma, for the weight gradient; 'd_gamma': column sums of acc x-hat.
    """

    def residual_partial_rmsnorm_bwd(acc, gradient, x, r, s, gamma):
        hat = x * r
        return {"out": gradient + (acc * gamma - hat * s) * r, "normed": hat * gamma,
                "d_gamma": per_column(acc * hat, "add", block)}  # fmt: skip

    return epilogue(residual_partial_rmsnorm_bwd)


@functools.cache
def bias_gradient(block: int | None = None) -> Epilogue:
    """out: acc; 'd_bias': its column sums by blocks of rows (None: all rows)."""

    def with_bias_gradient(acc):
        return {"out": acc, "d_bias": per_column(acc, "add", block)}

    return epilogue(with_bias_gradient)
