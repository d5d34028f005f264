"""K in parts, on request: for small outputs over a huge K, whose one chain feeds one core.

    a (M x K) = [ a0 | a1 | a2 ]     b (K x N) = [ b0 ; b1 ; b2 ]     parts of ceil(K / split_k)

    out = ((a0 b0) + (a1 b1)) + (a2 b2)      each part a chain, the sums in this order

The parts are a batch, so workers share them. The result depends on `split_k` and on nothing
else, and differs in rounding from the single chain; integers are the same. Partial results take
split_k times the output in the accumulator's type.
"""

from __future__ import annotations

import numpy as np


def checked(split_k, k: int) -> int:
    """split_k as a number of parts of k steps, or TypeError / ValueError."""
    if isinstance(split_k, bool) or not hasattr(split_k, "__index__"):
        raise TypeError(f"split_k must be an integer, got {split_k!r}")
    parts = split_k.__index__()
    if not 1 <= parts <= max(1, k):
        raise ValueError(f"split_k={parts}: expected 1 to {max(1, k)}, K is {k}")
    return parts


def product(a, b, out, split_k, accumulate=None, threads=None, kernel=None) -> None:
    """out = a @ b with K in `split_k` parts, each of ceil(K / split_k) steps but the last.

    a (*batch, M, K), b (*batch, K, N), out (*batch, M, N), as for `engine.product`.
    """
    from . import engine

    k = a.shape[-1]
    parts = checked(split_k, k)
    if a.dtype == bool:
        a, b = a.view(np.uint8), b.view(np.uint8)  # counts, which the last step compares with 0
    options = {"accumulate": accumulate, "threads": threads, "kernel": kernel}
    result = a.dtype if out.dtype == bool else out.dtype
    named = engine.accumulator(
        engine.element_type(a.dtype), engine.element_type(result), accumulate
    )
    wide = np.dtype(named.name)
    each = max(1, -(-k // parts))
    whole = k // each
    partials = np.empty((-(-k // each) or 1, *out.shape), wide)
    if whole:
        engine.product(_parts(a, -1, whole, each), _parts(b, -2, whole, each), partials[:whole],
                       **options)  # fmt: skip
    if whole < len(partials):
        rest = whole * each
        engine.product(a[..., rest:], b[..., rest:, :], partials[whole], **options)
    total = partials[0]
    with np.errstate(all="ignore"):
        for part in partials[1:]:
            total += part
        np.copyto(out, total, casting="unsafe")


def _parts(x: np.ndarray, axis: int, count: int, each: int) -> np.ndarray:
    """A view (count, *x.shape) with `each` steps along `axis`: slice i is part i of x."""
    shape = list(x.shape)
    shape[axis] = each
    return np.lib.stride_tricks.as_strided(
        x, (count, *shape), (each * x.strides[axis], *x.strides), writeable=False
    )
