"""matmul, matvec, vecmat and vecdot: dtypes, layouts, keywords and refusals."""

import inspect

import numpy as np
import pytest
from exact import INTEGERS, NATIVE, poisoned, product, small

import gemm

rng = np.random.default_rng(3)


@pytest.mark.parametrize("dtype", NATIVE)
@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 7), (7, 3)), ((7,), (7, 3)), ((5, 7), (7,)), ((7,), (7,)), ((2, 5, 7), (7, 3)),
        ((2, 1, 5, 7), (3, 7, 4)), ((0, 7), (7, 3)), ((5, 0), (0, 3)), ((0,), (0,)),
        ((2, 0, 4), (2, 4, 3)), ((1, 1), (1, 1)),
    ],
)  # fmt: skip
def test_every_dtype_and_shape(dtype, shapes):
    a, b = (small(rng, shape, dtype) for shape in shapes)
    result = gemm.matmul(a, b)
    expected = product(a, b, dtype)
    assert result.dtype == dtype and result.shape == expected.shape
    np.testing.assert_array_equal(result, expected)
    if result.ndim:
        out = poisoned(result.shape, dtype)
        assert gemm.matmul(a, b, out) is out
        np.testing.assert_array_equal(out, expected)
        out = poisoned(result.shape, dtype, order="F")
        assert gemm.matmul(a, b, out=(out,)) is out
        np.testing.assert_array_equal(out, expected)
    else:
        assert type(result) is np.dtype(dtype).type


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_wrap_at_their_width(dtype):
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, (4, 9), dtype=dtype, endpoint=True)
    b = rng.integers(info.min, info.max, (9, 5), dtype=dtype, endpoint=True)
    a[0], a[1], b[:, 0], b[:, 1] = info.min, info.max, info.min, info.max
    np.testing.assert_array_equal(gemm.matmul(a, b), product(a, b, dtype))


def test_a16_byte_swapped():
    a = np.arange(9.0).reshape(3, 3)
    x = np.array([0, 1, 2], ">f8")
    for p, q in ((a, x), (a.astype(">f8"), x), (a.astype(">f8"), x.astype("<f8"))):
        result = gemm.matmul(p, q)
        np.testing.assert_array_equal(result, [5, 14, 23])
        assert result.dtype.isnative
    out = np.full(3, np.nan, ">f8")
    assert gemm.matmul(a, x, out=out) is out
    np.testing.assert_array_equal(out, [5, 14, 23])


def test_a17_packed_records_are_unaligned():
    records = np.zeros(6, [("pad", "i1"), ("x", "f8")])
    records["x"] = np.arange(6)
    x = records["x"]
    assert x.strides == (9,)
    assert gemm.matmul(x, x) == 55
    result = gemm.matmul(x.reshape(2, 3), x.reshape(3, 2))
    np.testing.assert_array_equal(result, [[10, 13], [28, 40]])


def test_a18_bool_stays_bool():
    m = np.array([[True, False], [True, True]])
    result = m
    for _ in range(20):
        result = gemm.matmul(result, result)
    assert result.dtype == bool and result.tobytes() == m.tobytes()


def test_a19_dtype_is_applied_before_the_overflow():
    a, b = np.diag([30, 4]).astype("i1"), np.diag([5, 4]).astype("i1")
    np.testing.assert_array_equal(gemm.matmul(a, b, dtype=np.int16), [[150, 0], [0, 16]])
    np.testing.assert_array_equal(gemm.matmul(a, b), [[-106, 0], [0, 16]])
    wide = np.full((2, 600), -128, "i1")
    result = gemm.matmul(wide, wide.T, dtype=np.int32)
    assert result.dtype == np.int32 and (result == 600 * 128 * 128).all()
    assert gemm.matmul(wide[0], wide[0], dtype=np.int64) == 600 * 128 * 128


@pytest.mark.parametrize("dtype, value", [("u8", 2**63 + 1), ("u4", 2**31 + 1), ("u2", 2**15 + 1)])
def test_a20_unsigned_wraps(dtype, value):
    result = gemm.matmul(np.array([value], dtype), np.array([3], dtype))
    assert result == 3 * value % (1 << 8 * np.dtype(dtype).itemsize)


