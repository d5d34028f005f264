"""Programs in the write-back of the team kernels: one launch, and the bits of the CPU.

The kernels run as plain Python on a pretended device: planning, tables and launch arguments are
those of a real one.
"""

from __future__ import annotations

import importlib

import ml_dtypes
import numpy as np
import pytest

import gemm
from gemm import engine
from gemm.epilogues import on_device, stock

from .pretended import Array, backend_on


def normal(*shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed + sum(shape))
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-20, 20, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def compared(target, a, b, epilogue, operands, expect_one=True, **options):
    """Runs the same bound program on the device and on the CPU; returns the plans launched."""
    backend = backend_on(target)

    def there(x):
        return Array(x, backend.on) if isinstance(x, np.ndarray) and x.ndim else x

    bound = epilogue(**{key: there(x) for key, x in operands.items()})
    found = on_device.matmul(backend, there(a), there(b), None, bound, **options)
    want = gemm.matmul(a, b, epilogue=epilogue(**operands), kernel=chain_level(a))
    found = found if isinstance(found, dict) else {"out": found}
    want = want if isinstance(want, dict) else {"out": want}
    assert list(found) == list(want)
    for key, x in want.items():
        assert found[key].shape == x.shape and found[key].values.dtype == x.dtype, key
        np.testing.assert_array_equal(found[key].values, x, err_msg=key)
    if expect_one:
        assert len(backend.on.launched) == 1, "one launch a fused operation"
    return backend.on.launched


@gemm.epilogue
def everything(acc, bias, r, residual, seed, rate):
    h = acc * r + bias
    kept = gemm.select(gemm.uniform(seed) >= rate, h, 0.0) + residual
    return {
        "out": kept,
        "where": kept > 0.0,
        "rows": gemm.per_row(kept, "add", 16),
        "lse": gemm.per_row(kept, "log_sum_exp", None),
        "top": gemm.per_row(kept, "max", 128),
        "columns": gemm.per_column(kept, "add", None),
        "sizes": gemm.per_column(kept, "max_abs", 48),
        "down": gemm.per_column(kept, "log_sum_exp", 128),
    }


def chain_level(a):
    """A level whose products of a's type are chains: bfloat16 instructions have another order."""
    if a.dtype != ml_dtypes.bfloat16:
        return None
    own = engine.levels()
    return next(name for name in own if not any("bfloat16" in unit for unit in own[name].units))


def operands_of(m, n, dtype=np.float32):
    return {
        "bias": normal(n, dtype=dtype), "r": normal(m, 1, dtype=dtype, seed=1),
        "residual": normal(m, n, dtype=dtype, seed=2), "seed": 5, "rate": 0.25,
    }  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_every_kind_of_operand_and_output(target, dtype):
    m, n, k = 66, 80, 9
    plans = compared(
        target, normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=3), everything,
        operands_of(m, n, dtype), expect_one=target != "sm_90a" or dtype == np.float32,
    )  # fmt: skip
    assert plans[-1].program is not None


