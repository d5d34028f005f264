"""NumPy's own tests of matmul, run on gemm.matmul; np.dot stays NumPy's and is the oracle.

TestMatmulOperator and TestMatmulInplace test ndarray's `@`, which cannot be routed; their
common part is run on gemm.matmul as MatmulCommon.
"""

import pytest
from routed import load, routed

import gemm

_LENT = ("matmul",)
_theirs = load("numpy._core.tests.test_multiarray", *_LENT)


@pytest.fixture(autouse=True)
def lend():
    with routed(*_LENT):
        yield


class TestMatmul(_theirs.TestMatmul):
    matmul = staticmethod(gemm.matmul)


class TestLinalgMatmul(_theirs.MatmulCommon):
    matmul = staticmethod(gemm.linalg.matmul)


test_matmul_axes = _theirs.test_matmul_axes
