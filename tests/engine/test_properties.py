"""Any shapes, any strides, any broadcast: the chain's bits of contiguous copies."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gemm

from .oracle import FLOATS, RUNNABLE, chain, forced, random, same_bits

extents = st.integers(0, 20)


@st.composite
def laid_out(draw, values: np.ndarray) -> np.ndarray:
    """The values in memory of another shape: permuted axes, steps, reversed, offset, unaligned."""
    order = draw(st.permutations(range(values.ndim)))
    steps = [draw(st.sampled_from((1, 1, 2, 3, -1, -2))) for _ in order]
    before = [draw(st.integers(0, 2)) for _ in order]
    byte = draw(st.sampled_from((0, 0, 1)))
    shape = [
        first + abs(step) * max(values.shape[axis], 1)
        for first, step, axis in zip(before, steps, order, strict=True)
    ]
    count = int(np.prod(shape))
    memory = np.full(count * values.itemsize + byte, 0xFF, np.uint8)[byte:].view(values.dtype)
    index = tuple(slice(first, None, abs(step)) for first, step in zip(before, steps, strict=True))
    view = memory.reshape(shape)[index]
    view = view[tuple(slice(0, values.shape[axis]) for axis in order)]
    view = view[tuple(slice(None, None, 1 if step > 0 else -1) for step in steps)]
    view = view.transpose(np.argsort(order))
    view[...] = values
    return view


@given(st.data(), st.sampled_from(FLOATS), extents, extents, extents)
@settings(max_examples=150, deadline=None)
def test_any_strides(data, dtype, m, n, k):
    a = data.draw(laid_out(random((m, k), dtype)))
    b = data.draw(laid_out(random((k, n), dtype, 1)))
    out = data.draw(laid_out(np.full((m, n), np.nan, dtype)))
    expected = chain(np.ascontiguousarray(a), np.ascontiguousarray(b))
    assert same_bits(gemm.matmul(a, b), expected)
    assert gemm.matmul(a, b, out=out) is out
    assert same_bits(out, expected)
    level = next(iter(RUNNABLE))
    assert same_bits(gemm.matmul(a, b, kernel=forced(level, dtype)), expected)


@st.composite
def broadcast_shapes(draw):
    """Two batch shapes that broadcast."""
    full = draw(st.lists(st.integers(0, 3), max_size=3))
    sides = []
    for _ in range(2):
        mine = [1 if draw(st.booleans()) else extent for extent in full]
        sides.append(tuple(mine[draw(st.integers(0, len(mine))) :]))
    return sides


@given(st.data(), broadcast_shapes(), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_any_batch(data, batches, m, n, k):
    a = data.draw(laid_out(random((*batches[0], m, k), "float64")))
    b = data.draw(laid_out(random((*batches[1], k, n), "float64", 1)))
    batch = np.broadcast_shapes(*batches)
    got = gemm.matmul(a, b, threads=data.draw(st.sampled_from((1, 2))))
    assert got.shape == (*batch, m, n)
    x = np.broadcast_to(a, (*batch, m, k))
    y = np.broadcast_to(b, (*batch, k, n))
    for index in np.ndindex(*batch):
        assert same_bits(got[index], chain(x[index], y[index]))


@given(st.sampled_from(FLOATS), extents, extents, extents, st.randoms())
@settings(max_examples=60, deadline=None)
def test_rows_and_columns_do_not_depend_on_what_else_is_computed(dtype, m, n, k, rng):
    a, b = random((m, k), dtype), random((k, n), dtype, 1)
    whole = gemm.matmul(a, b)
    rows = slice(*sorted((rng.randint(0, m), rng.randint(0, m))))
    columns = slice(*sorted((rng.randint(0, n), rng.randint(0, n))))
    assert same_bits(gemm.matmul(a[rows], b[:, columns]), whole[rows, columns])
