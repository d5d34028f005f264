"""K in parts on request: each part a chain, the sums in order, whatever the threads."""

import numpy as np
import pytest
from engine.oracle import chain, random, same_bits

import gemm


@pytest.mark.parametrize(("k", "parts"), [(1, 1), (8, 2), (9, 2), (5, 4), (1000, 7), (257, 257)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_are_chains_added_in_order(dtype, k, parts):
    a, b = random((5, k), dtype), random((k, 6), dtype, 1)
    each = -(-k // parts)
    expected = chain(a[:, :each], b[:each])
    for start in range(each, k, each):
        expected = expected + chain(a[:, start : start + each], b[start : start + each])
    for threads in (1, 2, 3):
        got = gemm.matmul(a, b, split_k=parts, threads=threads)
        assert same_bits(got, expected), threads
    assert same_bits(gemm.matmul(a, b, split_k=1), gemm.matmul(a, b))
    wide = np.full((5, 12), np.nan, dtype)[:, ::2]
    gemm.matmul(np.asfortranarray(a), b[:, ::-1], out=wide, split_k=parts)
    assert same_bits(wide, expected[:, ::-1])


def test_batches_vectors_and_broadcasts():
    a, b = random((3, 4, 50), "float64"), random((50, 7), "float64", 1)
    got = gemm.matmul(a, b, split_k=4)
    for i in range(3):
        assert same_bits(got[i], gemm.matmul(a[i], b, split_k=4))
    assert same_bits(gemm.matmul(a[0, 0], b, split_k=4), got[0, 0])
    assert same_bits(gemm.matmul(a[0, 0], b[:, 0], split_k=4), got[0, 0, 0])
    wide = np.broadcast_to(a[:1, :, :1], (2, 4, 50))
    assert same_bits(gemm.matmul(wide, b, split_k=5)[1], gemm.matmul(wide[1], b, split_k=5))


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint64", "bool"])
def test_integers_do_not_notice(dtype):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2 if dtype == "bool" else 1 << 30, s).astype(dtype)
            for s in ((4, 300), (300, 5)))  # fmt: skip
    assert np.array_equal(gemm.matmul(a, b, split_k=7), gemm.matmul(a, b))


def test_a_short_float_is_rounded_once():
    a, b = random((4, 64), "float16"), random((64, 5), "float16", 1) / np.float16(256)
    parts = [gemm.matmul(a[:, s].astype("f4"), b[s].astype("f4"))
             for s in (slice(0, 32), slice(32, 64))]  # fmt: skip
    assert same_bits(gemm.matmul(a, b, split_k=2), (parts[0] + parts[1]).astype("float16"))


def test_empty_sides():
    assert gemm.matmul(np.ones((3, 0)), np.ones((0, 2)), split_k=1).tolist() == [[0, 0]] * 3
    assert gemm.matmul(np.ones((0, 4)), np.ones((4, 2)), split_k=2).shape == (0, 2)


@pytest.mark.parametrize(
    ("split_k", "error", "message"),
    [(0, ValueError, "split_k=0: expected 1 to 4, K is 4"), (-1, ValueError, "K is 4"),
     (5, ValueError, "split_k=5: expected 1 to 4"), (2.0, TypeError, "2.0"),
     ("2", TypeError, "'2'"), (True, TypeError, "True")],
)  # fmt: skip
def test_nonsense_is_refused_and_out_untouched(split_k, error, message):
    out = np.full((3, 3), 5.0)
    with pytest.raises(error, match=message):
        gemm.matmul(np.ones((3, 4)), np.ones((4, 3)), out=out, split_k=split_k)
    assert (out == 5).all()
