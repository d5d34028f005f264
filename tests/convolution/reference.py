"""A plain loop convolution in Python integers or floats: the definition the tests compare with."""

import itertools

import numpy as np


def loop_convolution(x, w, geometry, groups):
    """sum over (kernel axes, c) of x[n, c, o * stride + k * dilation - before] * w[o, c, k]."""
    filters, channels = w.shape[:2]
    per_group = filters // groups
    out = np.zeros((len(x), filters, *geometry.output), np.result_type(x, w))
    for n, f in np.ndindex(len(x), filters):
        first = f // per_group * channels
        for o in np.ndindex(*geometry.output):
            total = out.dtype.type(0)
            for k in np.ndindex(*geometry.kernel):
                i = [
                    a * s + b * d - p
                    for a, s, b, d, p in zip(
                        o, geometry.stride, k, geometry.dilation, geometry.before, strict=True
                    )
                ]
                if all(0 <= j < e for j, e in zip(i, geometry.input, strict=True)):
                    for c in range(channels):
                        total += x[(n, first + c, *i)] * w[(f, c, *k)]
            out[(n, f, *o)] = total
    return out


def loop_transposed(x, w, geometry, groups):
    """Every input adds its value times the filter around its position; w is (C, O / groups,
    *kernel).
    """
    channels, per_group = w.shape[:2]
    out = np.zeros((len(x), per_group * groups, *geometry.input), np.result_type(x, w))
    share = channels // groups
    for n, c in np.ndindex(len(x), channels):
        for o, k in itertools.product(np.ndindex(*geometry.output), np.ndindex(*geometry.kernel)):
            i = [
                a * s + b * d - p
                for a, s, b, d, p in zip(
                    o, geometry.stride, k, geometry.dilation, geometry.before, strict=True
                )
            ]
            if all(0 <= j < e for j, e in zip(i, geometry.input, strict=True)):
                first = c // share * per_group
                index = (n, slice(first, first + per_group), *i)
                out[index] += x[(n, c, *o)] * w[(c, slice(None), *k)]
    return out
