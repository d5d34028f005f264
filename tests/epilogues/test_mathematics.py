"""Mathematical functions: stated accuracy, edges of IEEE 754, the same bits from every target."""

import dataclasses
import math
import re

import numpy as np
import pytest

import gemm
from gemm import engine
from gemm.microkernels import mathematics
from gemm.microkernels.dtypes import float32, float64
from gemm.microkernels.selection import select_tile

mpmath = pytest.importorskip("mpmath", reason="accuracy is measured against mpmath")

# Units in the last place, as stated in microkernels/mathematics.py.
BOUNDS = {
    "exp": 1.0, "exp2": 1.0, "log": 1.0, "log2": 2.5, "log10": 2.5, "log1p": 3.0, "tanh": 2.5,
    "erf": 1.5, "sigmoid": 2.5, "rsqrt": 1.5,
}  # fmt: skip
TRUE = {
    "exp": mpmath.exp,
    "exp2": lambda x: mpmath.mpf(2) ** x,
    "log": mpmath.log,
    "log2": lambda x: mpmath.log(x, 2),
    "log10": mpmath.log10,
    "log1p": mpmath.log1p,
    "tanh": mpmath.tanh,
    "erf": mpmath.erf,
    "sigmoid": lambda x: 1 / (1 + mpmath.exp(-x)),
    "rsqrt": lambda x: 1 / mpmath.sqrt(x),
}


def samples(name: str, dtype: np.dtype) -> np.ndarray:
    rng = np.random.default_rng(7)
    top = 87 if dtype == np.float32 else 700
    if name in ("exp", "exp2", "sigmoid"):
        x = np.concatenate([rng.uniform(-top, top, 500), rng.uniform(-1, 1, 200)])
    elif name in ("tanh", "erf"):
        x = np.concatenate([rng.uniform(-7, 7, 400), rng.uniform(-1.5, 1.5, 400)])
    elif name == "log1p":
        x = np.concatenate([rng.uniform(-0.95, 3, 400), 10 ** rng.uniform(-6, 5, 300)])
    else:
        x = np.concatenate([10 ** rng.uniform(-37, 37, 400), rng.uniform(0.5, 2, 400)])
    return x.astype(dtype)


@pytest.mark.parametrize("kind", [float32, float64], ids=str)
@pytest.mark.parametrize("name", BOUNDS)
def test_accuracy_is_as_stated(name, kind):
    dtype = np.dtype(kind.name)
    x = samples(name, dtype)
    y = mathematics.MAKERS[name](kind)(x)
    with mpmath.workdps(40):
        worst = 0.0
        for given, got in zip(x, y, strict=True):
            true = TRUE[name](mpmath.mpf(float(given)))
            unit = float(np.spacing(np.abs(dtype.type(float(true)))))
            worst = max(worst, float(abs(mpmath.mpf(float(got)) - true) / unit))
    assert worst <= BOUNDS[name], f"{name} in {dtype}: {worst:.3f} ulp"


EDGES = {
    "exp": [(800, math.inf), (-800, 0.0), (math.inf, math.inf), (-math.inf, 0.0), (0.0, 1.0)],
    "exp2": [(2000, math.inf), (-2000, 0.0), (10.0, 1024.0), (-3.0, 0.125)],
    "log": [(0.0, -math.inf), (-0.0, -math.inf), (-1.0, math.nan), (math.inf, math.inf)],
    "log1p": [(-1.0, -math.inf), (-2.0, math.nan), (math.inf, math.inf), (0.0, 0.0), (-0.0, -0.0)],
    "tanh": [(math.inf, 1.0), (-math.inf, -1.0), (-0.0, -0.0), (50.0, 1.0)],
    "erf": [(math.inf, 1.0), (-math.inf, -1.0), (-0.0, -0.0), (9.0, 1.0)],
    "sigmoid": [(math.inf, 1.0), (-math.inf, 0.0), (0.0, 0.5), (-800, 0.0)],
    "rsqrt": [(0.0, math.inf), (math.inf, 0.0), (-1.0, math.nan), (4.0, 0.5)],
    "nearest": [(0.5, 0.0), (1.5, 2.0), (-0.5, -0.0), (1e30, 1e30), (-math.inf, -math.inf)],
    "floor": [(-0.5, -1.0), (1.5, 1.0), (-0.0, -0.0), (1e30, 1e30)],
    "ceil": [(-0.5, -0.0), (1.5, 2.0), (math.inf, math.inf)],
    "trunc": [(-1.5, -1.0), (1.5, 1.0), (-0.5, -0.0)],
}  # fmt: skip


