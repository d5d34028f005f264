"""The stock library: common fused operations, each a few lines in the language of epilogues.

Forward ones take acc = a @ b; backward ones take acc = the gradient of what the forward one
returned (the product that makes it is the one they ride on), and compute the activation again
instead of reading a stored one. Operands may be scalars, row vectors (N,), column vectors (M, 1)
or tiles (M, N) wherever the text does not say otherwise.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from .activations import gelu_of, gelu_tanh_of, silu_of
from .backward import (
    bias_gradient,
    geglu_backward,
    gelu_backward,
    gelu_tanh_backward,
    leaky_relu_backward,
    relu_backward,
    residual_rmsnorm_backward,
    sigmoid_backward,
    silu_backward,
    swiglu_backward,
    tanh_backward,
)
from .contract import Epilogue, Packed, epilogue
from .words import (
    as_type,
    column_index,
    nearest,
    per_row,
    select,
    significant,
    uniform,
)
from .words import sigmoid as sigmoid_of

__all__ = [
    "alpha_beta",
    "bias",
    "bias_gradient",
    "clamp",
    "cross_entropy",
    "dequantised",
    "dropout",
    "gain_and_square",
    "geglu",
    "geglu_backward",
    "gelu",
    "gelu_backward",
    "gelu_tanh",
    "gelu_tanh_backward",
    "interleaved",
    "layernorm",
    "leaky_relu",
    "leaky_relu_backward",
    "quantise",
    "relu",
    "relu_backward",
    "residual",
    "residual_layernorm",
    "residual_rmsnorm",
    "residual_rmsnorm_backward",
    "rmsnorm",
    "rmsnorm_of_square",
    "rope",
    "rope_saving",
    "scale",
    "sigmoid",
    "sigmoid_backward",
    "silu",
    "silu_backward",
    "swiglu",
    "swiglu_backward",
    "swiglu_saving",
    "tanh",
    "tanh_backward",
]


# -- linear --------------------------------------------------------------------------------------


@epilogue
def alpha_beta(acc, alpha=None, beta=None, c=None):
    """alpha * acc + beta * c; what is left out is 1, and without c there is no sum."""
    x = acc if alpha is None else alpha * acc
    if c is None:
        return x
    return x + (c if beta is None else beta * c)


@epilogue
def bias(acc, bias):
    """acc + bias."""
    return acc + bias


@epilogue
def residual(acc, residual, bias=None):
    """acc (+ bias) + residual."""
    return residual + (acc if bias is None else acc + bias)


@epilogue
def scale(acc, row=None, column=None):
    """acc times one factor a row (M, 1), one a column (N,), or both."""
    x = acc if row is None else acc * row
    return x if column is None else x * column


@epilogue
def clamp(acc, low, high):
    """acc held between low and high."""
    return min(max(acc, low), high)


# -- activations ---------------------------------------------------------------------------------


@epilogue
def relu(acc, bias=None):
    """max(acc + bias, 0)."""
    return max(acc if bias is None else acc + bias, 0.0)


@epilogue
def leaky_relu(acc, slope=0.01, bias=None):
    """x where x >= 0, slope * x below, x = acc + bias."""
    x = acc if bias is None else acc + bias
    return x if x >= 0.0 else slope * x


@epilogue
def gelu(acc, bias=None):
    """x Phi(x) by erf, x = acc + bias."""
    return gelu_of(acc if bias is None else acc + bias)


@epilogue
def gelu_tanh(acc, bias=None):
    """GELU in its tanh form, x = acc + bias."""
    return gelu_tanh_of(acc if bias is None else acc + bias)


@epilogue
def silu(acc, bias=None):
    """x sigmoid(x), x = acc + bias."""
    return silu_of(acc if bias is None else acc + bias)


@epilogue
def tanh(acc, bias=None):
    """tanh(acc + bias)."""
    return math.tanh(acc if bias is None else acc + bias)


@epilogue
def sigmoid(acc, bias=None):
    """1 / (1 + exp(-x)), x = acc + bias."""
    return sigmoid_of(acc if bias is None else acc + bias)


@epilogue
def dropout(acc, seed, rate, bias=None, residual=None):
    """acc (+ bias) kept with probability 1 - rate and divided by it, else 0; then + residual.

    seed: an integer. The mask is a function of (seed, row, column): the backward pass calls this
    epilogue on the gradient with the same seed.
    """
    x = acc if bias is None else acc + bias
    kept = select(uniform(seed) >= rate, x / (1.0 - rate), 0.0)
    return kept if residual is None else kept + residual


# -- quantisation --------------------------------------------------------------------------------

_LIMITS = {
    "int8": (-128.0, 127.0),
    "uint8": (0.0, 255.0),
    "float8_e4m3fn": (-448.0, 448.0),
    "float8_e5m2": (-57344.0, 57344.0),
}
_FRACTION = {"float8_e4m3fn": 3, "float8_e5m2": 2}
_SMALLEST = {"float8_e4m3fn": 2.0**-9, "float8_e5m2": 2.0**-16}
ROUNDING = ("nearest", "floor", "ceil", "zero", "stochastic")


@functools.cache
def quantise(dtype: str = "int8", rounding: str = "nearest") -> Epilogue:
    """acc / scale + zero_point, rounded and held to the range of `dtype`, as an epilogue
    (acc, scale, zero_point=None), with `seed` after scale where rounding is 'stochastic'.

    dtype: int8, uint8, float8_e4m3fn or float8_e5m2; rounding: 'nearest' (ties to even),
    'floor', 'ceil', 'zero' or 'stochastic' (up with the probability of the remainder).
    """
    if dtype not in _LIMITS:
        raise ValueError(f"quantise: dtype must be one of {', '.join(_LIMITS)}, got {dtype!r}")
    if rounding not in ROUNDING:
        raise ValueError(f"quantise: rounding must be one of {ROUNDING}, got {rounding!r}")
    low, high = _LIMITS[dtype]
    fraction, smallest = _FRACTION.get(dtype, -1), _SMALLEST.get(dtype, 1.0)

    def rounded(x, draw):
        if rounding == "stochastic":
            return math.floor(x + draw)
        if rounding == "floor":
            return math.floor(x)
        if rounding == "ceil":
            return math.ceil(x)
        return nearest(x) if rounding == "nearest" else math.trunc(x)

    def to_grid(acc, scale, zero_point, draw):
        x = acc / scale
        x = x if zero_point is None else x + zero_point
        x = min(max(x, low), high)
        if fraction < 0:
            return as_type(min(max(rounded(x, draw), low), high), dtype)
        # The spacing of representable numbers around x, an exact power of two.
        step = max(significant(abs(x), 0) * 2.0**-fraction, smallest)
        return as_type(min(max(rounded(x / step, draw) * step, low), high), dtype)

    def quantised(acc, scale, zero_point=None):
        return to_grid(acc, scale, zero_point, 0.0)

    def drawn(acc, scale, seed, zero_point=None):
        return to_grid(acc, scale, zero_point, uniform(seed))

    return epilogue(drawn if rounding == "stochastic" else quantised)


# -- gates and rotations (pairs of adjacent columns) ---------------------------------------------


@epilogue
def swiglu(acc_even, acc_odd):
    """silu(gate) * up of pairs (gate, up): (M, N) -> (M, N / 2)."""
    return silu_of(acc_even) * acc_odd


@epilogue
def swiglu_saving(acc_even, acc_odd, r=None):
    """swiglu, and 'pairs': the (gate, up) themselves, for the backward pass.

    r (M, 1): the scale of a deferred RMSNorm, applied to both first.
    """
    gate, up = (acc_even, acc_odd) if r is None else (acc_even * r, acc_odd * r)
    return {"out": silu_of(gate) * up, "pairs": (gate, up)}


@epilogue
def geglu(acc_even, acc_odd):
    """gelu(gate) * up of pairs (gate, up): (M, N) -> (M, N / 2)."""
    return gelu_of(acc_even) * acc_odd


def _turned(x, y, cos, sin, pairs):
    turned = x * cos + y * sin, y * cos - x * sin
    if pairs is None:
        return turned
    inside = column_index() < pairs
    return select(inside, turned[0], x), select(inside, turned[1], y)


@epilogue
def rope(acc_even, acc_odd, cos, sin, pairs=None):
    """Pairs turned: (x cos + y sin, -x sin + y cos). cos, sin: (M, N / 2), or what broadcasts.

    pairs: only the first `pairs` pairs of each row are turned (the query and key columns).
    Backward: the same with -sin.
    """
    return _turned(acc_even, acc_odd, cos, sin, pairs)


@epilogue
def rope_saving(acc_even, acc_odd, cos, sin, r=None, pairs=None):
    """rope, and 'pairs': what was turned. r (M, 1): the scale of a deferred RMSNorm, first."""
    x, y = (acc_even, acc_odd) if r is None else (acc_even * r, acc_odd * r)
    return {"out": _turned(x, y, cos, sin, pairs), "pairs": (x, y)}


# -- normalisation, moved behind the product -----------------------------------------------------


@epilogue
def rmsnorm(acc, r):
    """The scale of an RMSNorm applied behind the product: acc * r, r = rsqrt(mean square)."""
    return acc * r


@epilogue
def layernorm(acc, inverse, shift, weights, offset):
    """A LayerNorm applied behind the product of h * gamma with W.

    inverse (M, 1): 1 / sigma; shift (M, 1): mu / sigma; weights (N,): gamma @ W; offset (N,):
    beta @ W + b. Result: inverse * acc - shift * weights + offset.
    """
    return inverse * acc - shift * weights + offset


@functools.cache
def residual_rmsnorm(block: int = 128) -> Epilogue:
    """D = acc + residual; 'square': partial mean squares of D; 'normed': D * gamma."""

    def residual_partial_rmsnorm(acc, residual, gamma):
        d = acc + residual
        return {"out": d, "square": per_row(d * d * (1.0 / block), "add", block),
                "normed": d * gamma}  # fmt: skip

    return epilogue(residual_partial_rmsnorm)


@functools.cache
def residual_layernorm(block: int = 128) -> Epilogue:
    """D = acc + residual; 'sum', 'square': partial sums of D and of D^2; 'normed': D * gamma.

    With mean = sum / N and var = square / N - mean^2 the next product takes `layernorm`.
    """

    def residual_partial_layernorm(acc, residual, gamma):
        d = acc + residual
        return {"out": d, "sum": per_row(d, "add", block), "square": per_row(d * d, "add", block),
                "normed": d * gamma}  # fmt: skip

    return epilogue(residual_partial_layernorm)


@functools.cache
def cross_entropy(block: int = 128) -> Epilogue:
    """Logits acc (* r); 'lse': their log-sum-exp by block; 'target': the logit of the target."""

    def partial_cross_entropy(acc, target, r=None):
        logit = acc if r is None else acc * r
        chosen = select(column_index() == target, logit, 0.0)
        return {"out": logit, "lse": per_row(logit, "log_sum_exp", block),
                "target": per_row(chosen, "add", None)}  # fmt: skip

    return epilogue(partial_cross_entropy)


# -- packing programs ------------------------------------------------------------------------------


@epilogue
def gain_and_square(acc, gamma):
    """On A: element * gamma (K,), and 'square' (M, 1): the sum of squares of each row.

    RMSNorm and product in one: the statistic is complete when the epilogue runs.
    """
    return {"out": acc * gamma, "square": per_row(acc * acc, "add", None)}


@epilogue
def rmsnorm_of_square(acc, square, k, eps=1e-6):
    """acc / sqrt(square / k + eps); square: the statistic of `gain_and_square`."""
    return acc / math.sqrt(square / k + eps)


@epilogue
def _side_by_side(acc_even, acc_odd, first, second):
    return first, second


def interleaved(first: Any, second: Any) -> Packed:
    """B (K, 2 N) whose even columns are `first` (K, N) and odd ones `second`, interleaved while
    it is packed: weights may stay as they are, [gate | up]."""
    shape = (*np.shape(first)[:-1], 2 * np.shape(first)[-1])
    return Packed(None, _side_by_side(first=first, second=second), shape)


@epilogue
def _dequantised(acc, q, scale, zero_point=None):
    return (q if zero_point is None else q - zero_point) * scale


def dequantised(q: Any, scale: Any, zero_point: Any = None, shape: Any = None) -> Packed:
    """B = (q - zero_point) * scale, made while it is packed.

    q: integers (K, N), or `Nibbles` of shape (ceil(K / 2), N), for which `shape` = (K, N) is
    given; scale, zero_point: scalar, one a column (N,), or one a group of rows and column (G, N)
    where G divides K.
    """
    program = _dequantised(q=q, scale=scale, zero_point=zero_point)
    return Packed(None, program, np.shape(q) if shape is None else shape)
