"""The ten CODA kernels: values, the 2 x error rule in bfloat16, and the algebra they rest on."""

import numpy as np
import pytest

from gemm.epilogues import coda, stock

ml_dtypes = pytest.importorskip("ml_dtypes", reason="the rule is stated for bfloat16")

M, N, K, BLOCK = 24, 64, 40, 32
SEED = 20


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def pairs(x, y):
    return np.stack([x, y], -1).reshape(*x.shape[:-1], -1)


def by_block(x, size=BLOCK):
    return x.reshape(len(x), -1, size)


def residual_rmsnorm(d, o):
    d = d + o["c"]
    return {"out": d, "square": (by_block(d) ** 2).mean(-1), "normed": d * o["gamma"]}


def rmsnorm(d, o):
    return {"out": d * o["r"]}


def swiglu(d, o):
    d = d * o.get("r", 1.0)
    gate, up = d[:, ::2], d[:, 1::2]
    return {"out": gate * sigmoid(gate) * up, "pairs": d}


def rope(d, o):
    d = d * o.get("r", 1.0)
    x, y = d[:, ::2], d[:, 1::2]
    turned = pairs(x * o["cos"] + y * o["sin"], y * o["cos"] - x * o["sin"])
    limit = 2 * o.get("pairs", d.shape[1])
    return {"out": np.where(np.arange(d.shape[1]) < limit, turned, d), "pairs": d}


def cross_entropy(d, o):
    d = d * o.get("r", 1.0)
    return {"out": d, "lse": np.log(np.exp(by_block(d)).sum(-1)),
            "target": np.take_along_axis(d, o["target"], 1)}  # fmt: skip


def swiglu_bwd(d, o):
    gate, up = o["z"][:, ::2], o["z"][:, 1::2]
    s = sigmoid(gate)
    d_up = d * gate * s
    d_gate = d * up * (s + gate * s * (1 - s))
    inner = (by_block(gate * d_gate + up * d_up)).mean(-1)
    return {"out": pairs(d_gate, d_up), "activation": gate * s * up, "inner": inner}


def rmsnorm_bwd(d, o):
    hat = o["x"] * o["r"]
    return {"out": o["gradient"] + (d * o["gamma"] - hat * o["s"]) * o["r"],
            "normed": hat * o["gamma"],
            "d_gamma": (d * hat).reshape(-1, 8, N).sum(1)}  # fmt: skip


