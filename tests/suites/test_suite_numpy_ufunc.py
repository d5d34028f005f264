"""NumPy's own tests of vecdot, matvec and vecmat (of test_ufunc.py), run on gemm's.

From TestUfunc only the methods that call one of these are taken.
"""

import pytest
from routed import load, routed

_LENT = ("vecdot", "matvec", "vecmat", "matmul")
_theirs = load("numpy._core.tests.test_ufunc", *_LENT)


@pytest.fixture(autouse=True)
def lend():
    with routed(*_LENT):
        yield


class TestUfunc:
    """The methods are NumPy's; those about other ufuncs stay behind."""

    test_vecdot = _theirs.TestUfunc.test_vecdot
    test_matvec = _theirs.TestUfunc.test_matvec
    test_vecmatvec_identity = _theirs.TestUfunc.test_vecmatvec_identity
    test_vecdot_matvec_vecmat_complex = _theirs.TestUfunc.test_vecdot_matvec_vecmat_complex
    test_matvec_vecmat_out = _theirs.TestUfunc.test_matvec_vecmat_out
    test_vecdot_subclass = _theirs.TestUfunc.test_vecdot_subclass
    test_vecdot_object_no_conjugate = _theirs.TestUfunc.test_vecdot_object_no_conjugate
    test_vecdot_object_breaks_outer_loop_on_error = (
        _theirs.TestUfunc.test_vecdot_object_breaks_outer_loop_on_error
    )
    test_broadcast = _theirs.TestUfunc.test_broadcast
    test_out_broadcasts = _theirs.TestUfunc.test_out_broadcasts
    test_type_cast = _theirs.TestUfunc.test_type_cast
    test_endian = _theirs.TestUfunc.test_endian
    test_incontiguous_array = _theirs.TestUfunc.test_incontiguous_array
    test_output_argument = _theirs.TestUfunc.test_output_argument
    test_axes_argument = _theirs.TestUfunc.test_axes_argument
    test_axis_argument = _theirs.TestUfunc.test_axis_argument
    test_keepdims_argument = _theirs.TestUfunc.test_keepdims_argument
