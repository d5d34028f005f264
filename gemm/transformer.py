"""A LLaMA-style block, forward and backward, in which all but attention's softmax is a product
with an epilogue: norms, rotations, gates, residuals and their gradients need no pass of their own.

    x  --+-- RMSNorm -- Wqkv -- RoPE -- attention -- Wo --(+)-- x2
         +-------------------------------------------------+
    x2 --+-- RMSNorm -- [Wg Wu] -- SwiGLU -- Wd ----------(+)-- y
         +-------------------------------------------------+

    forward                                   backward
    qkv, by r1, turned                        dz, silu(g) u again, <z, dz>    dy Wd^T
    x2 = attention Wo + x, x2 g2, sum x2^2    dx2, x-hat g2, d g2             dz [Wg Wu]^T
    silu(g) u, by r2; z = (g, u)              dq, dk turned back, <q, dq>     inside attention
    y = (silu(g) u) Wd + x2                   dx, x-hat g1, d g1              dqkv Wqkv^T

An RMSNorm is one number a row, so it is applied behind the product (r), and its gradient needs
one more (s), the mean of (d x-hat)(x-hat), which the product before sums: <dy, y> is the same
number, and a rotation does not change it. Source: Guo et al., CODA (arXiv 2605.19269); the
recomputed activation: Korthikanti et al. (2022).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

import gemm
from gemm.epilogues import stock
from gemm.epilogues.words import per_row

BLOCK = 128


@dataclass
class Block:
    """The weights of a block of width d, with `heads` heads and F hidden units; also gradients.

    gamma1, gamma2 (d,); qkv (d, 3 d): queries, keys, values, head after head, pairs of a rotation
    adjacent; out (d, d); gate_up (d, 2 F): gate and up in adjacent columns; down (F, d).
    """

    gamma1: Any
    qkv: Any
    out: Any
    gamma2: Any
    gate_up: Any
    down: Any
    heads: int
    eps: float = 1e-6

    @property
    def weights(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)[:6]}


@dataclass
class Saved:
    """What the backward pass reads. No activation: it is computed again."""

    x: Any
    r1: Any
    qkv: Any
    weights: Any
    attended: Any
    x2: Any
    r2: Any
    z: Any
    cos: Any
    sin: Any


@gemm.epilogue
def _turn_back(acc_even, acc_odd, turned, cos, sin):
    """The gradient of a rotation, and the inner product that RMSNorm's gradient needs."""
    x, y = turned
    inner = per_row(acc_even * x + acc_odd * y, "add", None)
    return {"out": (acc_even * cos - acc_odd * sin, acc_odd * cos + acc_even * sin), "inner": inner}


@gemm.epilogue
def _with_inner(acc, value):
    return {"out": acc, "inner": per_row(acc * value, "add", None)}


def _scale(square: Any, width: int, eps: float) -> Any:
    return 1 / np.sqrt(square / width + square.dtype.type(eps))


def _heads(x: Any, heads: int) -> Any:
    """(T, heads * size) as (heads, T, size), a view."""
    return x.reshape(len(x), heads, -1).swapaxes(0, 1)


def _split(qkv: Any, heads: int) -> tuple[Any, Any, Any]:
    width = qkv.shape[1] // 3
    q, k, v = (_heads(qkv[:, i * width : (i + 1) * width], heads) for i in range(3))
    return q, k, v