def test_a22_int64_is_exact_beyond_doubles():
    assert gemm.matmul(np.array([[2**53 + 1]]), np.array([[1]]))[0, 0] == 2**53 + 1


def test_a33_half_sums_beyond_2048():
    result = gemm.matmul(np.ones((10, 2050), "f2"), np.ones(2050, "f2"))
    np.testing.assert_array_equal(result, np.full(10, 2050, "f2"))
    assert gemm.matmul(np.ones(2050, "f2"), np.ones(2050, "f2")) == 2050


def test_a34_bfloat16_accumulates_wider():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs the ml_dtypes package")
    a = np.ones((8, 1024), ml_dtypes.bfloat16)
    result = gemm.matmul(a, a.T)
    assert result.dtype == a.dtype and (result.astype("f4") == 1024).all()
    wide = gemm.matmul(a, a.T, dtype=np.float32)
    assert wide.dtype == np.float32 and (wide == 1024).all()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(name):
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="float8 needs the ml_dtypes package")
    dtype = np.dtype(getattr(ml_dtypes, name))
    a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((3, 4), (4, 5)))
    expected = a.astype("f8") @ b.astype("f8")
    assert gemm.matmul(a, b).dtype == dtype
    rounded = expected.astype(dtype).astype("f8")  # e5m2 holds three significant bits
    np.testing.assert_array_equal(gemm.matmul(a, b).astype("f8"), rounded)
    np.testing.assert_array_equal(gemm.matmul(a, b, dtype="f4"), expected)


def test_extended_dtypes_mix_as_numpy_promotes_them():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs the ml_dtypes package")
    a = np.ones((2, 3), ml_dtypes.bfloat16)
    assert gemm.matmul(a, np.ones((3, 2), "f4")).dtype == np.float32
    with pytest.raises(TypeError, match="bfloat16"):
        gemm.matmul(a, np.ones((3, 2), "f2"))
    with pytest.raises(TypeError, match="bfloat16"):
        gemm.matmul(np.ones((2, 3), "f8"), np.ones((3, 2), "f8"), out=np.ones((2, 2), "i4"),
                    dtype=a.dtype)  # fmt: skip


def test_a35_intermediate_overflow_is_not_the_results():
    assert gemm.matmul(np.array([40000, 40000, -40000], "f2"), np.ones(3, "f2")) == 40000
    assert gemm.matmul(np.full(33, 1000, "f2"), np.ones(33, "f2")) == np.float16(33000)


@pytest.mark.parametrize("second", NATIVE)
@pytest.mark.parametrize("first", NATIVE)
def test_mixed_dtypes_promote_as_numpy(first, second):
    a, b = small(rng, (3, 4), first, 2), small(rng, (4, 2), second, 2)
    result, expected = gemm.matmul(a, b), np.matmul(a, b)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["longdouble", "clongdouble", "object"])
def test_dtypes_without_a_kernel_are_numpys(dtype):
    a = np.arange(6).reshape(2, 3).astype(dtype)
    result = gemm.matmul(a, a.T)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, np.matmul(a, a.T))
    for function in (gemm.dot, gemm.inner, gemm.tensordot):
        assert function(a[0], a[0], *([1] if function is gemm.tensordot else [])) == 5
    with pytest.raises(TypeError, match="accumulate"):
        gemm.matmul(a, a.T, accumulate=np.float64)


