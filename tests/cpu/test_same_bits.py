"""The same bits for any threads, split, slice, layout and kernel of the machine's fused levels."""

import ml_dtypes
import numpy as np
import pytest
from engine.oracle import RUNNABLE, bfloat16_sums, random, same_bits, tile
from hypothesis import given, settings
from hypothesis import strategies as st

import gemm

FUSED = [name for name, level in RUNNABLE.items() if level.fused]
BEST = next(iter(RUNNABLE))


def test_r01_a_batch_split_in_two_or_in_fifty():
    """pytorch#45422"""
    x, w = random((100, 30, 8), "float32"), random((8, 20), "float32", 1)
    whole = gemm.matmul(x, w)
    for parts in (2, 50):
        assert same_bits(np.concatenate([gemm.matmul(p, w) for p in np.split(x, parts)]), whole)


def test_r02_one_row_or_two():
    """pytorch#51276"""
    rows = random((2, 90), "float64")
    b = random((90, 128), "float64", 1)
    assert same_bits(gemm.matmul(rows[:1], b)[0], gemm.matmul(rows, b)[0])
    assert same_bits(gemm.matmul(rows[0], b), gemm.matmul(rows, b)[0])
    ones = np.ones((2, 90)), b
    assert same_bits(gemm.matmul(ones[0][:1], b)[0], gemm.matmul(*ones)[0])


def test_r03_a_slice_before_or_after():
    """pytorch#111840"""
    x, w = random((1, 4, 1024), "float32"), random((1024, 2048), "float32", 1)
    assert same_bits(gemm.matmul(x[:, 0], w), gemm.matmul(x, w)[:, 0])
    assert same_bits(gemm.matmul(x[0, 0], w), gemm.matmul(x, w)[0, 0])


def test_r04_one_dimension_or_two_or_three():
    """pytorch#80027"""
    w = random((256, 256), "float32")
    last = random((2, 256), "float32", 1)
    products = [gemm.matmul(last, w)]
    for rows in (4, 5):
        x = random((2, rows, 256), "float32", rows)
        x[:, -1] = last
        products.append(gemm.matmul(x, w)[:, -1])
    products.append(np.stack([gemm.matmul(v, w) for v in last]))
    assert all(same_bits(p, products[0]) for p in products)


def test_r05_without_the_last_row():
    """tensorflow#39707"""
    b = random((100, 100), "float32", 1)
    for d in range(1, 20):
        a = random((d + 1, 100), "float32", d)
        assert same_bits(gemm.matmul(a[:d], b), gemm.matmul(a, b)[:d]), d


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_r06_any_number_of_threads(dtype):
    """oneDNN#789"""
    a, b = random((257, 1031), dtype), random((1031, 129), dtype, 1)
    alone = gemm.matmul(a, b, threads=1)
    for threads in (2, 3, 8):
        assert same_bits(gemm.matmul(a, b, threads=threads), alone), threads
    assert same_bits(gemm.matmul(a[:5], b), alone[:5])
    assert same_bits(gemm.matmul(a, b[:, 7:9]), alone[:, 7:9])


def test_r07_a_hundred_runs():
    """blis#406; fresh processes in test_processes.py"""
    a, b = random((130, 257), "float64"), random((257, 131), "float64", 1)
    first = gemm.matmul(a, b)
    assert all(same_bits(gemm.matmul(a, b, threads=1 + i % 3), first) for i in range(100))


def test_r08_symmetric_where_mathematics_says_so():
    """numpy#12218, numpy#6793"""
    for shape in ((5, 11), (2, 1000), (150, 70)):
        y = random(shape, "float64")
        product = gemm.matmul(y, (2 * y).T)
        assert same_bits(product, product.T)
    x = random((2, 1000), "float64")
    centred = x - x.mean(1, keepdims=True)
    covariance = gemm.matmul(centred, centred.T)
    assert covariance[0, 1] == covariance[1, 0]


