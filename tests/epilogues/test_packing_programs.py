"""Programs in the packing: scaling, statistics, interleaving, dequantising."""

import numpy as np
import pytest

import gemm
from gemm import engine
from gemm.epilogues import stock
from gemm.microkernels.dtypes import float32

RNG = np.random.default_rng(40)


def normal(*shape):
    return RNG.standard_normal(shape).astype("f4")


def close(got, want):
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def small_blocks():
    tile = engine.tile_for("reference", float32, None, True)
    return f"reference:{tile.rows}x{tile.columns}:{tile.rows},4,{tile.columns}"


SIZES = ((1, 2, 1), (7, 34, 9), (13, 50, 12))


@pytest.mark.parametrize("kernel", [None, "blocks"])
def test_scaling_a_and_b(kernel):
    kernel = kernel and small_blocks()
    for m, n, k in SIZES:
        a, b = normal(m, k), normal(k, n)
        row, column = normal(m, 1), normal(k)
        scaled = gemm.Packed(a, stock.scale(row=row, column=column))
        close(gemm.matmul(scaled, b, kernel=kernel), (a * row * column) @ b)
        gains, factors = normal(k, 1), normal(n)
        scaled = gemm.Packed(b, stock.scale(row=gains, column=factors))
        got = gemm.matmul(np.asfortranarray(a), scaled, kernel=kernel, epilogue=stock.relu)
        close(got, np.maximum(a @ (b * gains * factors), 0))


@pytest.mark.parametrize("kernel", [None, "blocks"])
def test_rmsnorm_and_product_in_one(kernel):
    kernel = kernel and small_blocks()
    for m, n, k in SIZES:
        h, w, gamma = normal(m, k), normal(k, n), normal(k)
        got = gemm.matmul(
            gemm.Packed(h, stock.gain_and_square(gamma=gamma)), w, kernel=kernel,
            epilogue=stock.rmsnorm_of_square(square="square", k=k),
        )  # fmt: skip
        r = 1 / np.sqrt((h.astype("f8") ** 2).mean(-1, keepdims=True) + 1e-6)
        close(got["out"], (h * r * gamma) @ w)
        close(got["square"], (h * h).sum(-1, keepdims=True))
        assert got["square"].shape == (m, 1)


def test_statistics_have_the_same_bits_for_any_threads():
    h, w = normal(40, 30), normal(30, 70)
    program = stock.gain_and_square(gamma=2.0)
    one = gemm.matmul(gemm.Packed(h, program), w, threads=1)
    two = gemm.matmul(gemm.Packed(h, program), w, threads=2)
    chain = np.zeros(40, "f4")
    for x in h.T:
        chain = x * x + chain
    np.testing.assert_array_equal(one["square"], two["square"])
    np.testing.assert_array_equal(one["square"][:, 0], chain)
    np.testing.assert_array_equal(one["out"], two["out"])


@pytest.mark.parametrize("kernel", [None, "blocks"])
def test_two_weights_interleaved(kernel):
    kernel = kernel and small_blocks()
    for m, n, k in SIZES:
        a, weights = normal(m, k), normal(k, n)
        half = n // 2
        gate, up = a @ weights[:, :half], a @ weights[:, half:]
        b = stock.interleaved(weights[:, :half], weights[:, half:])
        got = gemm.matmul(a, b, epilogue=stock.swiglu, kernel=kernel)
        close(got, gate / (1 + np.exp(-gate)) * up)


@pytest.mark.parametrize("kernel", [None, "blocks"])
def test_dequantised_weights(kernel):
    kernel = kernel and small_blocks()
    for m, n, k in SIZES:
        a = normal(m, k)
        q = RNG.integers(-128, 128, (k, n), dtype=np.int8)
        scale, zero = normal(n), RNG.integers(-3, 3, n)
        b = stock.dequantised(q, scale, zero)
        close(gemm.matmul(a, b, kernel=kernel), a @ ((q - zero) * scale).astype("f4"))
        groups = 3 if k % 3 == 0 else 1
        scale, zero = normal(groups, n), RNG.integers(-3, 3, (groups, n))
        wide = np.repeat(scale, k // groups, 0), np.repeat(zero, k // groups, 0)
        close(gemm.matmul(a, stock.dequantised(q, scale, zero), kernel=kernel),
              a @ ((q - wide[1]) * wide[0]).astype("f4"))  # fmt: skip


@pytest.mark.parametrize("signed", [False, True])
def test_weights_of_four_bits(signed):
    for m, n, k in SIZES:
        a = normal(m, k)
        q = RNG.integers(-8 if signed else 0, 8 if signed else 16, (k, n))
        whole = np.zeros((k + k % 2, n), int)
        whole[:k] = q
        packed = ((whole[::2] & 15) | (whole[1::2] & 15) << 4).astype(np.uint8)
        groups = 3 if k % 3 == 0 else 1
        scale = normal(groups, n)
        b = stock.dequantised(gemm.Nibbles(packed, signed), scale, None if signed else 8, (k, n))
        zero = 0 if signed else 8
        want = a @ ((q - zero) * np.repeat(scale, k // groups, 0)).astype("f4")
        for kernel in (None, small_blocks()):
            close(gemm.matmul(a, b, kernel=kernel), want)


def test_an_integer_operand_is_widened_under_a_program():
    a, q = normal(5, 8), RNG.integers(-128, 128, (8, 20), dtype=np.int8)
    got = gemm.matmul(a, gemm.Packed(q, stock.scale(column=0.5)))
    close(got, a @ (q * np.float32(0.5)))


def test_misuse_is_refused():
    a, b = normal(4, 6), normal(6, 8)
    with pytest.raises(TypeError, match="float accumulator"):
        gemm.matmul(gemm.Packed(a.astype(int), stock.scale(row=1)), b.astype(int))
    with pytest.raises(TypeError, match="adjacent in B only"):
        gemm.matmul(gemm.Packed(a, stock.rope(cos=1.0, sin=0.0)), b)
    with pytest.raises(TypeError, match="a statistic over all of k"):
        program = gemm.epilogue(lambda acc: {"out": acc, "s": gemm.per_row(acc)})
        gemm.matmul(gemm.Packed(a, program), b)
    with pytest.raises(TypeError, match="names the statistic 'square'"):
        gemm.matmul(a, b, epilogue=stock.rmsnorm_of_square(square="square", k=6))
    with pytest.raises(TypeError, match="given a shape only"):
        gemm.matmul(a, gemm.Packed(None, stock.scale(row=2.0), (6, 8)))
    with pytest.raises(ValueError, match=r"\(5,\).*row vector \(6,\), column vector \(4, 1\)"):
        gemm.matmul(gemm.Packed(a, stock.scale(row=np.ones(5))), b)
    with pytest.raises(TypeError, match="uint8"):
        gemm.Nibbles(np.zeros((3, 4), np.int8))
    with pytest.raises(ValueError, match="do not fill"):
        nibbles = gemm.Nibbles(np.zeros((2, 8), np.uint8))
        gemm.matmul(a, stock.dequantised(nibbles, 1.0, shape=(6, 8)))