def test_overlap_of_out_and_operands():
    """CASES A04, A05, A06, A07, A10."""
    base = np.arange(9.0).reshape(3, 3)
    other = np.array([[1.0, 2, 0], [0, 1, 3], [2, 0, 1]])
    for first in (lambda x: x, lambda x: x.T, lambda x: x[::-1]):
        buffer = base.copy()
        expected = first(base).copy() @ other
        np.testing.assert_array_equal(gemm.matmul(first(buffer), other, out=buffer), expected)
        buffer = base.copy()
        np.testing.assert_array_equal(gemm.dot(first(buffer), other, out=buffer), expected)
    buffer = np.arange(50.0).reshape(10, 5)
    square = np.arange(25.0).reshape(5, 5) - 7
    expected = buffer[0:5].copy() @ square
    np.testing.assert_array_equal(gemm.matmul(buffer[0:5], square, out=buffer[1:6]), expected)
    a = np.arange(1.0, 10).reshape(3, 3)
    b = np.array([1.0, 2, 3])
    np.testing.assert_array_equal(gemm.matvec(a, b, out=b), [14, 32, 50])
    b = np.array([1.0, 2, 3])
    np.testing.assert_array_equal(gemm.vecmat(b, a, out=b), [30, 36, 42])
    ones = np.ones((2, 99, 99))
    assert (gemm.matmul(ones, ones, out=ones) == 99).all()


def test_out_of_another_dtype_or_with_more_batches():
    a, b = np.ones((2, 3), "f4"), np.ones((3, 2), "f4")
    out = poisoned((4, 2, 2), "c16")
    assert gemm.matmul(a, b, out=out) is out
    assert (out == 3).all()
    out = np.broadcast_to(np.zeros(2), (2, 2)).copy()
    view = np.lib.stride_tricks.as_strided(out, (2, 2), (0, 8))
    gemm.matmul(np.ones((2, 3)), np.ones((3, 2)), out=view)
    assert (view == 3).all()


def test_read_only_and_memory_mapped_operands(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(12, dtype="i4").reshape(3, 4))
    a = np.load(tmp_path / "a.npy", mmap_mode="r")
    result = gemm.matmul(a, a.T)
    assert type(result) is np.ndarray
    np.testing.assert_array_equal(result, np.asarray(a) @ np.asarray(a).T)
    zero = np.broadcast_to(np.float32(1), (4, 5))
    np.testing.assert_array_equal(gemm.matmul(np.ones((2, 4), "f4"), zero), np.full((2, 5), 4.0))
    target = np.lib.format.open_memmap(tmp_path / "c.npy", "w+", "<i4", (3, 3))
    assert gemm.matmul(a, a.T, out=target) is target
    np.testing.assert_array_equal(target, result)


@pytest.mark.parametrize("order", ["K", "C", "F", "A", "f", None])
def test_order(order):
    a, b = np.arange(24.0).reshape(4, 2, 3), np.arange(60.0).reshape(4, 3, 5)
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
        result, expected = gemm.matmul(x, y, order=order), np.matmul(x, y, order=order)
        np.testing.assert_array_equal(result, expected)
        assert result.flags.c_contiguous == expected.flags.c_contiguous
        assert result.flags.f_contiguous == expected.flags.f_contiguous


def test_a01_fortran_result():
    a, b = np.arange(24.0).reshape(4, 2, 3), np.arange(60.0).reshape(4, 3, 5)
    result = gemm.matmul(a, b, order="F")
    assert result.flags.f_contiguous
    np.testing.assert_array_equal(result[0], [[25, 28, 31, 34, 37], [70, 82, 94, 106, 118]])


@pytest.mark.parametrize(
    "axes",
    [
        [(-2, -1), (-1, -2), (1, 2)], [(-2, -1), (-1, -2), (0, 1)], [(0, 1), (1, 0), (2, 0)],
        [(1, 2), (2, 1), (-1, -2)],
    ],
)  # fmt: skip
def test_axes(axes):
    a = small(rng, (4, 4, 4), "i4")
    expected = np.matmul(a, a, axes=axes)
    np.testing.assert_array_equal(gemm.matmul(a, a, axes=axes), expected)
    out = poisoned(expected.shape, "i4")
    np.testing.assert_array_equal(gemm.matmul(a, a, axes=axes, out=out), expected)
    vector = np.arange(4, dtype="i4")
    expected = np.matvec(a, vector, axes=[axes[0], 0, 0])
    np.testing.assert_array_equal(gemm.matvec(a, vector, axes=[axes[0], 0, 0]), expected)


