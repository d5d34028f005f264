"""The write-back: operand kinds, outputs, partials, K blocks, tiles, threads, batches."""

import math

import numpy as np
import pytest

import gemm
from gemm import engine
from gemm.epilogues import stock
from gemm.epilogues.program import Operand, Output, Program
from gemm.microkernels.arithmetic import (
    add,
    fill,
    less,
    ramp,
    select,
    table_integer,
    table_pointer,
    to_float,
)
from gemm.microkernels.dtypes import float32, int32
from gemm.microkernels.vocabulary import load_lanes, shift, store_lanes, tile_spill

RNG = np.random.default_rng(11)


def normal(*shape, dtype="f4"):
    return RNG.standard_normal(shape).astype(dtype)


@gemm.epilogue
def kinds(acc, s, row, column, tile):
    return {
        "out": acc * s + row * column - tile,
        "positive": acc > 0.0,
        "wide": gemm.as_type(acc * column, "float64"),
        "rows": gemm.per_row(acc * row, "add", 16),
        "largest": gemm.per_row(acc, "max", None),
        "lse": gemm.per_row(acc, "log_sum_exp", 32),
        "columns": gemm.per_column(acc, "add", 4),
        "sizes": gemm.per_column(acc, "max_abs", None),
    }


def blocks(x, size, axis):
    return np.split(x, range(size, x.shape[axis], size), axis)


def expected(a, b, s, row, column, tile):
    acc = a.astype("f8") @ b.astype("f8")
    return {
        "out": acc * s + row * column - tile,
        "positive": acc > 0,
        "wide": acc * column,
        "rows": np.stack([x.sum(-1) for x in blocks(acc * row, 16, -1)], -1),
        "largest": acc.max(-1, keepdims=True),
        "lse": np.stack([np.log(np.exp(x).sum(-1)) for x in blocks(acc, 32, -1)], -1),
        "columns": np.stack([x.sum(-2) for x in blocks(acc, 4, -2)], -2),
        "sizes": abs(acc).max(-2, keepdims=True),
    }


def check(got, want):
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].shape == value.shape, name
        np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=2e-4, err_msg=name)


def problem(m, n, k, batch=()):
    operands = {
        "s": np.float32(0.75),
        "row": normal(n),
        "column": normal(*batch, m, 1),
        "tile": normal(*batch, m, n),
    }
    return normal(*batch, m, k), normal(k, n), operands


def test_every_kind_of_operand_output_and_partial():
    for m, n, k in ((1, 1, 1), (7, 33, 5), (13, 150, 40)):
        a, b, operands = problem(m, n, k)
        check(gemm.matmul(a, b, epilogue=kinds(**operands)), expected(a, b, **operands))


def test_every_edge_of_the_tile_on_the_reference_target():
    # A tile of 2 x 2 vectors; the blocks are smaller than the problem in every dimension.
    lanes = engine.unit_of("reference")[0].lanes(float32)
    kernel = f"reference:2x{2 * lanes}:4,3,{2 * lanes}"
    for m, n in ((1, 1), (3, lanes - 1), (4, lanes), (5, 2 * lanes + 1), (2, 4 * lanes)):
        a, b, operands = problem(m, n, 5)
        check(gemm.matmul(a, b, epilogue=kinds(**operands), kernel=kernel),
              expected(a, b, **operands))  # fmt: skip


def test_same_bits_from_plain_python_and_any_tile_threads_and_blocks():
    if not engine.unit_of(engine.default_level())[1]:
        pytest.skip("plain Python fuses, and this instruction set rounds twice")
    a, b, operands = problem(9, 70, 11)
    first = gemm.matmul(a, b, epilogue=kinds(**operands))
    lanes = engine.unit_of("reference")[0].lanes(float32)
    level = engine.default_level()
    for options in (
        {"kernel": "reference"},
        {"kernel": f"{level}:3x{lanes}:6,4,{3 * lanes}"},
        {"threads": 2},
    ):
        other = gemm.matmul(a, b, epilogue=kinds(**operands), **options)
        for name, value in first.items():
            np.testing.assert_array_equal(other[name], value, err_msg=f"{name} {options}")


