"""NumPy's own tests of dot, vdot, inner and tensordot, run on gemm's."""

import pytest
from routed import load, routed

_LENT = ("dot", "vdot", "inner", "tensordot")
_theirs = load("numpy._core.tests.test_multiarray", *_LENT)
_numeric = load("numpy._core.tests.test_numeric", *_LENT)


@pytest.fixture(autouse=True)
def lend():
    with routed(*_LENT):
        yield


TestDot = _theirs.TestDot
TestVdot = _theirs.TestVdot
TestInner = _theirs.TestInner
TestTensordot = _numeric.TestTensordot

SKIPPED = {
    "TestDot.test_huge_vectordot": "allocates 8 and 16 GiB, more than a test machine may have",
}