CASES = {
    "gemm_residual_partial_rmsnorm": (residual_rmsnorm, ("c", "gamma"), {"block": BLOCK}),
    "gemm_rmsnorm": (rmsnorm, ("r",), {}),
    "gemm_swiglu": (swiglu, (), {}),
    "gemm_rmsnorm_swiglu": (swiglu, ("r",), {}),
    "gemm_rope": (rope, ("cos", "sin"), {"pairs": 20}),
    "gemm_rmsnorm_rope": (rope, ("r", "cos", "sin"), {}),
    "gemm_partial_cross_entropy": (cross_entropy, ("target",), {"block": BLOCK}),
    "gemm_rmsnorm_partial_cross_entropy": (cross_entropy, ("r", "target"), {"block": BLOCK}),
    "gemm_partial_swiglu_bwd": (swiglu_bwd, ("z",), {"block": BLOCK}),
    "gemm_residual_partial_rmsnorm_bwd": (
        rmsnorm_bwd, ("gradient", "x", "r", "s", "gamma"), {"block": 8}),
}  # fmt: skip
SHAPES = {
    "c": (M, N), "gamma": (N,), "r": (M, 1), "cos": (M, N // 2), "sin": (M, N // 2),
    "z": (M, 2 * N), "gradient": (M, N), "x": (M, N), "s": (M, 1),
}  # fmt: skip


def make(name, dtype):
    rng = np.random.default_rng(SEED)
    a = (rng.standard_normal((M, K)) / K**0.5).astype(dtype)
    b = rng.standard_normal((K, N)).astype(dtype)
    operands = {}
    for key in CASES[name][1]:
        if key == "target":
            operands[key] = rng.integers(0, N, (M, 1))
        elif key in ("r", "s"):
            operands[key] = rng.uniform(0.5, 1.5, (M, 1)).astype("f4")
        else:
            operands[key] = rng.standard_normal(SHAPES[key]).astype(dtype)
    return a, b, operands


def wide(operands):
    return {key: x if x.dtype.kind == "i" else x.astype("f8") for key, x in operands.items()}


def test_there_are_ten():
    assert sorted(coda.__all__) == sorted(CASES)
    assert len(CASES) == 10


def named(result):
    return result if isinstance(result, dict) else {"out": result}


@pytest.mark.parametrize("name", CASES)
def test_values_and_the_error_rule(name):
    reference, keys, options = CASES[name]
    function = getattr(coda, name)
    limit = {"pairs": options["pairs"]} if "pairs" in options else {}
    for dtype in (np.dtype("f4"), np.dtype(ml_dtypes.bfloat16)):
        a, b, operands = make(name, dtype)
        exact = reference(a.astype("f8") @ b.astype("f8"), {**wide(operands), **limit})
        # Compiled in the type of the rule, in plain Python in the other: half the compilations.
        kernel = {"kernel": "reference"} if dtype.name == "float32" else {}
        got = named(function(a, b, **operands, **options, **kernel))
        # Unfused: the product is rounded to `dtype` before the rest is computed, and after.
        rounded = (a.astype("f4") @ b.astype("f4")).astype(dtype).astype("f8")
        unfused = reference(rounded, {**wide(operands), **limit})
        assert got.keys() == exact.keys()
        for key, want in exact.items():
            ours = abs(got[key].astype("f8") - want).max()
            theirs = abs(unfused[key].astype(dtype).astype("f8") - want).max()
            assert got[key].shape == want.shape, key
            floor = 1e-6 if dtype.name == "bfloat16" else 1e-5 * abs(want).max() + 1e-5
            assert ours < 2 * theirs + floor, f"{key} in {dtype}: {ours} against {theirs}"


def test_norm_moves_behind_the_product():
    rng = np.random.default_rng(1)
    a, w1, w2 = (rng.standard_normal(s) for s in ((M, K), (K, N), (N, 48)))
    c, gamma = rng.standard_normal((M, N)), rng.standard_normal(N)
    first = coda.gemm_residual_partial_rmsnorm(a, w1, c, gamma, block=BLOCK)
    r = 1 / np.sqrt(first["square"].sum(-1, keepdims=True) * BLOCK / N + 1e-6)
    got = coda.gemm_rmsnorm(first["normed"], w2, r)
    h = a @ w1 + c
    want = (h / np.sqrt((h * h).mean(-1, keepdims=True) + 1e-6) * gamma) @ w2
    np.testing.assert_allclose(got, want, rtol=1e-11, atol=1e-11)


def test_layernorm_moves_behind_the_product():
    import gemm

    rng = np.random.default_rng(2)
    h, w, gamma, beta, bias = (rng.standard_normal(s) for s in ((M, K), (K, N), (K,), (K,), (N,)))
    mu, inverse = h.mean(-1, keepdims=True), 1 / np.sqrt(h.var(-1, keepdims=True) + 1e-5)
    program = stock.layernorm(
        inverse=inverse, shift=inverse * mu, weights=gamma @ w, offset=beta @ w + bias
    )
    got = gemm.matmul(h * gamma, w, epilogue=program)
    want = ((h - mu) * inverse * gamma + beta) @ w + bias
    np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


def test_layernorm_in_two_products():
    """The first gives the sums, the second applies them; against the norm as it is written."""
    import gemm

    rng = np.random.default_rng(5)
    a, w1, residual = (rng.standard_normal(s) for s in ((M, K), (K, N), (M, N)))
    w2, gamma, beta, bias = (rng.standard_normal(s) for s in ((N, K), (N,), (N,), (K,)))
    first = gemm.matmul(a, w1, epilogue=stock.residual_layernorm(16)(
        residual=residual, gamma=gamma))  # fmt: skip
    mean, square = (first[key].sum(-1, keepdims=True) / N for key in ("sum", "square"))
    inverse = 1 / np.sqrt(square - mean * mean + 1e-5)
    program = stock.layernorm(
        inverse=inverse, shift=inverse * mean, weights=gamma @ w2, offset=beta @ w2 + bias
    )
    got = gemm.matmul(first["normed"], w2, epilogue=program)
    h = a @ w1 + residual
    normal = (h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(first["out"], h, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(got, (normal * gamma + beta) @ w2 + bias, rtol=1e-9, atol=1e-9)


def test_cross_entropy_from_its_partials():
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((M, K)), rng.standard_normal((K, N))
    target = rng.integers(0, N, (M, 1))
    got = coda.gemm_partial_cross_entropy(a, b, target, block=16)
    loss = np.log(np.exp(got["lse"]).sum(-1)) - got["target"][:, 0]
    logits = a @ b
    want = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, target, 1)[:, 0]
    np.testing.assert_allclose(loss, want, rtol=1e-12)


def test_rmsnorm_backward_against_finite_differences():
    # loss = <g, rmsnorm(x) W>, its gradient in x by the statistic of the product before.
    rng = np.random.default_rng(4)
    x, gamma, w, g = (rng.standard_normal(s) for s in ((M, N), (N,), (N, K), (M, K)))

    def forward(x):
        r = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)
        return (x * r * gamma) @ w, r

    y, r = forward(x)
    s = (g * y).sum(-1, keepdims=True) / N  # one product earlier: <dy, y> = <d hat, hat>
    got = coda.gemm_residual_partial_rmsnorm_bwd(
        g, np.ascontiguousarray(w.T), np.zeros((M, N)), x, r, s, gamma, block=8
    )
    step = 1e-6
    for i, j in ((0, 0), (5, 17), (23, 63)):
        up, down = x.copy(), x.copy()
        up[i, j] += step
        down[i, j] -= step
        slope = ((forward(up)[0] - forward(down)[0]) * g).sum() / (2 * step)
        assert abs(slope - got["out"][i, j]) < 1e-6 * max(1, abs(slope))
    d_gamma = got["d_gamma"].sum(0)
    up = gamma.copy()
    up[7] += step
    slope = (((x * r * up) @ w - y) * g).sum() / step
    assert abs(slope - d_gamma[7]) < 1e-4 * max(1, abs(slope))
