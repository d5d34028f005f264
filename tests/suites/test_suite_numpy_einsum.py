"""NumPy's own tests of einsum and einsum_path (test_einsum.py), run on gemm's."""

import pytest
from routed import load, routed

_LENT = ("einsum", "einsum_path")
_theirs = load("numpy._core.tests.test_einsum", *_LENT)


@pytest.fixture(autouse=True)
def lend():
    with routed(*_LENT):
        yield


TestEinsum = _theirs.TestEinsum
TestEinsumPath = _theirs.TestEinsumPath
test_overlap = _theirs.test_overlap

SKIPPED = {
    "TestEinsum.test_einsum_0d_out": "a float64 result into an int64 out under casting='safe': "
    "NumPy refuses it with optimize=False and lets it through otherwise; gemm refuses it always",
    "TestEinsum.test_subscript_range": "asserts that sublists end at 51; gemm takes any label "
    "(the rest of the test is in tests/numpy_calls/test_einsum.py)",
}
