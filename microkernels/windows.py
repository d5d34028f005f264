"""Words of depthwise convolutions: tiles whose rows read overlapping pixels, each loaded once.

window_accumulate    lanes are channels, rows outputs side by side: a window of pixels slides
stencil_accumulate   lanes are outputs side by side, rows outputs below each other: a window of rows

    stride 1, three taps       pixel   p0  p1  p2  p3  p4
                               row 0   w0  w1  w2
                               row 1       w0  w1  w2
                               row 2           w0  w1  w2

Every element is one chain over the taps in order; what lies outside the image is read elsewhere
and multiplied like the rest.
"""

from __future__ import annotations

import numpy as np

from .fused import fused_multiply_add
from .vocabulary import computed, load, load_lanes, shift, storage


def window_accumulate(t, a, a_step, low, high, nothing, w, w_step, taps, step, n):
    """t[i, j] = fma(x[i * step + v, j], w[v, j], t[i, j]) for v = 0 .. taps - 1 in turn.

    t: one vector a row. x[p]: n adjacent values `p * a_step` bytes from a where low <= p < high,
    else those at `nothing`; w[v]: n adjacent values `v * w_step` bytes from w; lanes from n on
    repeat lane n - 1. taps, step: constants. Real types. Cost: rows * taps fused multiply-adds,
    (rows - 1) * step + taps loads and as many for w.
    """
    rows, lanes = t.shape
    t = t.copy()
    for v in range(taps):
        factors = load_lanes(shift(w, v * w_step), lanes, n)
        for i in range(rows):
            p = i * step + v
            at = shift(a, p * a_step) if low <= p < high else nothing
            t[i] = fused_multiply_add(load_lanes(at, lanes, n), factors, t[i])
    return t


def stencil_accumulate(t, a, row_step, low, high, left, right, nothing, w, w_step, tall, wide,
                       down, along):  # fmt: skip
    """t[i, j] = fma(x[i * down + u, j * along + v], w[u, v], t[i, j]) for u < tall, v < wide in
    turn, v innermost.

    t: one vector a row. x[r, c]: element c of the row `r * row_step` bytes from a where low <= r <
    high and left <= c < right, else element c of the row at `nothing`, which has lanes * along +
    wide - 1 alike; w[u, v]: one value `(u * wide + v) * w_step` bytes from w. tall, wide, down,
    along (1 or 2): constants. Where right is lanes * along + wide - 1 all of that may be read. Real
    types. Cost: rows * tall * wide fused multiply-adds; for each of (rows - 1) * down + tall rows
    `wide` loads, twice as many and shuffles where along is 2.
    """
    rows, lanes = t.shape
    t = t.copy()
    outside = load(nothing)

    def row(r, v):
        values = np.full(lanes, outside, computed(a.dtype))
        places = v + along * np.arange(lanes)
        inside = (places >= left) & (places < right) & bool(low <= r < high)
        if inside.any():
            first, last = places[inside][[0, -1]]
            at = shift(a, r * row_step + first * a.dtype.size)
            run = at.view(last - first + 1, storage(a.dtype))[::along]
            values[inside] = run.astype(computed(a.dtype))
        return values

    for u in range(tall):
        for v in range(wide):
            factors = np.repeat(np.asarray([load(shift(w, (u * wide + v) * w_step))]), lanes)
            for i in range(rows):
                t[i] = fused_multiply_add(row(i * down + u, v), factors, t[i])
    return t
