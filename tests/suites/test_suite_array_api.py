"""The linear-algebra rules of the array API standard, on gemm.array_api.

array-api-tests, the suite for them, is on no package index; its rules for matmul, tensordot,
vecdot and matrix_transpose are put here in our own words, from the standard's text, with the
strategies of hypothesis.extra.array_api. Values are compared with sums written out in Python
integers, which array-api-tests does for integer dtypes only.

Source: https://data-apis.org/array-api/latest/extensions/linear_algebra_functions.html
"""

import inspect
import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.array_api import make_strategies_namespace

from gemm import array_api as xp

xps = make_strategies_namespace(xp)
NUMERIC = (
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
)
QUICK = settings(max_examples=60, deadline=None)

# Products of elements within +-3 over at most 5 x 5 terms are exact in every dtype but int8's
# and uint8's range, which wraps as modulo arithmetic does.
elements = st.integers(0, 3)
sides = st.integers(0, 4)


def arrays(dtype, shape):
    return xps.arrays(dtype=dtype, shape=shape, elements=elements)


@st.composite
def promotable(draw):
    """Two dtypes that the standard promotes (of one kind), and the result."""
    kinds = (NUMERIC[:4], NUMERIC[4:8], NUMERIC[8:10], NUMERIC[8:])
    first, second = (
        draw(st.sampled_from(draw(st.shared(st.sampled_from(kinds), key="kind")))) for _ in "ab"
    )
    return (
        getattr(xp, first),
        getattr(xp, second),
        xp.result_type(getattr(xp, first), getattr(xp, second)),
    )


def exact(total, dtype):
    """A Python integer as an element of `dtype`."""
    return np.asarray(total).astype(dtype)[()]


@QUICK
@given(st.data(), promotable())
def test_matmul(data, dtypes):
    first, second, promoted = dtypes
    m, k, n = (data.draw(sides) for _ in "mkn")
    shapes = data.draw(
        xps.mutually_broadcastable_shapes(2, max_dims=2, max_side=3), label="batch shapes"
    )
    batch = shapes.result_shape
    row, column = data.draw(st.booleans()), data.draw(st.booleans())
    s1 = (k,) if row else (*shapes.input_shapes[0], m, k)
    s2 = (k,) if column else (*shapes.input_shapes[1], k, n)
    x1, x2 = data.draw(arrays(first, s1)), data.draw(arrays(second, s2))
    result = xp.matmul(x1, x2)
    if row and column:
        expected_shape = ()
    elif row:
        expected_shape = (*shapes.input_shapes[1], n)
    elif column:
        expected_shape = (*shapes.input_shapes[0], m)
    else:
        expected_shape = (*batch, m, n)
    assert result.dtype == promoted
    assert result.shape == expected_shape
    full1 = np.asarray(x1)[None, :] if row else np.asarray(x1)
    full2 = np.asarray(x2)[:, None] if column else np.asarray(x2)
    outer = np.broadcast_shapes(full1.shape[:-2], full2.shape[:-2])
    full1 = np.broadcast_to(full1, outer + full1.shape[-2:])
    full2 = np.broadcast_to(full2, outer + full2.shape[-2:])
    flat = np.asarray(result).reshape(outer + (full1.shape[-2], full2.shape[-1]))
    for at in np.ndindex(*flat.shape):
        *where, i, j = at
        total = sum(
            int(full1[(*where, i, p)].real) * int(full2[(*where, p, j)].real) for p in range(k)
        )
        assert flat[at] == exact(total, promoted)


@QUICK
@given(st.data(), st.sampled_from(NUMERIC))
def test_matmul_refuses(data, name):
    dtype = getattr(xp, name)
    k, other = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4))
    assume(k != other)
    for s1, s2 in (((2, k), (other, 3)), ((k,), (other,)), ((), (k, k)), ((k, k), ())):
        with pytest.raises(ValueError):
            xp.matmul(xp.ones(s1, dtype=dtype), xp.ones(s2, dtype=dtype))


@QUICK
@given(st.data(), promotable())
def test_tensordot(data, dtypes):
    first, second, promoted = dtypes
    contracted = data.draw(st.lists(st.integers(1, 3), max_size=2))
    free1 = data.draw(st.lists(st.integers(0, 3), max_size=2))
    free2 = data.draw(st.lists(st.integers(0, 3), max_size=2))
    n = len(contracted)
    if data.draw(st.booleans(), label="axes is an int"):
        s1, s2, axes = (*free1, *contracted), (*contracted, *free2), n
        axes1, axes2 = tuple(range(len(free1), len(free1) + n)), tuple(range(n))
    else:
        axes1 = tuple(data.draw(st.permutations(range(len(free1) + n)))[:n])
        axes2 = tuple(data.draw(st.permutations(range(len(free2) + n)))[:n])
        s1, s2 = _shape(free1, contracted, axes1), _shape(free2, contracted, axes2)
        negative = data.draw(st.booleans())
        axes = (tuple(a - len(s1) if negative else a for a in axes1), axes2)
    x1, x2 = data.draw(arrays(first, s1)), data.draw(arrays(second, s2))
    result = xp.tensordot(x1, x2, axes=axes)
    assert result.dtype == promoted
    assert result.shape == (*free1, *free2)
    for at in np.ndindex(*result.shape):
        total = 0
        for inner in itertools.product(*map(range, contracted)):
            i = _index(at[: len(free1)], inner, axes1, len(s1))
            j = _index(at[len(free1) :], inner, axes2, len(s2))
            total += int(x1[i].real) * int(x2[j].real)
        assert result[at] == exact(total, promoted)


