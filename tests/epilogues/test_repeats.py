"""Calls like one before, long calls in parts, and log-sum-exp down the columns."""

import time

import numpy as np
import pytest

import gemm
from gemm import engine, slices
from gemm.epilogues import repeat, stock
from gemm.epilogues.job import Job


def normal(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape).astype(dtype)


@gemm.epilogue
def several(acc, bias, r, seed, shift, residual):
    h = acc * r + bias + shift
    kept = gemm.select(gemm.uniform(seed) >= 0.5, h, 0.0) + residual
    return {
        "out": kept,
        "row": gemm.per_row(kept, "add", 32),
        "line": gemm.per_row(kept, "log_sum_exp", None),
        "column": gemm.per_column(kept, "log_sum_exp", None),
        "block": gemm.per_column(kept, "log_sum_exp", 48),
        "place": gemm.as_type(gemm.row_index() * 1000 + gemm.column_index(), "int32"),
    }


def operands(m, n, **changed):
    return {"bias": normal(n), "r": normal(m, 1), "seed": 3, "shift": 0.5,
            "residual": normal(m, n, seed=4), **changed}  # fmt: skip


def equal(got, want):
    assert list(got) == list(want)
    for key in want:
        np.testing.assert_array_equal(got[key], want[key], err_msg=key)


def test_a_repeated_call_has_the_bits_of_the_reference():
    repeat.known.clear()
    a, b = normal(29, 11), normal(11, 70)
    for i in range(3):
        given = operands(29, 70, seed=i, shift=float(i), residual=normal(29, 70, seed=i))
        program = several(**given)
        got = gemm.matmul(a, b, epilogue=program)
        equal(got, gemm.matmul(a, b, epilogue=program, kernel="reference"))
    assert len(repeat.known) == 1


def test_what_a_repeated_call_must_not_do():
    repeat.known.clear()
    a, b, bias = normal(9, 5), normal(5, 20), normal(20)
    first = gemm.matmul(a, b, epilogue=stock.bias(bias=bias))
    second = gemm.matmul(a, b, epilogue=stock.bias(bias=bias))
    assert first is not second and not np.may_share_memory(first, second)
    # An output that overlaps an operand goes the long way, with the right result.
    room = np.zeros(29 * 20, np.float32)
    for start in (0, 0, 40, 40):
        room[:] = 1.0
        residual, out = room[20:200].reshape(9, 20), room[start : start + 180].reshape(9, 20)
        want = gemm.matmul(a, b, epilogue=stock.residual(residual=residual.copy()))
        got = gemm.matmul(a, b, out, epilogue=stock.residual(residual=residual))
        assert got is out
        np.testing.assert_array_equal(out, want)
    # A number beyond int32, or beyond float32, is treated as it was the first time.
    add = gemm.epilogue(lambda acc, x: acc + x)
    assert np.isinf(gemm.matmul(a, b, epilogue=add(x=1e300))).all()
    assert np.isinf(gemm.matmul(a, b, epilogue=add(x=-1e300))).all()
    gemm.matmul(a, b, epilogue=add(x=1))
    with pytest.raises(ValueError, match="beyond int32"):
        gemm.matmul(a, b, epilogue=add(x=1 << 40))
    read_only = np.zeros((9, 20), np.float32)
    gemm.matmul(a, b, read_only, epilogue=add(x=1))
    read_only.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        gemm.matmul(a, b, read_only, epilogue=add(x=1))


def test_a_threads_setting_is_part_of_what_is_remembered():
    a = normal(300, 300)
    for threads in (1, 2, 1):
        with gemm.num_threads(threads):
            got = gemm.matmul(a, a, epilogue=stock.relu(bias=1.0))
        np.testing.assert_array_equal(got, np.maximum(gemm.matmul(a, a) + np.float32(1), 0))