def test_signature_and_casting():
    a, b = np.ones((2, 3)), np.ones((3, 2))
    for keywords in (
        {"signature": "dd->d"}, {"dtype": "f4"},
        {"dtype": "c16"}, {"dtype": "i4", "casting": "unsafe"},
    ):  # fmt: skip
        assert gemm.matmul(a, b, **keywords).dtype == np.matmul(a, b, **keywords).dtype
    for keywords in (
        {"dtype": "i4"}, {"dtype": "f4", "casting": "safe"}, {"casting": "sideways"},
        {"dtype": "f8", "signature": "dd->d"}, {"order": "Z"}, {"where": True}, {"axis": 0},
        {"signature": "d"}, {"keepdims": True}, {"axes": [0, 1]}, {"axes": 3},
        {"axes": [(0, 1), (0, 1), (0, 5)]}, {"axes": [(0, 0), (0, 1), (0, 1)]},
    ):  # fmt: skip
        with pytest.raises(Exception) as theirs:
            np.matmul(a, b, **keywords)
        kind = next(x for x in (TypeError, ValueError) if isinstance(theirs.value, x))
        with pytest.raises(kind):
            gemm.matmul(a, b, **keywords)


@pytest.mark.parametrize(
    "arguments, kind, text",
    [
        ((np.ones((2, 3)), np.ones((4, 2))), ValueError, r"4.*3.*\(2, 3\).*\(4, 2\)"),
        ((np.ones((2, 2, 3)), np.ones((3, 3, 2))), ValueError, r"\(2, 2, 3\).*\(3, 3, 2\)"),
        ((np.float64(3), np.ones((4, 2))), ValueError, "dimensions"),
        ((np.ones((2, 3)), np.ones((3, 2)), np.ones((2, 2), "i4")), TypeError, "int32"),
        ((np.ones((2, 3)), np.ones((3, 2)), np.ones((3, 2))), ValueError, r"\(3, 2\)"),
        ((np.ones((5, 2, 3)), np.ones((3, 2)), np.ones((2, 2))), ValueError, r"\(2, 2\)"),
        ((np.ones((2, 3)), np.ones((3, 2)), np.ones((2,))), ValueError, "dimensions"),
        ((np.array(["a"]), np.array(["b"])), TypeError, "loop"),
    ],
)
def test_refusals(arguments, kind, text):
    out = arguments[2] if len(arguments) > 2 else None
    before = None if out is None else out.copy()
    with pytest.raises(kind, match=text):
        gemm.matmul(*arguments)
    with pytest.raises(kind):
        np.matmul(*arguments)
    if out is not None:
        np.testing.assert_array_equal(out, before)


def test_refusals_of_out():
    a, b = np.ones((2, 3)), np.ones((3, 2))
    frozen = np.zeros((2, 2))
    frozen.flags.writeable = False
    for out, kind in ((frozen, ValueError), ("no", TypeError), ((), ValueError), ([1], TypeError)):
        with pytest.raises(kind):
            gemm.matmul(a, b, out=out)
    assert not frozen.any()


def test_keywords_of_this_package():
    a, b = small(rng, (3, 5), "i1"), small(rng, (5, 2), "i1")
    expected = a.astype(int) @ b.astype(int)
    result = gemm.matmul(a, b, accumulate=np.int32, dtype=np.int32, threads=2)
    np.testing.assert_array_equal(result, expected)
    np.testing.assert_array_equal(gemm.matmul(a[0], b, kernel=None), expected[0])
    assert gemm.vecdot(a[0], a[0], accumulate=np.int32, dtype="i4") == (a[0].astype(int) ** 2).sum()
    np.testing.assert_array_equal(gemm.matmul(a, b, device="cpu"), gemm.matmul(a, b))
    with pytest.raises(ValueError, match="device='abacus'"):
        gemm.matmul(a, b, device="abacus")
    with pytest.raises(NotImplementedError, match="precision"):
        gemm.matmul(a, b, precision="tf32")
    with pytest.raises(TypeError, match="parrot"):
        gemm.matmul(a, b, parrot=1)


