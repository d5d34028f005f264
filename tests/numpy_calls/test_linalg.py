"""gemm.linalg: multi_dot and matrix_power beyond NumPy's own tests, and what falls through."""

import numpy as np
import pytest
from exact import small, wrapped

import gemm
from gemm.linalg import _chain_order

rng = np.random.default_rng(13)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int64", "float32", "complex128"])
@pytest.mark.parametrize("count", [2, 3, 4, 6])
def test_multi_dot(dtype, count):
    sizes = rng.integers(1, 6, count + 1)
    chain = [small(rng, (sizes[i], sizes[i + 1]), dtype, 2) for i in range(count)]
    expected = chain[0].astype(object)
    for matrix in chain[1:]:
        expected = expected @ matrix.astype(object)
    if np.dtype(dtype).kind in "iu":
        expected = wrapped(expected, dtype)
    result = gemm.linalg.multi_dot(chain)
    assert result.dtype == dtype
    np.testing.assert_array_equal(result, expected.astype(dtype))
    out = np.zeros_like(result)
    assert gemm.linalg.multi_dot(chain, out=out) is out
    np.testing.assert_array_equal(out, result)
    vectors = [chain[0][0], *chain[1:-1], chain[-1][:, 0]]
    assert gemm.linalg.multi_dot(vectors) == result[0, 0]
    row = [chain[0][0], *chain[1:]]
    out = np.zeros_like(result[0])
    np.testing.assert_array_equal(gemm.linalg.multi_dot(row, out=out), result[0])


def test_the_order_is_the_cheapest():
    """The example of Cormen et al.: ((A (B C)) ((D E) F)), 15125 multiplications."""
    split = _chain_order([30, 35, 15, 5, 10, 20, 25])
    assert split[0][5] == 2 and split[0][2] == 0 and split[3][5] == 4


def test_multi_dot_refuses():
    a, b = np.ones((2, 3)), np.ones((3, 2))
    for arrays, kind, text in (
        ([a], ValueError, "got 1"),
        ([a, b, b], ValueError, r"\(3, 2\) and \(3, 2\)"),
        ([a, np.ones((1, 3, 2)), a], np.linalg.LinAlgError, r"array 1 .*\(1, 3, 2\)"),
    ):
        with pytest.raises(kind, match=text):
            gemm.linalg.multi_dot(arrays)
    with pytest.raises(ValueError):
        gemm.linalg.multi_dot([a, b, a], out=np.zeros((3, 3)))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float64", "complex64", "float16"])
def test_matrix_power(dtype):
    a = small(rng, (2, 3, 3), dtype, 1)
    expected = np.broadcast_to(np.eye(3, dtype=dtype), (2, 3, 3))
    for n in range(6):
        np.testing.assert_array_equal(gemm.linalg.matrix_power(a, n), expected)
        expected = np.matmul(expected, a)
    assert gemm.linalg.matrix_power(a, np.int8(3)).dtype == dtype


def test_matrix_power_refuses():
    for a, n, kind in (
        (np.ones((2, 3)), 2, np.linalg.LinAlgError),
        (np.ones(3), 2, np.linalg.LinAlgError),
        (np.eye(2), 1.5, TypeError),
        (np.zeros((2, 2)), -1, np.linalg.LinAlgError),
    ):
        with pytest.raises(kind):
            gemm.linalg.matrix_power(a, n)
    inverse = gemm.linalg.matrix_power(np.array([[2.0, 0], [0, 4]]), -2)
    np.testing.assert_array_equal(inverse, [[0.25, 0], [0, 0.0625]])


def test_other_names_are_numpys():
    assert gemm.linalg.qr is np.linalg.qr and gemm.linalg.LinAlgError is np.linalg.LinAlgError
    assert "svd" in dir(gemm.linalg) and "multi_dot" in dir(gemm.linalg)
    with pytest.raises(AttributeError):
        _ = gemm.linalg.no_such_function
    assert gemm.linalg.vecdot(np.ones((2, 3)), np.ones((2, 3)), axis=0).shape == (3,)
    np.testing.assert_array_equal(gemm.kron([1, 2], [3, 4]), [3, 4, 6, 8])
    np.testing.assert_array_equal(gemm.outer([1, 2], [3, 4]), [[3, 4], [6, 8]])
