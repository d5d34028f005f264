"""addmm and baddbmm: PyTorch's semantics, exact in small integers."""

import tracemalloc

import numpy as np
import pytest
from exact import COMPLEX, FLOATS, INTEGERS, product, small

import gemm

rng = np.random.default_rng(9)
DTYPES = (*INTEGERS, *FLOATS, *COMPLEX)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a37_accumulates_into_a_strided_array(dtype):
    a, b = small(rng, (4, 3), dtype, 2), small(rng, (3, 5), dtype, 2)
    buffer = small(rng, (8, 15), dtype, 2)
    c = buffer[::2, ::3]
    before, around = c.copy(), buffer.copy()
    ab = product(a, b, dtype)
    assert gemm.addmm(c, a, b, out=c) is c
    np.testing.assert_array_equal(c, before + ab)
    c[...] = before
    gemm.addmm(c, a, b, alpha=2, beta=3, out=c)
    np.testing.assert_array_equal(c, (3 * before + 2 * ab).astype(dtype))
    around[::2, ::3] = c
    np.testing.assert_array_equal(buffer, around)  # nothing beside it is touched


def test_c_is_subtracted():
    a, b, c = (small(rng, shape, "f8") for shape in ((4, 3), (3, 5), (4, 5)))
    np.testing.assert_array_equal(gemm.addmm(c, a, b, alpha=2, beta=-1), 2 * (a @ b) - c)


def test_beta_zero_does_not_read_input():
    a, b = np.ones((7, 3)), np.ones((3, 5))
    c = np.full((7, 5), np.nan)
    assert (gemm.addmm(c, a, b, beta=0, out=c) == 3).all()
    assert (gemm.addmm(np.full(5, np.nan), a, b, beta=0) == 3).all()
    empty = gemm.addmm(np.full((4, 4), np.nan), np.ones((4, 0)), np.ones((0, 4)), beta=0)
    assert (empty == 0).all()


def test_input_broadcasts_and_out_is_separate():
    a, b = small(rng, (2, 3), "f4"), small(rng, (3, 4), "f4")
    for given in (np.float32(2), np.arange(4, dtype="f4"), np.arange(2, dtype="f4")[:, None]):
        out = np.full((2, 4), np.nan, "f4")
        assert gemm.addmm(given, a, b, out=out) is out
        np.testing.assert_array_equal(out, given + a @ b)
        np.testing.assert_array_equal(gemm.addmm(given, a, b), given + a @ b)


def test_overlap():
    buffer = small(rng, (6, 4), "f8")
    b = small(rng, (4, 4), "f8")
    expected = buffer[1:5] + buffer[:4] @ b
    np.testing.assert_array_equal(gemm.addmm(buffer[1:5], buffer[:4], b, out=buffer[1:5]), expected)
    square = small(rng, (4, 4), "f8")
    expected = square + square @ square
    np.testing.assert_array_equal(gemm.addmm(square, square, square, out=square), expected)
    shifted = small(rng, (5, 4), "f8")
    expected = shifted[:4] + b @ b
    np.testing.assert_array_equal(gemm.addmm(shifted[:4], b, b, out=shifted[1:]), expected)


def test_baddbmm():
    c, a, b = (small(rng, s, "i4") for s in ((2, 3, 5), (2, 3, 4), (2, 4, 5)))
    np.testing.assert_array_equal(gemm.baddbmm(c, a, b, beta=2, alpha=-3), 2 * c - 3 * (a @ b))
    np.testing.assert_array_equal(gemm.baddbmm(c[0], a, b), c[0] + a @ b)
    view = np.zeros((3, 5, 2), "i4").transpose(2, 0, 1)
    gemm.baddbmm(view, a, b, out=view)
    np.testing.assert_array_equal(view, a @ b)


def test_no_temporary_of_the_size_of_the_result():
    n = 512
    a, b, c = np.ones((n, 8)), np.ones((8, n)), np.zeros((n, n))
    gemm.addmm(c, a, b, out=c)
    tracemalloc.start()
    try:
        gemm.addmm(c, a, b, out=c)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (c == 16).all()
    assert peak < c.nbytes / 2


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda: gemm.addmm(np.zeros((2, 2)), np.ones((2, 3)), np.ones((2, 2))), ValueError,
         "3 col"),
        (lambda: gemm.addmm(np.zeros((3, 2)), np.ones((2, 3)), np.ones((3, 2))), ValueError,
         "3, 2"),
        (lambda: gemm.addmm(0.0, np.ones(3), np.ones((3, 2))), ValueError, "2-D"),
        (lambda: gemm.baddbmm(0.0, np.ones((2, 2, 3)), np.ones((3, 3, 2))), ValueError, "equal"),
        (lambda: gemm.addmm(0, *[np.ones((2, 2), "i4")] * 2, alpha=0.5), TypeError, "0.5"),
        (lambda: gemm.addmm(0.0, *[np.ones((2, 2))] * 2, alpha=1j), TypeError, "real"),
        (lambda: gemm.addmm(False, *[np.ones((2, 2), bool)] * 2), TypeError, "bool"),
        (lambda: gemm.addmm(0.0, *[np.ones((2, 2), "O")] * 2), TypeError, "object"),
        (lambda: gemm.addmm(0.0, *[np.ones((2, 2))] * 2, out=np.ones((2, 3))), ValueError, "2, 3"),
        (lambda: gemm.addmm(0.0, *[np.ones((2, 2))] * 2, out=np.ones((2, 2), "f4")), TypeError,
         "float32"),
        (lambda: gemm.addmm(0.0, *[np.ma.ones((2, 2))] * 2), TypeError, "MaskedArray"),
    ],
)  # fmt: skip
def test_refusals(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_agrees_with_torch():
    torch = pytest.importorskip("torch", reason="compares with PyTorch where that is installed")
    for dtype in ("float32", "float64", "int32", "complex64"):
        c, a, b = (small(rng, s, dtype) for s in ((3, 5), (3, 4), (4, 5)))
        theirs = torch.addmm(*map(torch.from_numpy, (c, a, b)), beta=2, alpha=3).numpy()
        np.testing.assert_array_equal(gemm.addmm(c, a, b, beta=2, alpha=3), theirs)
