"""dot, vdot, inner and tensordot against NumPy and Python integers."""

import numpy as np
import pytest
from exact import NATIVE, poisoned, product, small

import gemm
from gemm import contraction

rng = np.random.default_rng(5)


@pytest.mark.parametrize("dtype", NATIVE)
def test_dot_of_any_dimensions(dtype):
    for s1, s2 in (
        ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((3, 4), (4, 2)), ((2, 3, 4), (4,)),
        ((2, 3, 4), (5, 4, 2)), ((4,), (5, 4, 2)), ((2, 3, 4), (2, 5, 4, 2)), ((0, 4), (4, 2)),
        ((3, 0), (0, 2)),
    ):  # fmt: skip
        a, b = small(rng, s1, dtype, 2), small(rng, s2, dtype, 2)
        result, expected = gemm.dot(a, b), np.dot(a, b)
        assert result.dtype == expected.dtype and result.shape == expected.shape
        np.testing.assert_array_equal(result, expected)
        if result.ndim:
            out = poisoned(result.shape, dtype)
            assert gemm.dot(a, b, out) is out
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("dtype", NATIVE)
def test_inner_and_vdot(dtype):
    for s1, s2 in (((4,), (4,)), ((3, 4), (4,)), ((2, 3, 4), (5, 4)), ((2, 3, 4), (5, 2, 4))):
        a, b = small(rng, s1, dtype, 2), small(rng, s2, dtype, 2)
        np.testing.assert_array_equal(gemm.inner(a, b), np.inner(a, b))
        assert gemm.inner(a, b).dtype == dtype
    a, b = small(rng, (3, 4), dtype, 2), small(rng, (2, 6), dtype, 2)
    result = gemm.vdot(a.T, b)
    assert result == np.vdot(a.T, b) and type(result) is np.dtype(dtype).type


def test_scalars_multiply():
    a = np.arange(4, dtype="f4")
    for function in ("dot", "inner"):
        ours, theirs = getattr(gemm, function), getattr(np, function)
        for x, y in ((a, 3), (2.5, a), (3, 4), (np.float32(2), a)):
            np.testing.assert_array_equal(ours(x, y), theirs(x, y))
            assert ours(x, y).dtype == theirs(x, y).dtype


def test_a14_reversed_and_stepped_vectors():
    v = np.arange(8.0)[::-1]
    wide = np.repeat(np.arange(8.0), 2)
    for x in (v, v.copy(), wide[::2], wide[::-2]):
        for function in (gemm.dot, gemm.vdot, gemm.inner, gemm.vecdot, gemm.matmul):
            assert function(x, x) == 140
    assert gemm.einsum("i,i->", v, v) == 140


@pytest.mark.parametrize(
    "call, kind, text",
    [
        (lambda: gemm.dot(np.ones((2, 3)), np.ones((4, 2))), ValueError, r"\(2, 3\) and \(4, 2\)"),
        (lambda: gemm.inner(np.ones((2, 3)), np.ones((3, 2))), ValueError, "3 .* 2"),
        (lambda: gemm.vdot(np.ones((2, 3)), np.ones(5)), ValueError, "6 and 5"),
        (lambda: gemm.tensordot(np.ones((2, 3)), np.ones((2, 3)), 1), ValueError, "3 and 2"),
        (lambda: gemm.tensordot(np.ones(2), np.ones(2), ([0, 0], [0, 0])), ValueError, "duplicate"),
        (lambda: gemm.tensordot(np.ones(2), np.ones(2), ([0], [0, 0])), ValueError, "2 axes"),
        (lambda: gemm.tensordot(np.ones(2), np.ones(2), ([3], [0])), IndexError, "axis 3"),
        (lambda: gemm.tensordot(np.ones(2), np.ones(2), -1), ValueError, "-1"),
        (lambda: gemm.tensordot(np.ones(2), np.ones(2), 1.5), TypeError, "float"),
    ],
)
def test_refusals(call, kind, text):
    with pytest.raises(kind, match=text):
        call()


def test_dot_of_vectors_into_a_scalar_array():
    out = np.zeros(())
    for function in (gemm.dot, np.dot):
        assert type(function(np.ones(3), np.ones(3), out)) is np.float64 and out == 3


def test_dtypes_without_a_common_one_are_numpys():
    x, days = np.ones(3), np.arange(3).astype("m8[D]")
    for function in ("dot", "inner", "vdot"):
        ours, theirs = getattr(gemm, function), getattr(np, function)
        try:
            expected = theirs(x, days)
        except (TypeError, AttributeError) as error:
            with pytest.raises(type(error)):
                ours(x, days)
        else:
            assert ours(x, days) == expected