def test_boxes_reach_the_wide_unit_in_one_launch():
    bf16 = ml_dtypes.bfloat16
    plans = compared("sm_90a", normal(70, 64, dtype=bf16), normal(64, 96, dtype=bf16, seed=3),
                     everything, operands_of(70, 96, bf16))  # fmt: skip
    assert [plan.tile.unit for plan in plans] == ["wide"]
    operands = {"residual": normal(150, 96, dtype=bf16), "gamma": normal(96, dtype=bf16)}
    (plan,) = compared("sm_90a", normal(150, 64, dtype=bf16), normal(64, 96, dtype=bf16, seed=3),
                       stock.residual_rmsnorm(16), operands)  # fmt: skip
    assert plan.tile.unit == "wide"


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_pairs(target):
    @gemm.epilogue
    def gated(acc_even, acc_odd, bias, scale):
        gate_bias, up_bias = bias
        gate, up = acc_even + gate_bias, acc_odd + up_bias
        z = gate * gemm.sigmoid(gate) * up * scale
        return {"out": z, "pairs": (gate, up), "square": gemm.per_row(z * z, "add", 16)}

    m, n, k = 21, 100, 8
    bias = np.ascontiguousarray(normal(n))
    compared(target, normal(m, k), normal(k, n, seed=1), gated,
             {"bias": bias, "scale": normal(m, n // 2)})  # fmt: skip
    compared(target, normal(m, k), normal(k, n, seed=1), stock.rope,
             {"cos": normal(m, n // 2), "sin": normal(m, n // 2, seed=9), "pairs": 30})  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.int64, np.complex64])
def test_other_types(dtype):
    m, n, k = 20, 40, 6
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype, seed=1)
    if np.dtype(dtype).kind == "i":
        program, given = stock.quantise("int8"), {"scale": 7.5, "zero_point": 3}
    elif dtype is np.complex64:
        program, given = stock.alpha_beta, {"c": normal(m, n, dtype=dtype)}
    else:
        program, given = stock.gelu, {"bias": normal(n, dtype=dtype)}
    compared("sm_80", a, b, program, given)


def test_strides_batches_and_empty_sums():
    a, b = normal(3, 20, 8), normal(8, 44, seed=1)
    tile = normal(44, 20, seed=2).T
    compared("sm_80", a, b, stock.residual, {"residual": tile, "bias": normal(3, 1, 44)})
    compared("sm_90a", normal(5, 0), normal(0, 7), stock.bias, {"bias": normal(7)})


def test_partials_pass_from_block_to_block():
    """More rows and columns than a block has, a partial over all of them."""

    @gemm.epilogue
    def sums(acc):
        return {"out": acc, "rows": gemm.per_row(acc, "add", None),
                "down": gemm.per_column(acc, "log_sum_exp", None)}  # fmt: skip

    compared("sm_80", normal(100, 3), normal(3, 100, seed=1), sums, {})
    compared("sm_90a", normal(70, 64, dtype=ml_dtypes.bfloat16),
             normal(64, 72, dtype=ml_dtypes.bfloat16, seed=1), sums, {})  # fmt: skip


def test_in_place_and_into_given_arrays():
    backend = backend_on("sm_80")
    a, b, c = normal(9, 4), normal(4, 30, seed=1), normal(9, 30, seed=2)
    want = gemm.matmul(a, b, epilogue=stock.alpha_beta(alpha=2.0, beta=-1.0, c=c))
    x, y, z = (Array(v, backend.on) for v in (a, b, c))
    found = on_device.matmul(backend, x, y, z, stock.alpha_beta(alpha=2.0, beta=-1.0, c=z))
    assert found is z
    np.testing.assert_array_equal(c, want)
    # The same looks, other numbers: nothing is decided again.
    known = len(on_device._known)
    on_device.matmul(backend, x, y, z, stock.alpha_beta(alpha=3.0, beta=0.0, c=z))
    assert len(on_device._known) == known
    np.testing.assert_array_equal(c, gemm.matmul(a, b, epilogue=stock.scale(row=3.0)))


def test_host_arrays_go_there_and_back():
    backend = backend_on("sm_80")
    a, b, bias = normal(9, 4), normal(4, 30, seed=1), normal(30)

    @gemm.epilogue
    def two(acc, bias, factor):
        return {"out": acc + bias, "sum": gemm.per_row(acc * factor, "add", None)}

    program = two(bias=bias, factor=2.0)
    out = np.zeros((9, 30), np.float32)
    found = on_device.matmul_of_host(backend, a, b, out, program)
    want = gemm.matmul(a, b, epilogue=program)
    assert found["out"] is out
    for key, x in want.items():
        np.testing.assert_array_equal(found[key], x)
    with pytest.raises(ValueError, match="the results are out float32"):
        on_device.matmul_of_host(backend, a, b, out[:3], program)


def test_the_identity_runs_the_plain_kernel():
    identity = gemm.epilogue(lambda acc, unused=None: acc)
    (plan,) = compared("sm_80", normal(9, 4), normal(4, 30, seed=1), identity, {})
    assert plan.program is None


def test_addmm_in_one_launch():
    addmm = importlib.import_module("gemm.addmm")
    backend = backend_on("sm_80")
    a, b, c = normal(9, 4), normal(4, 30, seed=1), normal(9, 30, seed=2)
    x, y, z = (Array(v, backend.on) for v in (a, b, c))
    for beta, alpha in ((1, 1), (0.5, 2.0), (0, 3)):
        want = gemm.addmm(c, a, b, beta=beta, alpha=alpha)
        found = addmm.on_device(backend, "addmm", 2, z, x, y, beta, alpha, None)
        np.testing.assert_array_equal(found.values, want)
    assert len(backend.on.launched) == 3
    with pytest.raises(ValueError, match="must be 3-D"):
        addmm.on_device(backend, "baddbmm", 3, z, x, y, 1, 1, None)


@pytest.mark.parametrize(
    "operands, error, words",
    [
        ({"bias": normal(31)}, ValueError, "no scalar, row vector"),
        ({"bias": normal(30, dtype=np.float64)}, TypeError, "convert it first"),
        ({"bias": "square"}, TypeError, "runs on the CPU"),
    ],
)
def test_refusals_come_before_any_launch(operands, error, words):
    backend = backend_on("sm_80")

    def there(x):
        return Array(x, backend.on) if isinstance(x, np.ndarray) else x

    bound = stock.bias(**{key: there(x) for key, x in operands.items()})
    with pytest.raises(error, match=words):
        on_device.matmul(backend, there(normal(9, 4)), there(normal(4, 30)), None, bound)
    assert not backend.on.launched
