"""The transformer block against finite differences and PyTorch's autograd."""

from dataclasses import replace

import numpy as np
import pytest

from gemm import transformer

T, D, F, HEADS = 7, 16, 20, 2
NAMES = ("gamma1", "qkv", "out", "gamma2", "gate_up", "down")
SHAPES = ((D,), (D, 3 * D), (D, D), (D,), (D, 2 * F), (F, D))


def make(dtype, seed=0):
    rng = np.random.default_rng(seed)
    weights = [
        (1 + 0.1 * rng.standard_normal(s) if len(s) == 1 else rng.standard_normal(s) / s[0] ** 0.5)
        .astype(dtype)
        for s in SHAPES
    ]  # fmt: skip
    block = transformer.Block(*weights, heads=HEADS)
    x, dy = (rng.standard_normal((T, D)).astype(dtype) for _ in range(2))
    angle = np.arange(T)[:, None] * 10.0 ** -np.linspace(0, 2, D // HEADS // 2)
    kind = np.float64 if dtype == "f8" else np.float32
    return block, x, dy, np.cos(angle).astype(kind), np.sin(angle).astype(kind)


def plain(block, x, cos, sin):
    """The block as a formula, in NumPy."""

    def norm(x, gamma):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + block.eps) * gamma

    def turn(x):
        a, b = x[..., ::2], x[..., 1::2]
        return np.stack([a * cos + b * sin, b * cos - a * sin], -1).reshape(x.shape)

    q, k, v = np.split(norm(x, block.gamma1) @ block.qkv, 3, 1)
    q, k, v = (y.reshape(T, HEADS, -1).swapaxes(0, 1) for y in (q, k, v))
    scores = turn(q) @ turn(k).swapaxes(-1, -2) / np.sqrt(D // HEADS)
    scores[:, ~np.tri(T, dtype=bool)] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    x2 = (weights @ v).swapaxes(0, 1).reshape(T, D) @ block.out + x
    z = norm(x2, block.gamma2) @ block.gate_up
    gate, up = z[:, ::2], z[:, 1::2]
    return (gate / (1 + np.exp(-gate)) * up) @ block.down + x2


def test_values_and_finite_differences_in_plain_python():
    block, x, dy, cos, sin = make("f8")
    y, saved = transformer.forward(block, x, cos, sin, kernel="reference")
    np.testing.assert_allclose(y, plain(block, x, cos, sin), rtol=1e-11, atol=1e-11)
    dx, gradients = transformer.backward(block, saved, dy, kernel="reference")
    rng, step = np.random.default_rng(1), 1e-5

    def slope(change):
        return ((plain(*change(step)) - plain(*change(-step))) * dy).sum() / (2 * step)

    for name, got in {"x": dx, **gradients.weights}.items():
        base = x if name == "x" else getattr(block, name)
        for _ in range(3):
            at = tuple(rng.integers(0, size) for size in base.shape)

            def change(h, name=name, base=base, at=at):
                moved = base.copy()
                moved[at] += h
                if name == "x":
                    return block, moved, cos, sin
                return replace(block, **{name: moved}), x, cos, sin

            want = slope(change)
            assert abs(got[at] - want) < 1e-7 * max(1, abs(want)), f"{name}{at}"


def by_torch(torch, block, x, dy, cos, sin, dtype):
    """y and all gradients by PyTorch's autograd in `dtype`, as float64 arrays."""

    def tensor(array, kind=dtype):
        return torch.tensor(array.astype("f8")).to(kind)

    leaves = {name: tensor(getattr(block, name)).requires_grad_() for name in NAMES}
    leaves["x"] = tensor(x).requires_grad_()
    c, s = tensor(cos), tensor(sin)

    def norm(x, gamma):
        return torch.nn.functional.rms_norm(x, (D,), gamma, block.eps)

    def turn(x):
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * c + b * s, b * c - a * s], -1).reshape(x.shape)

    qkv = norm(leaves["x"], leaves["gamma1"]) @ leaves["qkv"]
    q, k, v = (y.reshape(T, HEADS, -1).transpose(0, 1) for y in qkv.split(D, 1))
    attended = torch.nn.functional.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True)
    x2 = attended.transpose(0, 1).reshape(T, D) @ leaves["out"] + leaves["x"]
    z = norm(x2, leaves["gamma2"]) @ leaves["gate_up"]
    y = (torch.nn.functional.silu(z[:, ::2]) * z[:, 1::2]) @ leaves["down"] + x2
    y.backward(tensor(dy))
    return {"y": y.detach().double().numpy(),
            **{name: leaf.grad.double().numpy() for name, leaf in leaves.items()}}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_against_autograd(dtype):
    torch = pytest.importorskip("torch", reason="PyTorch's autograd is the reference")
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 is a type of ml_dtypes")
    kind = np.float32 if dtype == "float32" else ml_dtypes.bfloat16
    block, x, dy, cos, sin = make(kind)
    y, saved = transformer.forward(block, x, cos, sin)
    dx, gradients = transformer.backward(block, saved, dy)
    assert y.dtype == dx.dtype == x.dtype
    got = {"y": y, "x": dx, **gradients.weights}
    exact = by_torch(torch, block, x, dy, cos, sin, torch.float64)
    unfused = by_torch(torch, block, x, dy, cos, sin, getattr(torch, dtype))
    for name, want in exact.items():
        ours = abs(got[name].astype("f8") - want).max()
        theirs = abs(unfused[name] - want).max()
        floor = 2e-5 if dtype == "float32" else 1e-6
        assert ours < 2 * theirs + floor * max(1, abs(want).max()), f"{name}: {ours} {theirs}"


def test_no_activation_is_kept():
    block, x, _, cos, sin = make("f8")
    _, saved = transformer.forward(block, x, cos, sin, kernel="reference")
    kept = sum(np.asarray(v).size for v in vars(saved).values())
    # x, qkv, attention weights, attended, x2, the pairs z, two numbers a row, two tables.
    assert kept == T * (D + 3 * D + HEADS * T + D + D + 2 * F + 2 + D // HEADS)