@pytest.mark.parametrize("kind", [float32, float64], ids=str)
@pytest.mark.parametrize("name", EDGES)
def test_edges_of_ieee_754(name, kind):
    dtype = np.dtype(kind.name)
    x = np.array([given for given, _ in EDGES[name]] + [math.nan], dtype)
    want = np.array([expected for _, expected in EDGES[name]] + [math.nan], dtype)
    y = mathematics.MAKERS[name](kind)(x)
    np.testing.assert_array_equal(y, want)
    real = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(y)[real], np.signbit(want)[real])


def test_gradual_underflow():
    x = np.array([-100.0, -103.0, -103.9], np.float32)
    y = mathematics.make_exp(float32)(x)
    true = np.exp(x.astype(np.float64))
    assert (np.abs(y - true) <= 0.51 * 2.0**-149).all()


# math.fma exists from Python 3.13 on; the traced name is looked up in the list of words.
@gemm.epilogue
def everything(acc):
    return {
        "out": math.exp(acc), "exp2": math.exp2(acc), "log": math.log(acc),
        "log2": math.log2(acc), "log10": math.log10(acc), "log1p": math.log1p(acc),
        "tanh": math.tanh(acc), "erf": math.erf(acc), "sigmoid": gemm.sigmoid(acc),
        "rsqrt": gemm.rsqrt(acc), "sqrt": math.sqrt(acc), "nearest": gemm.nearest(acc),
        "floor": math.floor(acc), "ceil": math.ceil(acc), "trunc": math.trunc(acc),
        "sign": math.copysign(2.0, acc), "fabs": math.fabs(acc), "fma": math.fma(acc, acc, 1.0),
        "bits": gemm.significant(acc, 3), "draw": gemm.uniform(3),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_same_bits_as_in_plain_python(dtype):
    if not engine.unit_of(engine.default_level())[1]:
        pytest.skip("plain Python fuses, and this instruction set rounds twice")
    # One row times one entry a column: the products are the values themselves.
    rng = np.random.default_rng(5)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-40, 800.0, -800.0, 0.5, 1.5, 1.0, -1.0]
    values = np.concatenate([special, rng.standard_normal(28) * 8, 10 ** rng.uniform(-30, 30, 12)])
    a, b = np.ones((1, 1), dtype), values.astype(dtype)[None]
    ours = gemm.matmul(a, b, epilogue=everything)
    plain = gemm.matmul(a, b, epilogue=everything, kernel="reference")
    for name, got in ours.items():
        np.testing.assert_array_equal(got, plain[name], err_msg=name)


@pytest.mark.parametrize("name", ["avx512", "neon"])
def test_no_function_calls_a_library(name, monkeypatch):
    from numba.core.types import intp

    from gemm import planner
    from gemm.backends import compiler, values
    from gemm.backends.cpu import kernels
    from gemm.backends.machines.cpus import LEVELS

    made = []
    make_plan = planner.make_plan
    monkeypatch.setattr(planner, "make_plan", lambda *a: made.append(make_plan(*a)) or made[-1])
    one = np.ones((1, 1), "f4")
    gemm.matmul(one, one, epilogue=everything, kernel="reference")
    level = next(level for level in LEVELS if level.name == name)
    tile = select_tile(level.unit, float32)
    function, kinds = dataclasses.replace(made[-1].spec, tile=tile).build()
    types = [intp if isinstance(kind, str) else values.Pointer(kind) for kind in kinds]
    text = compiler.compile_assembly(function, types, kernels.target_of(level))
    assert text.count("\n") > 1000
    calls = [line for line in text.splitlines() if re.match(r"\s+(callq?|bl|blr)\s", line)]
    assert not calls, calls[:5]
