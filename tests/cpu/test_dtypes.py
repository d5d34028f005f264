"""Every dtype against exact integers or sums, and against the reference target bit for bit."""

import ml_dtypes
import numpy as np
import pytest
from engine.oracle import RUNNABLE, UNITS, bfloat16_sums, chain, forced, same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

import gemm
from gemm import engine, planner, targets

BEST = next(iter(RUNNABLE))
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def kind(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def integers(shape, name: str, seed: int = 0) -> np.ndarray:
    """Over the whole range, with both ends and zero among them."""
    info = np.iinfo(name)
    rng = np.random.default_rng([seed, *shape])
    values = rng.integers(info.min, info.max, shape, name, endpoint=True)
    ends = rng.random(shape)
    values[ends < 0.2] = info.min
    values[ends > 0.8] = info.max
    return values


def exact(a: np.ndarray, b: np.ndarray, out: str) -> np.ndarray:
    """Python's integers, then modulo 2^width of `out`."""
    total = a.astype(object) @ b.astype(object)
    bits = np.iinfo(out).bits
    return np.array([int(x) % (1 << bits) for x in total.ravel()], object).astype(
        f"uint{bits}").view(out).reshape(total.shape)  # fmt: skip


def into(a, b, out: str, **options) -> np.ndarray:
    result = np.full((a.shape[0], b.shape[1]), 77, out)
    engine.product(a, b, result, **options)
    return result


# -- integers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", SIGNED + UNSIGNED)
def test_integers_are_exact_modulo_their_width(dtype):
    for m, k, n in ((1, 1, 1), (7, 5, 9), (33, 70, 19), (60, 130, 65), (2, 401, 3)):
        a, b = integers((m, k), dtype), integers((k, n), dtype, 1)
        got = gemm.matmul(a, b)
        assert got.dtype == dtype
        assert (got == exact(a, b, dtype)).all(), (m, k, n)


MIXES = [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]


@pytest.mark.parametrize("level", UNITS)
@pytest.mark.parametrize(("a_type", "b_type"), MIXES)
def test_eight_bits_into_32_in_all_sign_mixes(level, a_type, b_type):
    kernel = forced(level, "int32")  # the packed kernel alone: the others compile for long
    for m, k, n in ((1, 1, 1), (13, 6, 17), (30, 131, 65), (5, 7, 40)):
        a, b = integers((m, k), a_type), integers((k, n), b_type, 1)
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            got = into(x, y, "int32", kernel=kernel)
            assert (got == exact(a, b, "int32")).all(), (m, k, n)


@pytest.mark.parametrize("level", [*UNITS, "reference"])
def test_c28_pair_sums_do_not_saturate(level):
    """onnxruntime#6004: 255 * 127 + 255 * 127 does not fit 16 bits."""
    x = np.full((1, 4), 255, np.uint8)
    for w, expected in ((127, 129540), (-128, -130560)):
        b = np.full((4, 1), w, np.int8)
        kernel = forced(level, "int32") if level != "reference" else level
        assert into(x, b, "int32", kernel=kernel)[0, 0] == expected
        assert into(b.T, x.T, "int32", kernel=kernel)[0, 0] == expected


@pytest.mark.parametrize("level", [*UNITS, "reference"])
def test_c29_signed_by_signed_at_its_lowest(level):
    """oneDNN#476: emulated by unsigned, -128 overflowed."""
    for k, expected in ((2, 32768), (4, 65536)):
        low = np.full((3, k), -128, np.int8)
        kernel = forced(level, "int32") if level != "reference" else level
        assert (into(low, low.T, "int32", kernel=kernel) == expected).all()
        minus = np.full((k, 5), -1, np.int8)
        assert (into(low, minus, "int32", kernel=kernel) == 128 * k).all()


@given(st.sampled_from(MIXES), st.integers(1, 30), st.integers(0, 60), st.integers(1, 30),
       st.integers(0, 3))  # fmt: skip
@settings(max_examples=80, deadline=None)
def test_any_eight_bit_product(types, m, k, n, layout):
    a, b = integers((m, k), types[0]), integers((k, n), types[1], 1)
    x = np.asfortranarray(a) if layout & 1 else a
    y = np.asfortranarray(b) if layout & 2 else b
    assert (into(x, y, "int32") == exact(a, b, "int32")).all()


def test_bool_is_any_and():
    rng = np.random.default_rng(0)
    for m, k, n in ((1, 1, 1), (9, 300, 7), (65, 64, 66)):
        a, b = rng.random((m, k)) < 0.1, rng.random((k, n)) < 0.1
        got = gemm.matmul(a, b)
        assert got.dtype == bool
        assert (got == (a.astype(int) @ b.astype(int) > 0)).all()


def test_two_to_the_16_and_more_true_products_stay_true():
    """A count of 256, 65536 or 2^32 that is kept in the result's own width would be 0: false."""
    ones = np.ones((1, 65536), bool)
    assert gemm.matmul(ones[:, :256], ones[:, :256].T)[0, 0]
    assert gemm.matmul(ones, ones.T)[0, 0]


# -- floats --------------------------------------------------------------------------------------


def halves(shape, name: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    scale = 2.0 ** rng.integers(-3, 4, shape)
    return (rng.standard_normal(shape) * scale).astype("float32").astype(kind(name))


def pairs_run(name: str) -> bool:
    """Whether the best level multiplies bfloat16 in pairs, which flushes subnormals."""
    t = targets.element_type(kind(name))
    acc = targets.accumulator(t, t)
    return any((planner.panel_units(BEST, t, t, t, acc), planner.block_units(BEST, t, t, acc)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", *FLOAT8])
def test_short_floats_are_the_float32_chain_rounded_once(dtype):
    for m, k, n in ((1, 1, 1), (7, 9, 5), (33, 200, 17), (70, 65, 66)):
        a, b = halves((m, k), dtype), halves((k, n), dtype, 1)
        got = gemm.matmul(a, b)
        assert got.dtype == kind(dtype)
        sums = bfloat16_sums if dtype == "bfloat16" else chain
        with np.errstate(all="ignore"):
            expected = sums(a.astype("f4"), b.astype("f4")).astype(kind(dtype))
        bits = f"u{kind(dtype).itemsize}"
        wrong = (got.view(bits) != expected.view(bits)) & ~(np.isnan(got) & np.isnan(expected))
        assert not wrong.any(), (m, k, n)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_short_floats_into_float32_lie_within_the_bound(dtype):
    """Products are exact in float32, so only the K additions round: K u of |A| |B|, plus 1."""
    m, k, n = 40, 333, 30
    a, b = halves((m, k), dtype), halves((k, n), dtype, 1)
    got = into(a, b, "float32")
    wide_a, wide_b = a.astype("f8"), b.astype("f8")
    bound = (k + 1) * 2.0**-24 * (abs(wide_a) @ abs(wide_b))
    assert (abs(got - wide_a @ wide_b) <= bound).all()


@pytest.mark.parametrize(("dtype", "k"), [("float16", 2050), ("bfloat16", 1024), ("float16", 4096)])
def test_long_sums_of_ones_are_exact(dtype, k):
    ones = np.ones((3, k)).astype(kind(dtype))
    assert (gemm.matmul(ones, ones.T).astype("f8") == float(kind(dtype).type(k))).all()


def test_float16_overflows_to_infinity_and_keeps_subnormals():
    big = np.full((1, 4), 60000, np.float16)
    assert np.isinf(gemm.matmul(big, np.ones((4, 1), np.float16))[0, 0])
    small = np.full((1, 1), 2.0**-24, np.float16)
    assert gemm.matmul(small, np.ones((1, 1), np.float16))[0, 0] == small[0, 0]


@pytest.mark.skipif(pairs_run("bfloat16"), reason="the pair instruction flushes subnormals")
def test_bfloat16_keeps_subnormals():
    small = np.full((1, 3), 2.0**-133).astype(ml_dtypes.bfloat16)
    one = np.ones((3, 1)).astype(ml_dtypes.bfloat16)
    assert float(gemm.matmul(small, one)[0, 0]) == 3 * 2.0**-133


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("level", UNITS)
def test_complex_lies_within_the_bound_of_its_2k_steps(dtype, level):
    """Each part is one chain of 2 K fused steps: 2 K u of the sums of the parts' magnitudes."""
    real = np.finfo(dtype).dtype
    u = np.finfo(real).eps / 2
    for m, k, n in ((1, 1, 1), (9, 31, 13), (40, 70, 33)):
        rng = np.random.default_rng([m, k, n])
        a, b = (
            (rng.standard_normal(s) + 1j * rng.standard_normal(s)).astype(dtype)
            for s in ((m, k), (k, n))
        )
        got = gemm.matmul(a, b, kernel=forced(level, dtype))
        ar, ai, br, bi = (x.astype(np.longdouble) for x in (a.real, a.imag, b.real, b.imag))
        bound = (4 * k + 2) * u
        for part, true, size in (
            (got.real, ar @ br - ai @ bi, abs(ar) @ abs(br) + abs(ai) @ abs(bi)),
            (got.imag, ar @ bi + ai @ br, abs(ar) @ abs(bi) + abs(ai) @ abs(br)),
        ):
            assert (abs(part - true) <= bound * size).all()


# -- the reference target ------------------------------------------------------------------------


def small(a_type: str) -> str:
    """A tile and blocks of which a few fill the operands; whole blocks are of 32 k at least."""
    t = targets.element_type(kind(a_type))
    whole = a_type == "bfloat16" and planner.block_units(BEST, t, t, targets.accumulator(t, t))
    return "32x32:32,32,32" if whole else "6x16:12,8,16"


REFERENCE = [
    *[(t, t, t) for t in ("int8", "int16", "uint16", "int32", "int64", "uint64", "float16",
                          "bfloat16", "complex64", "float8_e4m3fn")],
    ("int8", "int8", "int32"), ("uint8", "int8", "int32"), ("bfloat16", "bfloat16", "float32"),
]  # fmt: skip


@pytest.mark.parametrize(("a_type", "b_type", "out_type"), REFERENCE)
@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_reference_target_agrees(a_type, b_type, out_type, k):
    """Small blocks on the reference, the level's own here: two K blocks, every tail."""
    m, n = 14, 19

    def operand(shape, name, seed):
        if kind(name).kind in "iu":
            return integers(shape, name, seed)
        if kind(name).kind == "c":
            return (halves(shape, "float32") + 1j * halves(shape, "float32", 2)).astype(name)
        return halves(shape, name, seed)

    a, b = operand((m, k), a_type, 0), operand((k, n), b_type, 1)
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
        reference, best = (np.full((m, n), 7).astype(kind(out_type)) for _ in range(2))
        engine.product(x, y, reference, kernel=f"reference:{small(a_type)}")
        engine.product(x, y, best)
        assert same_bits(reference.view(np.uint8), best.view(np.uint8))
