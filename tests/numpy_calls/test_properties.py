"""Invariants over dtypes x shapes x strides x overlap, found by hypothesis.

Operands hold small integers, so that NumPy, Python integers and the engine must agree exactly.
"""

import numpy as np
import pytest
from exact import NATIVE, poisoned, product
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

import gemm

RUN = settings(max_examples=100, deadline=None)
DTYPES = st.sampled_from(NATIVE)


@st.composite
def laid_out(draw, values):
    """`values` again, in memory of some other layout: order, steps, reversal, offset, alignment."""
    axes = draw(st.permutations(range(values.ndim)))
    steps = [draw(st.sampled_from((1, 1, 2, 3, -1, -2))) for _ in axes]
    offset = draw(st.sampled_from((0, 0, 1, 3)))
    swapped = draw(st.sampled_from((False, False, False, True)))
    dtype = values.dtype.newbyteorder() if swapped else values.dtype
    shape = [values.shape[i] * abs(steps[i]) for i in axes]
    raw = np.zeros(int(np.prod(shape)) * dtype.itemsize + offset, np.uint8)
    room = raw[offset:].view(np.uint8)
    array = np.ndarray(shape, dtype, room.data if room.size else bytearray(1))
    inverse = np.argsort(axes)
    view = array.transpose(inverse)[(..., *(slice(None, None, s) for s in steps))]
    view = view[(..., *(slice(0, n) for n in values.shape))]
    view[...] = values
    return view


@st.composite
def operands(draw, dtype, shape, zero_strides=True):
    dtype = np.dtype(dtype)
    low = 0 if dtype.kind in "ub" else -2
    top = 1 if dtype.kind == "b" else 2
    seed = draw(st.integers(0, 2**16))
    values = np.random.default_rng(seed).integers(low, top + 1, shape).astype(dtype)
    if zero_strides and values.ndim and draw(st.integers(0, 5)) == 0:
        axis = draw(st.integers(0, values.ndim - 1))
        if values.shape[axis]:
            return np.broadcast_to(values[(slice(None),) * axis + (slice(0, 1),)], shape)
    return draw(laid_out(values))


@RUN
@given(st.data(), DTYPES)
def test_matmul_equals_the_product_of_copies(data, dtype):
    shapes = data.draw(
        mutually_broadcastable_shapes(signature="(m?,k),(k,n?)->(m?,n?)", max_dims=2, max_side=5)
    )
    a, b = (data.draw(operands(dtype, shape)) for shape in shapes.input_shapes)
    expected = product(a, b, dtype)
    result = gemm.matmul(a, b)
    assert result.dtype == dtype and np.shape(result) == shapes.result_shape
    np.testing.assert_array_equal(result, expected)
    if np.ndim(result):
        out = data.draw(laid_out(poisoned(result.shape, dtype)))
        assert gemm.matmul(a, b, out=out) is out
        np.testing.assert_array_equal(out, expected)


@RUN
@given(st.data(), DTYPES, DTYPES)
def test_mixed_dtypes(data, first, second):
    m, k, n = (data.draw(st.integers(0, 4)) for _ in "mkn")
    a, b = data.draw(operands(first, (m, k))), data.draw(operands(second, (k, n)))
    for ours, theirs in ((gemm.matmul, np.matmul), (gemm.dot, np.dot)):
        result, expected = ours(a, b), theirs(a, b)
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)


@RUN
@given(st.data(), st.sampled_from(("int16", "float32", "float64", "complex64")))
def test_out_may_overlap_anything(data, dtype):
    """Operands and `out` are views, with steps of their own, of one small buffer."""
    buffer = data.draw(operands(dtype, (40,), zero_strides=False)).copy()
    size = data.draw(st.integers(1, 4))

    def view():
        rows, columns = (data.draw(st.sampled_from((1, 2, size, -1, -3))) for _ in "rc")
        spread = (size - 1) * (abs(rows) + abs(columns))
        start = data.draw(st.integers(0, 39 - spread)) if spread < 40 else 0
        start += (size - 1) * (abs(rows) * (rows < 0) + abs(columns) * (columns < 0))
        item = buffer.itemsize
        return np.lib.stride_tricks.as_strided(
            buffer[start:], (size, size), (rows * item, columns * item)
        )

    a, b, out = view(), view(), view()
    places = {out[i:, j:].__array_interface__["data"][0] for i in range(size) for j in range(size)}
    if len(places) < size * size:
        return  # an `out` that writes one place twice has no right answer
    expected = a.copy() @ b.copy()
    gemm.matmul(a, b, out=out)
    np.testing.assert_array_equal(out, expected)


@RUN
@given(st.data(), st.sampled_from(("int8", "int64", "float64", "complex128")))
def test_tensordot_any_axes(data, dtype):
    sizes = data.draw(st.lists(st.integers(0, 3), min_size=0, max_size=2))
    free_a = data.draw(st.lists(st.integers(0, 3), max_size=2))
    free_b = data.draw(st.lists(st.integers(0, 3), max_size=2))
    order_a = data.draw(st.permutations(range(len(free_a) + len(sizes))))
    order_b = data.draw(st.permutations(range(len(free_b) + len(sizes))))
    shape_a, shape_b = [*free_a, *sizes], [*free_b, *sizes]
    a = data.draw(operands(dtype, [shape_a[i] for i in order_a]))
    b = data.draw(operands(dtype, [shape_b[i] for i in order_b]))
    axes = (
        [order_a.index(len(free_a) + i) for i in range(len(sizes))],
        [order_b.index(len(free_b) + i) for i in range(len(sizes))],
    )
    np.testing.assert_array_equal(gemm.tensordot(a, b, axes), np.tensordot(a, b, axes))


@RUN
@given(st.data(), st.sampled_from(("bool", "uint8", "int32", "float16", "float64")))
def test_einsum_any_layout(data, dtype):
    labels = "abcd"
    size = {x: data.draw(st.integers(1, 3)) for x in labels}
    terms = data.draw(st.lists(st.text(labels, max_size=3), min_size=2, max_size=3))
    used = sorted(set("".join(terms)))
    output = "".join(data.draw(st.lists(st.sampled_from(used), unique=True)) if used else [])
    arrays = [data.draw(operands(dtype, [size[x] for x in term])) for term in terms]
    subscripts = f"{','.join(terms)}->{output}"
    np.testing.assert_array_equal(
        gemm.einsum(subscripts, *arrays), np.einsum(subscripts, *[x.copy() for x in arrays])
    )


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), m=st.integers(1, 20), k=st.integers(1, 70), n=st.integers(1, 20))
def test_real_numbers_within_the_bound(dtype, seed, m, k, n):
    """abs(error) <= gamma(K) * abs(A) @ abs(B), elementwise, against a wider product."""
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    if dtype.startswith("c"):
        a, b = a + 1j * rng.standard_normal((m, k)), b - 1j * rng.standard_normal((k, n))
    a, b = a.astype(dtype), b.astype(dtype)
    wide = np.clongdouble if dtype.startswith("c") else np.longdouble
    exact = a.astype(wide) @ b.astype(wide)
    chain = 4 * k if dtype.startswith("c") else k  # interleaved real fmas
    bound = chain * np.finfo(dtype).eps * (np.abs(a).astype(float) @ np.abs(b).astype(float))
    assert (np.abs(gemm.matmul(a, b) - exact) <= bound).all()
