"""Inputs that public issues report as wrong somewhere (NumPy, Numba, CuPy, OpenBLAS and others)."""

import ctypes
import ctypes.util
import platform
import timeit
import warnings

import numpy as np
import pytest

import gemm

from .oracle import FLOATS, UNITS, chain, forced, random, same_bits, tile

DTYPES = [*FLOATS, "complex64", "complex128", "int64"]
WITHOUT_BLAS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16"]


def test_a01_fortran_ordered_result_of_a_batch():
    """numpy#29164"""
    a, b = np.arange(24.0).reshape(4, 2, 3), np.arange(60.0).reshape(4, 3, 5)
    got = gemm.matmul(a, b, order="F")
    assert got[0].tolist() == [[25, 28, 31, 34, 37], [70, 82, 94, 106, 118]]
    assert got.flags.f_contiguous
    assert np.array_equal(got, np.einsum("bij,bjk->bik", a, b))


def test_a02_reversed_and_stepped_operands_and_out():
    """numpy#29164, second report"""
    a = np.arange(100.0).reshape(10, 10)[::-2, ::-2]
    buffer = np.full((10, 10), -7.0)
    out = buffer[::-2, ::-2]
    gemm.matmul(a, a, out=out)
    assert out[0].tolist() == [28425, 27475, 26525, 25575, 24625]
    assert np.array_equal(out, np.einsum("ij,jk->ik", a, a))
    assert (buffer == -7).sum() == 75


@pytest.mark.parametrize("dtype", DTYPES)
def test_a03_stride_zero(dtype):
    """numpy#12156"""
    ones = np.ones((2, 4), dtype)
    flat = np.broadcast_to(np.ones((), dtype), (4, 1))
    assert gemm.matmul(ones, flat).tolist() == [[4], [4]]
    assert gemm.matmul(flat.T, ones.T).tolist() == [[4, 4]]


def test_a04_out_is_an_input():
    """numpy#8440"""
    a, b = random((3, 3), "float64"), random((3, 3), "float64", 1)
    for x in (a, a.T):
        mine = x.base.copy() if x.base is not None else x.copy()
        view = mine.T if x is not a else mine
        expected = gemm.matmul(view.copy(), b)
        assert gemm.matmul(view, b, out=mine) is mine
        assert np.array_equal(mine, expected)
    base = random((6, 6), "float64", 2)
    view = base[::2, ::2]
    expected = gemm.matmul(view.copy(), b)
    gemm.matmul(view, b, out=base[:3, :3])
    assert np.array_equal(base[:3, :3], expected)


def test_a05_repeated_in_place_product():
    """numba#4454"""
    a, b = random((3, 3), "float64"), random((3, 3), "float64", 1)
    expected = a.copy()
    for _ in range(10):
        gemm.matmul(a, b, out=a)
        expected = gemm.matmul(expected.copy(), b)
    assert same_bits(a, expected)


def test_a06_in_place_product_of_a_batch():
    """cupy#6214, at a size that takes several blocks in every direction"""
    a = np.ones((2, 299, 299), np.float32)
    gemm.matmul(a, a, out=a)
    assert (a == 299).all()


def test_a07_matrix_vector_into_the_vector():
    """numpy#31144"""
    a = np.array([[1.0, 2, 3], [4, 5, 6], [7, 8, 9]])
    b = np.array([1.0, 2, 3])
    assert gemm.matvec(a, b, out=b).tolist() == [14, 32, 50]
    b = np.array([1.0, 2, 3])
    assert gemm.vecmat(b, a, out=b).tolist() == [30, 36, 42]


def test_a09_einsum_into_its_operand():
    """numpy#10080"""
    buffer = random((5, 5), "float64")
    expected = gemm.matmul(buffer.copy(), buffer.copy())
    gemm.einsum("ij,jk->ik", buffer, buffer, out=buffer)
    assert same_bits(buffer, expected)


def test_a10_partial_overlap():
    """numpy#8440, discussion"""
    buffer, b = random((10, 5), "float64"), random((5, 5), "float64", 1)
    expected = gemm.matmul(buffer[:5].copy(), b)
    gemm.matmul(buffer[:5], b, out=buffer[1:6])
    assert same_bits(buffer[1:6].copy(), expected)


@pytest.mark.parametrize("dtype", [*WITHOUT_BLAS, "bool"])
def test_a13_column_major_operands(dtype):
    """numpy-quaddtype#89"""
    a = np.asfortranarray(np.array([[1, 2, 3], [4, 5, 6]], dtype))
    b = np.asfortranarray(np.array([[1, 2], [3, 4], [5, 6]], dtype))
    expected = [[True] * 2] * 2 if dtype == "bool" else [[22, 28], [49, 64]]
    assert gemm.matmul(a, b).tolist() == expected


