"""NumPy's own tests of the products in numpy.linalg (test_linalg.py), run on gemm.linalg's."""

import pytest
from routed import load, routed

_LENT = tuple(
    f"linalg.{name}"
    for name in ("multi_dot", "matrix_power", "matmul", "tensordot", "vecdot", "outer")
)
_theirs = load("numpy.linalg.tests.test_linalg", *_LENT)


@pytest.fixture(autouse=True)
def lend():
    with routed(*_LENT):
        yield


TestMultiDot = _theirs.TestMultiDot
TestMatrixPower = _theirs.TestMatrixPower
TestOuter = _theirs.TestOuter
test_matmul = _theirs.test_matmul
test_tensordot = _theirs.test_tensordot