class Deferring(np.ndarray):
    def __array_ufunc__(self, ufunc, method, *inputs, **keywords):
        return ("ufunc", ufunc, method)

    def __array_function__(self, func, types, args, kwargs):
        return ("function", func)


class Refusing:
    __array_ufunc__ = None

    def __rmatmul__(self, other):
        return "reflected"


def test_duck_arrays_are_deferred_to():
    a = np.ones((2, 2))
    duck = a.view(Deferring)
    assert gemm.matmul(a, duck) == ("ufunc", np.matmul, "__call__")
    assert gemm.vecdot(duck, a) == ("ufunc", np.vecdot, "__call__")
    assert gemm.matmul(a, a, out=duck) == ("ufunc", np.matmul, "__call__")
    for function, arguments in (
        (np.dot, (a, duck)), (np.vdot, (duck, a)), (np.inner, (a, duck)),
        (np.tensordot, (a, duck)), (np.linalg.multi_dot, ([a, duck],)),
    ):  # fmt: skip
        ours = getattr(gemm, function.__name__, None) or getattr(gemm.linalg, function.__name__)
        assert ours(*arguments) == ("function", function)
    assert gemm.einsum("ij,jk", a, duck) == ("function", np.einsum)
    with pytest.raises(TypeError):
        gemm.matmul(a, Refusing())


def test_subclasses_keep_their_type():
    matrix = np.ma.array([[1, 2], [3, 4]]).data.view(np.matrix)
    for ours, theirs in ((gemm.matmul, np.matmul), (gemm.dot, np.dot), (gemm.inner, np.inner)):
        result = ours(matrix, np.eye(2))
        assert type(result) is type(theirs(matrix, np.eye(2))) is np.matrix
        np.testing.assert_array_equal(result, matrix)
    masked = np.ma.array([[1.0, 2], [3, 4]], mask=[[0, 1], [0, 0]])
    assert type(gemm.matmul(masked, masked)) is type(np.matmul(masked, masked))


def test_lists_and_scalars():
    np.testing.assert_array_equal(gemm.matmul([[1, 2]], [[3], [4]]), [[11]])
    assert gemm.matmul([1, 2], [3, 4]) == 11
    result = gemm.matmul(np.ones(2), np.ones(2), out=...)
    assert type(result) is np.ndarray and result.shape == ()


def test_vecdot_conjugates_and_keeps_dimensions():
    x = small(rng, (3, 4, 5), "c16")
    y = small(rng, (4, 5), "c16")
    for keywords in (
        {}, {"axis": -2}, {"keepdims": True}, {"axes": [0, 0]}, {"axis": 0, "keepdims": True},
    ):  # fmt: skip
        b = x[::-1] if "axes" in keywords or keywords.get("axis") == 0 else y
        np.testing.assert_array_equal(gemm.vecdot(x, b, **keywords), np.vecdot(x, b, **keywords))
    matrix = small(rng, (4, 5), "c16")
    np.testing.assert_array_equal(gemm.vecmat(x[..., 0], matrix), np.vecmat(x[..., 0], matrix))
    np.testing.assert_array_equal(gemm.matvec(matrix, x), np.matvec(matrix, x))
    assert gemm.vecdot(np.ones(3, bool), np.array([False, True, False])) is np.True_


def test_python_signature_is_short():
    """The fast path costs nothing for keywords that are absent: they are one dict."""
    parameters = inspect.signature(gemm.matmul).parameters
    assert list(parameters) == ["x1", "x2", "out", "keywords"]


def test_keywords_that_numpy_knows_by_two_names_or_checks():
    a = np.ones((2, 2))
    np.testing.assert_array_equal(gemm.matmul(a, a, sig="ff->f", casting="unsafe"), a @ a)
    with pytest.raises(TypeError, match="both"):
        gemm.matmul(a, a, sig="dd->d", signature="dd->d")
    with pytest.raises(TypeError, match="'subok' must be a boolean"):
        gemm.matmul(a, a, subok=3)