def test_a14_reversed_and_stepped_vectors():
    """solvcon PR 1173"""
    v = np.arange(8.0)
    stepped = np.repeat(v, 2)[::2]
    for x in (v, v[::-1], stepped, stepped[::-1]):
        assert gemm.matmul(x, x) == 140
    assert gemm.matmul(v, v[::-1]) == 56


def test_a17_strides_that_are_no_multiple_of_the_item():
    """numpy#16660"""
    records = np.zeros(6, np.dtype([("x", "f8"), ("y", "i1")]))
    assert records.dtype.itemsize == 9
    records["x"] = np.arange(6)
    v = records["x"]
    assert gemm.matmul(v, v) == 55
    assert gemm.matmul(v.reshape(2, 3), v.reshape(3, 2)).tolist() == [[10, 13], [28, 40]]
    out = np.zeros(4, records.dtype)["x"]
    two = np.lib.stride_tricks.as_strided(v, (2, 3), (27, 9))
    three = np.lib.stride_tricks.as_strided(v, (3, 2), (18, 9))
    into = np.lib.stride_tricks.as_strided(out, (2, 2), (18, 9))
    gemm.matmul(two, three, out=into)
    assert into.tolist() == [[10, 13], [28, 40]]


def test_unaligned_bases():
    a = random((9, 11), "float64")
    shifted = np.zeros(a.nbytes + 1, np.uint8)[1:].view(np.float64).reshape(a.shape)
    shifted[...] = a
    assert not shifted.flags.aligned
    out = np.zeros(81 * 8 + 3, np.uint8)[3:].view(np.float64).reshape(9, 9)
    gemm.matmul(shifted, shifted.T, out=out)
    assert same_bits(out, gemm.matmul(a, a.T))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a24_inner_dimension_zero(dtype):
    """numba#5539"""
    a, b = np.zeros((3, 0), dtype), np.zeros((0, 4), dtype)
    assert np.array_equal(gemm.matmul(a, b), np.zeros((3, 4), dtype))
    out = np.full((3, 4), 77, dtype)
    if out.dtype.kind in "fc":
        out[...] = np.nan
    gemm.matmul(a, b, out=out)
    assert np.array_equal(out, np.zeros((3, 4), dtype))


def test_a26_empty_operands():
    """numba-mlir PR 174"""
    assert gemm.matmul(np.zeros(0), np.zeros(0)) == 0
    assert gemm.matmul(np.zeros((0, 5)), np.ones((5, 7))).shape == (0, 7)
    assert gemm.matmul(np.zeros((3, 0)), np.zeros((0, 0))).shape == (3, 0)
    assert gemm.matmul(np.zeros((4, 0, 5)), np.ones((5, 7))).shape == (4, 0, 7)
    assert gemm.matmul(np.zeros((0, 3, 5)), np.ones((5, 7))).shape == (0, 3, 7)


@pytest.mark.parametrize("dtype", [*FLOATS, "complex64", "complex128"])
def test_a30_old_nan_in_out_is_never_read(dtype, poisoned_scratch):
    """rten PR 81, clBLAS#201 and others: often only in the ragged edge tile"""
    rows, columns = 6, 16
    for m, n, k in [(7, 5, 3), (1, 1, 1), (rows + 1, columns + 1, 1), (4, 4, 0)]:
        a, b = np.ones((m, k), dtype), np.ones((k, n), dtype)
        for buffer in (np.full((m, n), np.nan, dtype), np.full((n, m), np.nan, dtype).T,
                       np.full((m, 2 * n), np.nan, dtype)[:, ::2]):  # fmt: skip
            gemm.matmul(a, b, out=buffer)
            assert (buffer == k).all(), (m, n, k)
    vector = np.full(7, np.nan, dtype)
    gemm.matvec(np.ones((7, 3), dtype), np.ones(3, dtype), out=vector)
    assert (vector == 3).all()


class FloatingPointFlags:
    """The processor's exception flags, through the C library."""

    INVALID, DIVIDE, OVERFLOW = {"x86_64": (1, 4, 8), "aarch64": (1, 2, 4)}.get(
        platform.machine(), (0, 0, 0)
    )

    def __init__(self):
        self.library = ctypes.CDLL(ctypes.util.find_library("m"))
        self.mask = self.INVALID | self.DIVIDE | self.OVERFLOW

    def raised_by(self, function) -> int:
        self.library.feclearexcept(self.mask)
        function()
        return self.library.fetestexcept(self.mask)


