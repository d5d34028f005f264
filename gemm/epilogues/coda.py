"""The ten fused kernels of CODA (Guo et al., arXiv 2605.19269), each one product.

A (M, K), B (K, N), D = A @ B. Weights with gates or rotations have their pairs in adjacent
columns: (gate, up) or (x, y). r (M, 1) is an RMSNorm's 1 / sqrt(mean square), applied here, after
the product, because it is one number a row. `block` columns (or rows) make a partial; the few
partials are summed by the caller. `options`: threads, kernel, accumulate, out.
"""

from __future__ import annotations

from typing import Any

import gemm

from . import stock
from .contract import Epilogue


def _run(a: Any, b: Any, program: Epilogue, options: dict[str, Any], **operands: Any) -> Any:
    return gemm.matmul(a, b, epilogue=program(**operands), **options)


def gemm_residual_partial_rmsnorm(a, b, c, gamma, block=128, **options):
    """out: D = A B + C; square: means of D^2 by block, (M, ceil(N / block)) in the accumulator's
    type, a ragged last block divided by `block` too; normed: D * gamma."""
    return _run(a, b, stock.residual_rmsnorm(block), options, residual=c, gamma=gamma)


def gemm_rmsnorm(a, b, r, **options):
    """(A B) * r."""
    return _run(a, b, stock.rmsnorm, options, r=r)


def gemm_swiglu(a, b, **options):
    """out: silu(g) u of the pairs (g, u) of D, (M, N / 2); pairs: D."""
    return _run(a, b, stock.swiglu_saving, options)


def gemm_rmsnorm_swiglu(a, b, r, **options):
    """The same of D = (A B) * r."""
    return _run(a, b, stock.swiglu_saving, options, r=r)


def gemm_rope(a, b, cos, sin, pairs=None, **options):
    """out: the pairs of D turned, the first `pairs` of each row; pairs: D. Backward: -sin."""
    return _run(a, b, stock.rope_saving, options, cos=cos, sin=sin, pairs=pairs)


def gemm_rmsnorm_rope(a, b, r, cos, sin, pairs=None, **options):
    """The same of D = (A B) * r."""
    return _run(a, b, stock.rope_saving, options, cos=cos, sin=sin, r=r, pairs=pairs)


def gemm_partial_cross_entropy(a, b, target, block=128, **options):
    """out: logits; lse: their log-sum-exp by block; target: the logit of column target[m], (M, 1).

    target (M, 1): integers. The loss of row m is logsumexp(lse[m]) - target[m]."""
    return _run(a, b, stock.cross_entropy(block), options, target=target)


def gemm_rmsnorm_partial_cross_entropy(a, b, r, target, block=128, **options):
    """The same of logits (A B) * r."""
    return _run(a, b, stock.cross_entropy(block), options, target=target, r=r)


def gemm_partial_swiglu_bwd(a, b, z, block=128, **options):
    """D = A B = dO, the gradient of silu(G) U. out: pairs (dG, dU), (M, 2 N); activation:
    silu(G) U; inner: means of G dG + U dU by block. z (M, 2 N): the saved pairs (G, U)."""
    return _run(a, b, stock.swiglu_backward(block), options, z=z)


def gemm_residual_partial_rmsnorm_bwd(a, b, gradient, x, r, s, gamma, block=128, **options):
    """D = A B. out: gradient + (D gamma - xhat s) r, xhat = x r; normed: xhat gamma; d_gamma:
    column sums of D xhat by block of rows, (ceil(M / block), N)."""
    return _run(a, b, stock.residual_rmsnorm_backward(block), options,
                gradient=gradient, x=x, r=r, s=s, gamma=gamma)  # fmt: skip


__all__ = [name for name in dir() if name.startswith("gemm_")]