@pytest.mark.parametrize("shape", [(150, 200), (3, 70, 130)])
def test_long_products_run_in_parts_with_the_same_bits(shape, monkeypatch):
    *batch, m, n = shape
    a, b = normal(*batch, m, 7), normal(*batch, 7, n)
    tile = normal(*batch, m, n, seed=4)
    program = several(**operands(m, n, residual=tile))
    want = gemm.matmul(a, b, epilogue=program, threads=2)
    parts = []
    original = Job._part
    monkeypatch.setattr(Job, "_part", lambda *x: parts.append(x[-1]) or original(*x))
    monkeypatch.setattr(slices, "LONG", 7 * 64 * 64)
    monkeypatch.setattr(slices, "ROWS", 64)
    monkeypatch.setattr(slices, "COLUMNS", 64)
    repeat.known.clear()
    got = gemm.matmul(a, b, epilogue=program, threads=1)
    assert len(set(parts)) == len(parts) > 3
    equal(got, want)
    packed = gemm.Packed(a, stock.gain_and_square(gamma=normal(7)))
    with_statistics = stock.rmsnorm_of_square(square="square", k=7)
    parts.clear()
    got = gemm.matmul(packed, b, epilogue=with_statistics, threads=1)
    assert len(parts) > 3
    monkeypatch.undo()
    equal(got, gemm.matmul(packed, b, epilogue=with_statistics, threads=1))


def test_column_log_sum_exp_is_exact_and_survives_extremes():
    m, n = 70, 37
    a = np.eye(m, dtype=np.float32)
    x = normal(m, n) * 30
    x[:, 3] = -np.inf
    x[5, 4] = np.inf
    x[:, 5] = 80.0

    def program(acc):
        return {"out": gemm.per_column(acc, "log_sum_exp", None),
                "block": gemm.per_column(acc, "log_sum_exp", 16)}  # fmt: skip

    # The values come by way of an operand: infinities do not survive a product.
    def of(acc, x):
        return program(0.0 * acc + x)

    got = gemm.matmul(a, np.zeros((m, n), np.float32), epilogue=gemm.epilogue(of)(x=x))
    wide = x.astype(np.float64)
    with np.errstate(divide="ignore"):
        top = np.where(np.isfinite(wide.max(0)), wide.max(0), 0)
        want = top + np.log(np.exp(wide - top).sum(0))
    np.testing.assert_allclose(got["out"][0], want, rtol=2e-6)
    assert got["block"].shape == (5, n)
    np.testing.assert_allclose(got["block"][4, 5], 80 + np.log(6), rtol=2e-7)


def test_a_small_call_costs_little_more_than_a_product():
    a, bias = normal(8, 8), normal(8)

    def best(call):
        for _ in range(50):
            call()
        times = []
        for _ in range(30):
            start = time.perf_counter()
            for _ in range(20):
                call()
            times.append((time.perf_counter() - start) / 20)
        return min(times)

    plain = best(lambda: gemm.matmul(a, a))
    fused = best(lambda: gemm.matmul(a, a, epilogue=stock.bias(bias=bias)))
    # Some 15 us on a 2 GHz core; ten times that would mean that it is fitted anew.
    assert fused - plain < 60e-6


@pytest.mark.parametrize("layout", ["columns", "rows"])
@pytest.mark.parametrize("m", [1, 3, 8])
def test_few_rows_read_b_in_place(m, layout):
    """The kernel of few rows runs a program, with the bits of the one that packs."""
    from gemm import planner
    from gemm.microkernels.dtypes import float32

    k, n = 70, 2000
    a, b = normal(m, k), normal(k, n)
    if layout == "rows":
        b = np.ascontiguousarray(b.T).T
    given = operands(m, n)
    repeat.known.clear()
    got = gemm.matmul(a, b, epilogue=several(**given))
    (found,) = repeat.known.values()
    level = engine.default_level()
    packing = f"{level}:2x{engine.tile_for(level, float32, None, True).columns}"
    equal(got, gemm.matmul(a, b, epilogue=several(**given), kernel=packing))
    plan = planner.make_plan(float32, float32, float32, float32, m, n, k, 1, True, 1, None, None,
                             None, layout)  # fmt: skip
    if plan.spec.family == "skinny":
        spec = found.job.whole.plan.spec
        assert spec.family == "skinny" and spec.program is not None
    gated = gemm.matmul(a, b, epilogue=stock.swiglu)
    equal({"out": gated}, {"out": gemm.matmul(a, b, epilogue=stock.swiglu, kernel=packing)})