needs_flags = pytest.mark.skipif(
    not FloatingPointFlags.INVALID or ctypes.util.find_library("m") is None,
    reason="the numbers of the C library's exception flags are known for x86-64 and aarch64",
)


@needs_flags
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("level", UNITS)
def test_a32_harmless_products_raise_no_flag(level, dtype, poisoned_scratch):
    """numpy#28687: padding lanes and unfilled registers multiplied garbage"""
    flags = FloatingPointFlags()
    huge = np.finfo(dtype).max
    # The control: an overflow in a real element must be seen, or nothing below means anything.
    big = np.full((1, 1), huge, dtype)
    two = np.full((1, 1), 2, dtype)
    assert flags.raised_by(lambda: gemm.matmul(big, two, kernel=level)) & flags.OVERFLOW
    shape = tile(level, dtype)
    for kernel in (level, forced(level, dtype)):
        for m, n, k in [(15, 15, 15), (1, 100, 2), (100, 1, 3), (shape.rows + 1, 3, 9)]:
            a, b = np.zeros((m, k), dtype), np.ones((k, n), dtype)
            a[:, 0] = huge
            out = np.full((m, n), np.nan, dtype)
            raised = flags.raised_by(lambda: gemm.matmul(a, b, out=out, kernel=kernel))  # noqa: B023
            assert raised == 0 and (out == huge).all(), (kernel, m, n, k)


@needs_flags
@pytest.mark.parametrize("dtype", FLOATS)
def test_a32_as_it_was_reported(dtype):
    flags = FloatingPointFlags()
    for n in (15, 784):
        identity = np.eye(n, dtype=dtype)
        out = np.empty_like(identity)
        assert flags.raised_by(lambda: gemm.matmul(identity, identity, out=out)) == 0  # noqa: B023
        assert np.array_equal(out, identity)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with np.errstate(all="raise"):
            assert (gemm.matmul(np.ones((1, 2), dtype), np.ones((2, 784), dtype)) == 2).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_r08_a_times_its_transpose_is_symmetric(dtype):
    """numpy#12218"""
    for m, k in ((5, 11), (2, 1000), (33, 300)):
        y = random((m, k), dtype)
        for product in (gemm.matmul(y, 2 * y.T), gemm.matmul(y, y.T)):
            assert same_bits(product, product.T.copy())


@pytest.mark.parametrize("dtype", FLOATS)
def test_p13_subnormals_survive_a_call(dtype):
    """pytorch#135758: flushing leaked into the process"""
    tiny = np.finfo(dtype).smallest_subnormal
    a = np.full((9, 3), tiny, dtype)
    assert (gemm.matmul(a, np.ones((3, 9), dtype)) == 3 * tiny).all()
    assert 1e-310 * 1 == 1e-310 and float(np.float64(1e-310) * np.float64(1)) == 1e-310


def test_j06_a_call_costs_microseconds_not_tens():
    """numba#2952: a jitted function as an argument cost 29 us a call"""
    a = np.ones((4, 4))
    out = np.empty((4, 4))
    for _ in range(40):
        gemm.matmul(a, a, out)
    best = min(timeit.repeat(lambda: gemm.matmul(a, a, out), number=2000, repeat=5)) / 2000
    assert best < 10e-6, f"{best * 1e6:.1f} us a call"


def test_j08_no_warning_about_layout():
    """numba#10086"""
    a, x = np.ones((5, 6)), np.ones((6, 4))[:, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gemm.matmul(a, x[:, None]).shape == (5, 1)
        assert gemm.matmul(a[:, ::2], x[::2]).tolist() == [3] * 5


@pytest.mark.parametrize("dtype", FLOATS)
def test_signed_zero_and_infinities_follow_the_chain(dtype):
    a = np.array([[-0.0, -0.0], [np.inf, 0.0], [1.0, -np.inf], [-1.0, 1.0]], dtype)
    b = np.array([[1.0, 5.0], [1.0, 5.0]], dtype)
    got = gemm.matmul(a, b)
    assert same_bits(got, chain(a, b))
    assert not np.signbit(got[0]).any(), "a chain starts from +0: a bare product would give -0"


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ((3, 4), (5, 6), None),
        ((3, 4), (4, 6), (3, 5)),
        ((2, 3, 4), (3, 4, 6), None),
        ((), (4, 6), None),
    ],
)
def test_shapes_that_do_not_match_are_errors_before_anything_runs(a, b, out):
    target = None if out is None else np.full(out, 5.0)
    with pytest.raises(ValueError, match="matmul"):
        gemm.matmul(np.ones(a), np.ones(b), out=target)
    assert target is None or (target == 5).all()