def test_dot_takes_only_its_own_kind_of_out():
    a, b = np.ones((2, 3)), np.ones((3, 2))
    frozen = np.zeros((2, 2))
    frozen.flags.writeable = False
    for out in (
        np.zeros((2, 2), "f4"), np.zeros((2, 3)), np.zeros((2, 2), order="F"), np.zeros(4), frozen,
        np.zeros((2, 4))[:, ::2], np.zeros((2, 2), ">f8"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="output array"):
            gemm.dot(a, b, out=out)
        assert not out.any()
    with pytest.raises(TypeError, match="list"):
        gemm.dot(a, b, out=[1])


@pytest.mark.parametrize(
    "axes",
    [0, 1, 2, ([0], [1]), ([1, 2], [1, 0]), ([2, 1], [0, 1]), (2, 0), ([-1], [0]), ([], []),
     ((0, 2), (2, 0))],
)  # fmt: skip
def test_tensordot_axes(axes):
    a, b = small(rng, (3, 3, 3), "i8"), small(rng, (3, 3, 3), "i8")
    for x in (a, a.T, a[::-1, :, ::-1], np.asfortranarray(a)):
        result, expected = gemm.tensordot(x, b, axes), np.tensordot(x, b, axes)
        np.testing.assert_array_equal(result, expected)
        assert np.shape(result) == np.shape(expected) and result.flags.c_contiguous


def test_tensordot_bits_do_not_depend_on_the_layout():
    a, b = rng.standard_normal((6, 7, 8)), rng.standard_normal((7, 8, 5))
    expected = gemm.tensordot(a, b, 2)
    for x in (np.asfortranarray(a), np.repeat(a, 2, axis=1)[:, ::2], a[::-1].copy()[::-1]):
        for y in (b, np.asfortranarray(b)):
            assert gemm.tensordot(x, y, 2).tobytes() == expected.tobytes()


def test_tensordot_plans_do_not_mix_up_dtypes_or_axes():
    """Same shapes and strides, another dtype or another pair of axes: another plan."""
    for dtype in ("i4", "f4", "f8", "u8"):
        a, b = small(rng, (4, 4), dtype), small(rng, (4, 4), dtype)
        for axes in (1, ([1], [0]), ([0], [0]), ([0], [1]), ([0, 1], [1, 0]), ([1, 0], [1, 0]), 2):
            result, expected = gemm.tensordot(a, b, axes), np.tensordot(a, b, axes)
            assert result.dtype == expected.dtype and type(result) is type(expected)
            np.testing.assert_array_equal(result, expected)


def test_axes_merge_without_a_copy_where_strides_allow():
    """The recipes: which operands are reshaped as views."""
    a, b = np.ones((64, 3, 5)), np.ones((5, 4, 6))

    def recipe(x, x_labels, y, y_labels, out):
        return contraction.plan(x_labels, x.shape, x.strides, y_labels, y.shape, y.strides, out)

    merged = recipe(a, (0, 1, 2), b, (2, 3, 4), (0, 1, 3, 4))
    assert merged.natural == (192, 24) and merged.batch is None
    assert np.shares_memory(a.reshape(merged.a[1]), a)
    stepped = a[:, ::2]
    rows = recipe(stepped, (0, 1, 2), b, (2, 3, 4), (0, 1, 3, 4))
    assert rows.batch == (2,) and rows.natural == (2, 64, 24)
    assert np.shares_memory(stepped.transpose(rows.a[0]).reshape(rows.a[1]), a)
    np.testing.assert_array_equal(rows(stepped, b, a.dtype), np.tensordot(stepped, b, 1))
    batched = recipe(np.ones((9, 2, 3)), (0, 1, 2), np.ones((9, 3, 4)), (0, 2, 3), (0, 1, 3))
    assert batched.a == batched.b == (None, None) and batched.natural == (9, 2, 4)


@pytest.mark.parametrize("rows", [1, 31, 40])
def test_dot_of_stacks_by_view_and_by_copy(rows):
    a, b = small(rng, (2, rows, 3), "f8"), small(rng, (4, 3, rows), "f8")
    np.testing.assert_array_equal(gemm.dot(a, b), np.dot(a, b))
    np.testing.assert_array_equal(
        gemm.dot(a[:, ::2], b[..., ::-1]), np.dot(a[:, ::2], b[..., ::-1])
    )
    assert product(a[0], b[0], "f8").shape == (rows, rows)