def test_batches_strides_and_given_outputs():
    a, b, operands = problem(5, 34, 6, batch=(2, 3))
    a = np.ascontiguousarray(a.swapaxes(0, 1)).swapaxes(0, 1)
    operands["tile"] = np.asfortranarray(operands["tile"])
    operands["row"] = np.repeat(operands["row"], 2)[::2]
    out = np.zeros((2, 3, 34, 5), "f4").swapaxes(-1, -2)
    got = gemm.matmul(a, b, {"out": out}, epilogue=kinds(**operands))
    assert got["out"] is out
    want = expected(a, b, **operands)
    check(got, want)
    uneven = np.zeros((2, 5, 5, 34), "f4")[:, :3]
    again = gemm.matmul(a, b, {"out": uneven}, epilogue=kinds(**operands))
    np.testing.assert_array_equal(again["out"], got["out"])
    one = gemm.matmul(a[1, 2], b, epilogue=kinds(
        s=operands["s"], row=operands["row"], column=operands["column"][1, 2],
        tile=operands["tile"][1, 2]))  # fmt: skip
    np.testing.assert_array_equal(one["rows"], got["rows"][1, 2])


def test_runs_once_after_the_last_block_of_k():
    level = engine.default_level()
    tile = engine.tile_for(level, float32, None)
    kc = 8
    kernel = f"{level}:{tile.rows}x{tile.columns}:{tile.rows},{kc},{tile.columns}"
    program = gemm.epilogue(lambda acc, c: 1.0 - acc + c)
    for k in (kc, kc + 1, 3 * kc - 1):
        a, b, c = normal(9, k), normal(k, 20), normal(9, 20)
        want = 1.0 - a.astype("f8") @ b + c
        np.testing.assert_allclose(
            gemm.matmul(a, b, epilogue=program(c=c), kernel=kernel), want, rtol=1e-5, atol=1e-5
        )
        out = c.copy()  # the operand is the output: partial sums may not rest there
        gemm.matmul(a, b, out, epilogue=program(c=out), kernel=kernel)
        np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-5)


def test_operands_that_overlap_the_output_or_the_inputs():
    square = normal(12, 12)
    program = gemm.epilogue(lambda acc, c: acc + c)
    want = square.astype("f8") @ square + square.T
    buffer = square.copy()
    got = gemm.matmul(buffer, buffer, buffer, epilogue=program(c=buffer.T))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_empty_products_and_no_k():
    program = stock.bias
    assert gemm.matmul(np.ones((0, 3)), np.ones((3, 2)), epilogue=program(bias=1.0)).shape == (0, 2)
    got = gemm.matmul(np.ones((2, 0), "f4"), np.ones((0, 3), "f4"), epilogue=program(bias=2.5))
    assert (got == 2.5).all()


@gemm.epilogue
def paired(acc_even, acc_odd, bias, half):
    even, odd = bias
    x, y = acc_even + even, acc_odd - odd
    return {"out": x * gemm.sigmoid(y) * half, "turned": (y, -x), "sum": gemm.per_row(x * y),
            "down": gemm.per_column(x, "max", 3)}  # fmt: skip


