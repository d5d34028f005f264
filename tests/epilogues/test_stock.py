"""The stock library against NumPy; backward programs against finite differences."""

import math

import numpy as np
import pytest

import gemm
from gemm.epilogues import stock

RNG = np.random.default_rng(30)
A, B = RNG.standard_normal((9, 6)), RNG.standard_normal((6, 20))
X = A @ B
BIAS = RNG.standard_normal(20)

_erf = np.vectorize(math.erf)


def run(program, a=A, b=B, **options):
    # Plain Python: a compiled kernel for each would only test the compiler again.
    return gemm.matmul(a, b, epilogue=program, kernel="reference", **options)


def gelu(x):
    return 0.5 * x * (1 + _erf(x / math.sqrt(2)))


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


FORWARD = {
    "relu": lambda x: np.maximum(x, 0),
    "leaky_relu": lambda x: np.where(x >= 0, x, 0.01 * x),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x * sigmoid(x),
    "tanh": np.tanh,
    "sigmoid": sigmoid,
}
ROW, COLUMN = RNG.standard_normal((9, 1)), RNG.standard_normal(20)


@pytest.mark.parametrize("name", FORWARD)
def test_activations(name):
    program = getattr(stock, name)
    np.testing.assert_allclose(run(program()), FORWARD[name](X), rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(
        run(program(bias=BIAS)), FORWARD[name](X + BIAS), rtol=1e-13, atol=1e-14
    )


def test_linear_ones():
    np.testing.assert_allclose(run(stock.bias(bias=BIAS)), X + BIAS)
    np.testing.assert_allclose(run(stock.residual(residual=X * 2, bias=BIAS)), X * 3 + BIAS)
    np.testing.assert_allclose(run(stock.scale(row=ROW, column=COLUMN)), X * ROW * COLUMN)
    np.testing.assert_allclose(run(stock.scale(row=ROW)), X * ROW)
    np.testing.assert_allclose(run(stock.clamp(low=-0.5, high=0.25)), np.clip(X, -0.5, 0.25))
    np.testing.assert_allclose(run(stock.alpha_beta(alpha=2, beta=-1, c=X)), X)
    np.testing.assert_allclose(run(stock.rmsnorm(r=ROW)), X * ROW)


BACKWARD = {
    "relu_backward": FORWARD["relu"],
    "leaky_relu_backward": FORWARD["leaky_relu"],
    "gelu_backward": gelu,
    "gelu_tanh_backward": gelu_tanh,
    "silu_backward": FORWARD["silu"],
    "tanh_backward": np.tanh,
    "sigmoid_backward": sigmoid,
}


@pytest.mark.parametrize("name", BACKWARD)
def test_activation_gradients(name):
    x = RNG.standard_normal(X.shape) * 2
    got = run(getattr(stock, name)(x=x))
    forward, step = BACKWARD[name], 1e-6
    slope = (forward(x + step) - forward(x - step)) / (2 * step)
    if name == "relu_backward":
        np.testing.assert_allclose(got, X * slope, atol=1e-8)
        return
    np.testing.assert_allclose(got["out"], X * slope, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(got["activation"], forward(x), rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_gates_and_their_gradient(name):
    activation = FORWARD[{"swiglu": "silu", "geglu": "gelu"}[name]]

    def gated(z):
        return activation(z[:, ::2]) * z[:, 1::2]

    def forward(z):
        return (gated(z) * X).sum()

    np.testing.assert_allclose(run(getattr(stock, name)()), gated(X), rtol=1e-12, atol=1e-15)
    z = RNG.standard_normal((9, 40))
    got = run(getattr(stock, f"{name}_backward")(16)(z=z))
    np.testing.assert_allclose(got["activation"], gated(z), rtol=1e-12, atol=1e-15)
    step = 1e-6

    for i, j in ((0, 0), (3, 7), (8, 39), (4, 20)):
        up, down = z.copy(), z.copy()
        up[i, j] += step
        down[i, j] -= step
        slope = (forward(up) - forward(down)) / (2 * step)
        assert abs(slope - got["out"][i, j]) < 1e-7 * max(1, abs(slope))
    whole = (z * got["out"]).sum(-1)
    np.testing.assert_allclose(got["inner"].sum(-1) * 16, whole, rtol=1e-12)


def test_rotation_and_back():
    angle = RNG.uniform(0, 6, (9, 10))
    turned = run(stock.rope(cos=np.cos(angle), sin=np.sin(angle)))
    eye = np.eye(20)
    back = run(stock.rope(cos=np.cos(angle), sin=-np.sin(angle)), turned, eye)
    np.testing.assert_allclose(back, X, atol=1e-14)
    part = run(stock.rope(cos=np.cos(angle), sin=np.sin(angle), pairs=4))
    np.testing.assert_array_equal(part[:, :8], turned[:, :8])
    np.testing.assert_array_equal(part[:, 8:], run(stock.rope(cos=1.0, sin=0.0))[:, 8:])


def test_dropout_is_a_function_of_its_seed():
    a, b = np.ones((64, 1)), np.ones((1, 256))
    kept = run(stock.dropout(seed=5, rate=0.25), a, b)
    assert set(np.unique(kept)) == {0.0, 1 / 0.75}
    share = (kept > 0).mean()
    assert abs(share - 0.75) < 4 * math.sqrt(0.25 * 0.75 / kept.size)
    np.testing.assert_array_equal(kept, run(stock.dropout(seed=5, rate=0.25), a, b))
    other = run(stock.dropout(seed=6, rate=0.25), a, b)
    agree = ((kept > 0) == (other > 0)).mean()
    assert abs(agree - 0.625) < 0.02
    # Neighbouring rows and columns are uncorrelated.
    u = run(gemm.epilogue(lambda acc: gemm.uniform(9)), a, b)
    assert abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.002
    for shifted in (u[1:] - 0.5, u[:, 1:] - 0.5):
        base = u[: shifted.shape[0], : shifted.shape[1]] - 0.5
        assert abs((base * shifted).mean() * 12) < 0.03


@pytest.mark.parametrize("rounding", stock.ROUNDING)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantisation_to_integers(dtype, rounding):
    info = np.iinfo(dtype)
    scale, zero = 0.02, 3.0
    seed = {"seed": 7} if rounding == "stochastic" else {}
    got = run(stock.quantise(dtype, rounding)(scale=scale, zero_point=zero, **seed))
    x = X / scale + zero
    low = np.clip(np.floor(x), info.min, info.max)
    assert got.dtype == dtype
    if rounding == "stochastic":
        assert ((got == low) | (got == np.clip(low + 1, info.min, info.max))).all()
        inside = (x > info.min) & (x < info.max - 1)
        assert abs((got - x)[inside].mean()) < 0.15
        return
    rounded = {"nearest": np.rint, "floor": np.floor, "ceil": np.ceil, "zero": np.trunc}[rounding]
    np.testing.assert_array_equal(got, np.clip(rounded(x), info.min, info.max).astype(dtype))


@pytest.mark.parametrize("rounding", ["nearest", "zero", "floor", "ceil"])
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_quantisation_to_eight_bit_floats(dtype, rounding):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8 is a type of ml_dtypes")
    kind = getattr(ml_dtypes, dtype)
    a, b = np.float32(A * 8), np.float32(B)
    got = run(stock.quantise(dtype, rounding)(scale=0.01), a, b).astype("f8")
    x = gemm.matmul(a, b, kernel="reference") / np.float32(0.01)
    largest = float(ml_dtypes.finfo(kind).max)
    grid = np.sort(np.arange(256, dtype=np.uint8).view(kind).astype("f8"))
    grid = np.unique(grid[np.isfinite(grid)])
    x = np.clip(x.astype("f8"), -largest, largest)
    at = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(grid) - 2)
    below, above = grid[at], grid[at + 1]
    below = np.where(x == above, above, below)
    above = np.where(x == below, below, above)
    want = {
        "nearest": x.astype("f4").astype(kind).astype("f8"),
        "floor": below,
        "ceil": above,
        "zero": np.where(x >= 0, below, above),
    }[rounding]
    np.testing.assert_array_equal(got, want)
    assert np.isfinite(got).all()


def test_unknown_formats_and_modes_are_refused():
    with pytest.raises(ValueError, match="dtype must be one of"):
        stock.quantise("int4")
    with pytest.raises(ValueError, match="rounding must be one of"):
        stock.quantise("int8", "up")


def test_bias_gradient_is_a_column_sum():
    got = run(stock.bias_gradient()())
    np.testing.assert_allclose(got["d_bias"][0], X.sum(0), rtol=1e-13)
    np.testing.assert_allclose(got["out"], X, rtol=1e-14)