def test_r11_the_batch_of_a_server_does_not_show_in_bfloat16():
    """TransformerEngine PR 3556: every way to split 64 rows in two."""
    x = random((64, 1024), "float32").astype(ml_dtypes.bfloat16)
    w = random((96, 1024), "float32", 1).astype(ml_dtypes.bfloat16)
    whole = gemm.matmul(x, w.T)
    assert whole.dtype == ml_dtypes.bfloat16
    for split in range(1, 64):
        parts = [gemm.matmul(p, w.T) for p in (x[:split], x[split:])]
        assert same_bits(np.concatenate(parts).view(np.uint16), whole.view(np.uint16)), split
    column = bfloat16_sums(x, w[:1].T).astype(ml_dtypes.bfloat16)
    assert same_bits(column.view(np.uint16), whole[:, :1].view(np.uint16))


def kernels_of(dtype: str) -> list[str | None]:
    """The selected kernel and forced ones of the same family of instructions."""
    shape = tile(BEST, dtype)
    rows, columns = shape.rows, shape.columns
    named = [f"{level}:{tile(level, dtype).rows}x{tile(level, dtype).columns}" for level in FUSED]
    return [None, *named, f"{BEST}:{rows}x{columns}:{rows},16,{columns}",
            f"{BEST}:{rows}x{columns}:{3 * rows},7,{2 * columns}"]  # fmt: skip


LAYOUTS = ("C", "F", "stepped", "backwards")


def place(layout: str, m: int, n: int, dtype: str) -> np.ndarray:
    """An output of a layout, filled with what must not be read."""
    if layout == "stepped":
        return np.full((2 * m, 3 * n), np.nan, dtype)[::2, ::3]
    if layout == "backwards":
        return np.full((m, n), np.nan, dtype)[::-1, ::-1]
    return np.full((m, n), np.nan, dtype, order="F" if layout == "F" else "C")


sizes = st.one_of(st.integers(1, 40), st.sampled_from((63, 64, 65, 96, 130, 257)))


@given(st.data(), st.sampled_from(("float32", "float64")), sizes, sizes, sizes)
@settings(max_examples=120, deadline=None)
def test_any_shape_slice_split_threads_layout_and_kernel(data, dtype, m, n, k):
    draw = data.draw
    a, b = random((m, k), dtype), random((k, n), dtype, 1)
    whole = gemm.matmul(a, b, threads=1)
    top, bottom = sorted(draw(st.tuples(st.integers(0, m), st.integers(0, m))))
    left, right = sorted(draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    cuts = sorted(draw(st.lists(st.integers(top, bottom), max_size=3)))
    threads = draw(st.integers(1, 5))
    kernel = draw(st.sampled_from(kernels_of(dtype)))
    if draw(st.booleans()):
        a = np.asfortranarray(a)
    if draw(st.booleans()):
        b = np.asfortranarray(b)
    layout = draw(st.sampled_from(LAYOUTS))
    out = place(layout, bottom - top, right - left, dtype)
    for start, stop in zip((top, *cuts), (*cuts, bottom), strict=True):
        part = out[start - top : stop - top]
        gemm.matmul(a[start:stop], b[:, left:right], out=part, threads=threads, kernel=kernel)
    assert same_bits(out, whole[top:bottom, left:right])


@given(
    st.sampled_from(("float32", "float64")), st.integers(1, 7), st.integers(1, 30),
    st.integers(1, 30), st.integers(1, 300), st.integers(1, 4), st.booleans(),
)  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_a_batch_is_its_matrices(dtype, count, m, n, k, threads, shared):
    a = random((count, m, k), dtype)
    b = random((k, n) if shared else (count, k, n), dtype, 1)
    got = gemm.matmul(a, b, threads=threads)
    flat = gemm.matmul(a.reshape(-1, k), b) if shared else None
    for i in range(count):
        one = gemm.matmul(a[i], b if shared else b[i], threads=1)
        assert same_bits(got[i], one)
        assert same_bits(got[i, 0], gemm.matmul(a[i, 0], b if shared else b[i]))
        if flat is not None:
            assert same_bits(flat[i * m : (i + 1) * m], one)