def test_pairs_of_columns():
    for m, n, kernel in ((5, 2, None), (7, 22, None), (8, 66, None), (3, 34, "reference")):
        a, b, bias, half = normal(m, 6), normal(6, n), normal(n), normal(m, n // 2)
        got = gemm.matmul(a, b, epilogue=paired(bias=bias, half=half), kernel=kernel)
        d = a.astype("f8") @ b
        x, y = d[:, ::2] + bias[::2], d[:, 1::2] - bias[1::2]
        turned = np.stack([y, -x], -1).reshape(m, n)
        check(got, {
            "out": x / (1 + np.exp(-y)) * half,
            "turned": turned,
            "sum": np.stack([z.sum(-1) for z in blocks(x * y, 128, -1)], -1),
            "down": np.stack([z.max(0) for z in blocks(x, 3, 0)], 0),
        })  # fmt: skip


def test_one_column_may_become_two():
    @gemm.epilogue
    def spread(acc, z):
        left, right = z
        return acc * left, acc + right

    a, b, z = normal(6, 4), normal(4, 11), normal(6, 22)
    got = gemm.matmul(a, b, epilogue=spread(z=z))
    d = a @ b
    np.testing.assert_allclose(got[:, ::2], d * z[:, ::2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[:, 1::2], d + z[:, 1::2], rtol=1e-5, atol=1e-6)


def test_lanes_outside_the_matrix_never_enter():
    @gemm.epilogue
    def maxima(acc):
        return {"out": gemm.per_row(acc, "max"), "lse": gemm.per_row(acc, "log_sum_exp"),
                "down": gemm.per_column(acc, "max")}  # fmt: skip

    a = -np.ones((3, 2), "f4")
    b = np.full((2, 5), 50.0, "f4")
    got = gemm.matmul(a, b, epilogue=maxima)
    assert (got["out"] == -100).all() and (got["down"] == -100).all()
    np.testing.assert_allclose(got["lse"], -100 + math.log(5), rtol=1e-6)
    b[:, 3] = np.inf
    assert (gemm.matmul(-a, b, epilogue=maxima)["lse"] == np.inf).all()
    assert np.isfinite(gemm.matmul(a, b, epilogue=maxima)["lse"]).all()
    b[0, 0] = np.nan
    got = gemm.matmul(-a, b, epilogue=maxima)
    assert np.isnan(got["out"]).all() and np.isnan(got["lse"]).all()
    assert np.isnan(got["down"][:, 0]).all() and not np.isnan(got["down"][:, 1:]).any()


def test_a_row_of_minus_infinity():
    program = gemm.epilogue(lambda acc: {"out": gemm.per_row(acc, "log_sum_exp")})
    a, b = np.full((1, 1), -np.inf, "f4"), np.ones((1, 40), "f4")
    assert gemm.matmul(a, b, epilogue=program).item() == -np.inf


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int32", "int8"])
def test_other_types(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 is a type of ml_dtypes").bfloat16
    integer = np.dtype(dtype).kind == "i"
    a = (RNG.integers(-9, 9, (6, 8)) if integer else normal(6, 8)).astype(dtype)
    b = (RNG.integers(-9, 9, (8, 19)) if integer else normal(8, 19)).astype(dtype)
    if integer:
        program = gemm.epilogue(lambda acc, s: {
            "out": acc * s, "twice": 2 * acc - 1, "half": acc / 2,
            "sum": gemm.per_row(acc)})  # fmt: skip
        got = gemm.matmul(a, b, epilogue=program(s=np.float32(0.5)))
        acc = a.astype(int) @ b.astype(int)
        assert got["out"].dtype == got["half"].dtype == np.float32
        assert (got["out"] == acc * 0.5).all() and (got["half"] == acc / 2).all()
        assert got["twice"].dtype == a.dtype
        assert (got["twice"] == (2 * acc - 1).astype(a.dtype)).all()
        assert got["sum"].dtype == np.int32 and (got["sum"][:, 0] == acc.sum(1)).all()
        return
    bias = normal(19).astype(dtype)
    got = gemm.matmul(a, b, epilogue=stock.bias(bias=bias))
    wide = a.astype("f8") @ b.astype("f8") + bias.astype("f8")
    assert got.dtype == a.dtype
    np.testing.assert_allclose(got.astype("f8"), wide, rtol=2 * float(_epsilon(dtype)), atol=1e-6)


@pytest.mark.parametrize("dtype", [
    "float64", "float32", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64",
    "complex64", "complex128",
])  # fmt: skip
def test_a_program_starts_from_the_plain_product(dtype):
    """Bit for bit, for every depth: memory is asked for between pieces of k."""
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes", reason="bfloat16 is a type of ml_dtypes").bfloat16
    dtype = np.dtype(dtype)
    wide = {"float16": "f4", "bfloat16": "f4", "int8": "i4", "uint8": "i4", "int16": "i4"}
    wide = np.dtype(wide.get(dtype.name, dtype))
    add = gemm.epilogue(lambda acc, c: acc + c)
    if wide.kind != "c":
        add = gemm.epilogue(lambda acc, c: gemm.as_type(acc + c, wide))
    for k in (0, 1, 7, 8, 9, 60, 391):
        if dtype.name.startswith(("int", "uint")):
            a, b = (RNG.integers(0, 100, s).astype(dtype) for s in ((17, k), (k, 70)))
        else:
            a, b = normal(17, k).astype(dtype), normal(k, 70).astype(dtype)
        acc, c = np.empty((17, 70), wide), (normal(17, 70) * 100).astype(wide)
        engine.product(a, b, acc)
        np.testing.assert_array_equal(gemm.matmul(a, b, epilogue=add(c=c)), acc + c)


def _epsilon(dtype):
    return 2.0**-8 if np.dtype(dtype).name == "bfloat16" else np.finfo(dtype).eps


def test_complex_products_take_linear_programs():
    a, b = normal(4, 3) + 1j * normal(4, 3), normal(3, 7) + 1j * normal(3, 7)
    a, b = a.astype("c8"), b.astype("c8")
    program = gemm.epilogue(lambda acc, s, c: s * acc - 2.0 * c)
    got = gemm.matmul(a, b, epilogue=program(s=1 - 2j, c=b[:1]))
    np.testing.assert_allclose(got, (1 - 2j) * (a @ b) - 2 * b[:1], rtol=1e-5)
    with pytest.raises(TypeError, match="add, subtract, multiply and negate"):
        gemm.matmul(a, b, epilogue=stock.relu)


def test_the_identity_is_the_plain_kernel():
    identity = gemm.epilogue(lambda acc, unused=None: acc)
    a, b = normal(50, 40), normal(40, 60)
    gemm.matmul(a, b, threads=1)
    kernels = pytest.importorskip("gemm.backends.cpu.kernels", reason="needs the CPU backend")
    before = kernels.loaded()
    got = gemm.matmul(a, b, epilogue=identity)
    assert kernels.loaded() == before, "an identity epilogue must run the kernel that has none"
    np.testing.assert_array_equal(got, gemm.matmul(a, b))


def test_equal_programs_share_a_kernel():
    from gemm.backends.cpu import kernels

    def make():
        return gemm.epilogue(lambda acc, shift: (acc + shift) * 3.0)

    a = normal(4, 4)
    gemm.matmul(a, a, epilogue=make()(shift=1.0))
    before = kernels.loaded()
    gemm.matmul(a, a, epilogue=make()(shift=2.0))
    assert kernels.loaded() == before


def instructions(level, write_back, program):
    """Instructions of the blocked kernel with a given hook, for `level`."""
    from numba.core.types import intp

    from gemm import blocked
    from gemm.backends import compiler, values
    from gemm.backends.cpu import kernels
    from gemm.kernels import KernelSpec

    tile = engine.tile_for(level, float32, None)
    spec = KernelSpec("blocked", tile, float32, float32, float32, program=program)
    original = blocked.make_write_back
    blocked.make_write_back = lambda shape, program: write_back or original(shape, program)
    try:
        function, kinds = spec.build()
        types = [intp if isinstance(kind, str) else values.Pointer(kind) for kind in kinds]
        target = kernels.target_of(engine.levels()[level])
        text = compiler.compile_assembly(function, types, target)
    finally:
        blocked.make_write_back = original
    return sum(line.startswith("\t") and line[1] != "." for line in text.splitlines())


def test_a_program_costs_what_the_same_code_by_hand_costs():
    level = engine.default_level()
    if level == "reference":
        pytest.skip("no instruction set of this machine is known, so there is nothing to count")
    shape = engine.tile_for(level, float32, None)
    lanes, vectors, row_size = shape.lanes, shape.vectors, shape.columns * 4

    def by_hand(t, c, rs, cs, m, n, row, column, batch, extra):
        rows = tile_spill(t, float32)
        index = ramp(lanes, int32)
        zero = fill(index, 0)
        row = row + table_integer(extra, 2)
        column = column + table_integer(extra, 3)
        batch = batch + table_integer(extra, 4)
        bias = shift(table_pointer(extra, 5, float32), column * table_integer(extra, 7)
                     + batch * table_integer(extra, 8))  # fmt: skip
        step = table_integer(extra, 10)
        out = shift(table_pointer(extra, 9, float32), batch * table_integer(extra, 12))
        out = shift(out, row * step + column * table_integer(extra, 11))
        for i in range(m):
            for v in range(vectors):
                left = n - v * lanes
                if left > 0:
                    b = load_lanes(shift(bias, v * lanes * 4), lanes, left)
                    at = shift(rows, i * row_size + v * lanes * 4)
                    x = add(load_lanes(at, lanes, lanes), b)
                    x = select(less(x, to_float(zero, float32)), to_float(zero, float32), x)
                    store_lanes(shift(out, i * step + v * lanes * 4), x, left)

    program = Program(
        float32, False,
        (("acc", 0), ("operand", 0, 0), ("add", 0, 1), ("constant", 0.0), ("larger", 2, 3)),
        (Operand("row", float32),), (Output("tile", (4,), float32),),
    )  # fmt: skip
    ours, hand = instructions(level, None, program), instructions(level, by_hand, program)
    assert ours <= 1.02 * hand, f"{ours} instructions, by hand {hand}"


def test_only_matmul_returns_several_outputs():
    with pytest.raises(ValueError, match="returns out, d_bias"):
        gemm.matvec(normal(3, 4), normal(4), epilogue=stock.bias_gradient()())
    got = gemm.matvec(normal(3, 4), np.zeros(4, "f4"), epilogue=stock.bias(bias=2.0))
    assert (got == 2.0).all()


def test_a_program_prints_the_same_in_every_process():
    program = Program(float32, False, (("acc", 0), ("constant", 2.0), ("multiply", 0, 1)), (), ())
    assert repr(program) == (
        "Program(acc=float32, pairs=False, nodes=(('acc', 0), ('constant', 2.0), "
        "('multiply', 0, 1)), operands=(), outputs=(), start=5, origin=3, pack_a=None, pack_b=None)"
    )
