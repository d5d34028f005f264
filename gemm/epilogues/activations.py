"""Activations and their slopes as functions of one value, for epilogues forward and backward."""

from __future__ import annotations

import math

from .words import sigmoid

SQRT_HALF = 0.7071067811865476
SQRT_2_OVER_PI = 0.7978845608028654
GELU_CUBE = 0.044715
TWO_OVER_SQRT_TAU = 0.3989422804014327  # 1 / sqrt(2 pi)


def gelu_of(x):
    return 0.5 * x * (1.0 + math.erf(x * SQRT_HALF))


def gelu_tanh_of(x):
    return 0.5 * x * (1.0 + math.tanh(SQRT_2_OVER_PI * (x + GELU_CUBE * x * x * x)))


def silu_of(x):
    return x * sigmoid(x)


def gelu_slope_at(x):
    density = TWO_OVER_SQRT_TAU * math.exp(-0.5 * x * x)
    return 0.5 * (1.0 + math.erf(x * SQRT_HALF)) + x * density


def gelu_tanh_slope_at(x):
    t = math.tanh(SQRT_2_OVER_PI * (x + GELU_CUBE * x * x * x))
    inner = SQRT_2_OVER_PI * (1.0 + 3.0 * GELU_CUBE * x * x)
    return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner


def silu_slope_at(x):
    s = sigmoid(x)
    return s + x * s * (1.0 - s)