def attention(qkv: Any, heads: int, **options: Any) -> tuple[Any, Any]:
    """Causal attention of qkv (T, 3 d): (result (T, d), weights (heads, T, T))."""
    q, k, v = _split(qkv, heads)
    scale = float(q.shape[-1]) ** -0.5
    scores = gemm.matmul(q, k.swapaxes(-1, -2), epilogue=stock.alpha_beta(alpha=scale), **options)
    scores = scores.astype(np.promote_types(np.float32, _wide(scores.dtype)))
    scores[:, ~np.tri(len(qkv), dtype=bool)] = -np.inf
    scores -= scores.max(-1, keepdims=True)
    weights = np.exp(scores)
    weights = (weights / weights.sum(-1, keepdims=True)).astype(qkv.dtype)
    result = np.empty((len(qkv), qkv.shape[1] // 3), qkv.dtype)
    gemm.matmul(weights, v, _heads(result, heads), **options)
    return result, weights


def _wide(dtype: np.dtype) -> np.dtype:
    """The dtype in which sums over values of `dtype` are made."""
    return np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)


def _attention_backward(block: Block, saved: Saved, d_attended: Any, options: dict[str, Any]):
    """(gradient of qkv before its rotation, <dqkv, qkv> of each row)."""
    q, k, v = _split(saved.qkv, block.heads)
    weights, scale = saved.weights, float(q.shape[-1]) ** -0.5
    upper = _heads(d_attended, block.heads)
    d_qkv = np.empty_like(saved.qkv)
    dq, dk, dv = _split(d_qkv, block.heads)
    wide = _wide(weights.dtype)
    d_weights = gemm.matmul(upper, v.swapaxes(-1, -2), **options).astype(wide)
    inner = (d_weights * weights.astype(wide)).sum(-1, keepdims=True)
    d_scores = (weights.astype(wide) * (d_weights - inner) * scale).astype(weights.dtype)
    turn = {"cos": saved.cos, "sin": saved.sin}
    parts = (
        gemm.matmul(d_scores, k, {"out": dq}, epilogue=_turn_back(turned=q, **turn), **options),
        gemm.matmul(d_scores.swapaxes(-1, -2), q, {"out": dk},
                    epilogue=_turn_back(turned=k, **turn), **options),
        gemm.matmul(weights.swapaxes(-1, -2), upper, {"out": dv},
                    epilogue=_with_inner(value=v), **options),
    )  # fmt: skip
    return d_qkv, sum(part["inner"].sum(0) for part in parts)


def forward(block: Block, x: Any, cos: Any, sin: Any, **options: Any) -> tuple[Any, Saved]:
    """(y, what `backward` needs) for x (T, d); cos, sin (T, d / heads / 2): the rotations.

    x and the weights have one dtype, float32, float64, float16 or bfloat16; sums and the two
    numbers a row are kept in float32 (float64). options: threads, kernel.
    """
    width = x.shape[1]
    normed = gemm.Packed(x, stock.gain_and_square(gamma=block.gamma1))
    turns: tuple = np.tile(cos, 2 * block.heads), np.tile(sin, 2 * block.heads)
    # Values are not turned: by cos = 1 and sin = 0 in their columns.
    half = width // 2
    turns = tuple(
        np.concatenate([t, np.full((len(x), half), fill, t.dtype)], 1)
        for t, fill in zip(turns, (1, 0), strict=True)
    )
    program = _norm_and_turn(square="square", k=width, eps=block.eps, cos=turns[0], sin=turns[1])
    first = gemm.matmul(normed, block.qkv, epilogue=program, **options)
    qkv, r1 = first["out"], _scale(first["square"], width, block.eps)
    attended, weights = attention(qkv, block.heads, **options)
    second = gemm.matmul(attended, block.out, epilogue=stock.residual_rmsnorm(BLOCK)(
        residual=x, gamma=block.gamma2), **options)  # fmt: skip
    r2 = _scale(second["square"].sum(-1, keepdims=True) * BLOCK, width, block.eps)
    third = gemm.matmul(
        second["normed"], block.gate_up, epilogue=stock.swiglu_saving(r=r2), **options
    )
    y = gemm.matmul(
        third["out"], block.down, epilogue=stock.residual(residual=second["out"]), **options
    )
    saved = Saved(x, r1, qkv, weights, attended, second["out"], r2, third["pairs"], cos, sin)
    return y, saved


@gemm.epilogue
def _norm_and_turn(acc_even, acc_odd, square, k, eps, cos, sin):
    r = gemm.rsqrt(square / k + eps)
    x, y = acc_even * r, acc_odd * r
    return x * cos + y * sin, y * cos - x * sin


def backward(block: Block, saved: Saved, dy: Any, **options: Any) -> tuple[Any, Block]:
    """(gradient of x, gradients of the weights as a Block) from the gradient of y (T, d)."""
    width = dy.shape[1]
    rmsnorm = stock.residual_rmsnorm_backward(BLOCK)
    gate = gemm.matmul(
        dy, block.down.T, epilogue=stock.swiglu_backward(BLOCK)(z=saved.z), **options
    )
    d_down = gemm.matmul(gate["activation"].T, dy, **options)
    s2 = gate["inner"].sum(-1, keepdims=True) * (BLOCK / width)
    middle = gemm.matmul(gate["out"], block.gate_up.T, epilogue=rmsnorm(
        gradient=dy, x=saved.x2, r=saved.r2, s=s2, gamma=block.gamma2), **options)  # fmt: skip
    d_gate_up = gemm.matmul(middle["normed"].T, gate["out"], **options)
    dx2 = middle["out"]
    d_out = gemm.matmul(saved.attended.T, dx2, **options)
    d_attended = gemm.matmul(dx2, block.out.T, **options)
    d_qkv, inner = _attention_backward(block, saved, d_attended, options)
    first = gemm.matmul(d_qkv, block.qkv.T, epilogue=rmsnorm(
        gradient=dx2, x=saved.x, r=saved.r1, s=inner / width, gamma=block.gamma1),
        **options)  # fmt: skip
    d_weights = gemm.matmul(first["normed"].T, d_qkv, **options)
    gamma1, gamma2 = (part["d_gamma"].sum(0) for part in (first, middle))
    gradients = Block(gamma1, d_weights, d_out, gamma2, d_gate_up, d_down, block.heads, block.eps)
    return first["out"], gradients