def _shape(free, contracted, axes):
    sizes = dict(zip(axes, contracted, strict=True))
    rest = iter(free)
    return tuple(sizes[i] if i in sizes else next(rest) for i in range(len(free) + len(axes)))


def _index(free, inner, axes, ndim):
    values = dict(zip(axes, inner, strict=True))
    rest = iter(free)
    return tuple(values[i] if i in values else next(rest) for i in range(ndim))


@QUICK
@given(st.data(), promotable())
def test_vecdot(data, dtypes):
    first, second, promoted = dtypes
    shapes = data.draw(xps.mutually_broadcastable_shapes(2, max_dims=2, max_side=3))
    size = data.draw(st.integers(0, 5))
    batch = shapes.result_shape
    s1, s2 = ((*s, size) for s in shapes.input_shapes)
    axis = -1
    if len(s1) == len(s2) and data.draw(st.booleans(), label="another axis"):
        axis = data.draw(st.integers(-len(s1), -1))
        s1, s2 = (_moved(s, axis) for s in (s1, s2))
    x1, x2 = data.draw(arrays(first, s1)), data.draw(arrays(second, s2))
    result = xp.vecdot(x1, x2, axis=axis)
    assert result.dtype == promoted
    assert result.shape == batch
    full1 = np.broadcast_to(np.moveaxis(x1, axis, -1), (*batch, size))
    full2 = np.broadcast_to(np.moveaxis(x2, axis, -1), (*batch, size))
    for at in np.ndindex(*batch):
        total = sum(int(p.real) * int(q.real) for p, q in zip(full1[at], full2[at], strict=True))
        assert result[at] == exact(total, promoted)


def _moved(shape, axis):
    """`shape` with its last size at `axis` instead."""
    rest = list(shape[:-1])
    rest.insert(len(shape) + axis, shape[-1])
    return tuple(rest)


def test_vecdot_conjugates_the_first():
    x1, x2 = xp.asarray([1 + 2j, 3j]), xp.asarray([2 - 1j, 1 + 1j])
    assert xp.vecdot(x1, x2) == (1 - 2j) * (2 - 1j) + (-3j) * (1 + 1j)


@pytest.mark.parametrize("s1, s2", [((3,), (4,)), ((2, 3), (5, 3)), ((), (3,))])
def test_vecdot_refuses(s1, s2):
    with pytest.raises(ValueError):
        xp.vecdot(xp.ones(s1), xp.ones(s2))


@QUICK
@given(xps.arrays(dtype=xps.scalar_dtypes(), shape=xps.array_shapes(min_dims=2, max_dims=4)))
def test_matrix_transpose(x):
    result = xp.matrix_transpose(x)
    assert result.dtype == x.dtype
    assert result.shape == (*x.shape[:-2], x.shape[-1], x.shape[-2])
    for at in np.ndindex(*result.shape):
        a, b = result[at], x[(*at[:-2], at[-1], at[-2])]
        assert a == b or (a != a and b != b)


@pytest.mark.parametrize("name", ["matmul", "tensordot", "vecdot", "matrix_transpose"])
def test_linalg_has_the_same_functions(name):
    x1, x2 = xp.ones((2, 2)), xp.ones((2, 2))
    arguments = (x1,) if name == "matrix_transpose" else (x1, x2)
    assert np.array_equal(getattr(xp, name)(*arguments), getattr(xp.linalg, name)(*arguments))


@pytest.mark.parametrize(
    "name, keywords", [("matmul", {}), ("tensordot", {"axes": 2}), ("vecdot", {"axis": -1})]
)
def test_signatures(name, keywords):
    parameters = inspect.signature(getattr(xp, name)).parameters
    assert [p.kind for p in parameters.values()] == [
        *[inspect.Parameter.POSITIONAL_ONLY] * 2,
        *[inspect.Parameter.KEYWORD_ONLY] * len(keywords),
    ]
    assert {k: p.default for k, p in parameters.items() if k in keywords} == keywords


def test_namespace():
    assert xp.__array_api_version__ >= "2022.12"
    assert "linalg" in dir(xp) and "matmul" in dir(xp)
    info = xp.__array_namespace_info__()
    assert info.default_dtypes()["real floating"] == xp.float64
    assert info.capabilities()["boolean indexing"] is True
    assert xp.pi == math.pi and xp.newaxis is None
    functions = "asarray zeros astype result_type sum where unique_values permute_dims concat"
    linear = "cholesky det inv qr svd solve eigh matrix_power outer pinv trace diagonal cross"
    for name in functions.split():
        assert callable(getattr(xp, name)), name
    for name in linear.split():
        assert callable(getattr(xp.linalg, name)), name
