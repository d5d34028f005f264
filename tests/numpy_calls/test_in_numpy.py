"""use_in_numpy: what is lent, and that it comes back whatever happens."""

import subprocess
import sys
import threading

import numpy as np
import pytest

import gemm

NAMES = ("matmul", "vecdot", "matvec", "vecmat", "dot", "vdot", "inner", "tensordot", "einsum")
LINEAR = ("matmul", "vecdot", "tensordot", "multi_dot", "matrix_power")


def bound():
    return [getattr(np, n) for n in NAMES] + [getattr(np.linalg, n) for n in LINEAR]


def ours():
    return [getattr(gemm, n) for n in NAMES] + [getattr(gemm.linalg, n) for n in LINEAR]


def test_names_are_lent_and_come_back():
    before = bound()
    with gemm.use_in_numpy():
        assert bound() == ours()
    assert bound() == before and before != ours()


def test_they_come_back_after_an_exception():
    before = bound()
    with pytest.raises(ZeroDivisionError):
        with gemm.use_in_numpy():
            raise ZeroDivisionError
    assert bound() == before
    with pytest.raises(ValueError):
        with gemm.use_in_numpy():
            np.matmul(np.ones((2, 3)), np.ones((2, 3)))
    assert bound() == before


def test_blocks_nest():
    before = bound()
    with gemm.use_in_numpy():
        with gemm.use_in_numpy():
            assert bound() == ours()
        assert bound() == ours()
    assert bound() == before


def test_blocks_of_two_threads_overlap():
    before = bound()
    inside, leave = threading.Event(), threading.Event()

    def other():
        with gemm.use_in_numpy():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with gemm.use_in_numpy():
        thread.start()
        assert inside.wait(10)
    assert bound() == ours()  # the other thread is still inside
    leave.set()
    thread.join()
    assert bound() == before


def test_what_another_package_had_put_there_comes_back(monkeypatch):
    def theirs(*arguments):
        return "theirs"

    monkeypatch.setattr(np, "dot", theirs)
    with gemm.use_in_numpy():
        assert np.dot([1, 2], [3, 4]) == 11
    assert np.dot is theirs


def test_fallbacks_do_not_come_round():
    """Whatever is NumPy's own goes to the originals, also inside the block."""
    a = np.arange(4).reshape(2, 2).astype(object)
    masked = np.ma.array(np.eye(2))
    with gemm.use_in_numpy():
        for function in (np.matmul, np.dot, np.inner, np.vdot):
            function(a, a), function(np.longdouble(a), np.longdouble(a))
        assert np.dot(masked, masked).sum() == 2
        assert np.einsum("ij,jk", a, a)[0, 0] == 2
        assert np.tensordot(a, a).item() == 14
        assert np.linalg.multi_dot([a, a, a]).shape == (2, 2)
        assert np.linalg.matrix_power(a, 3).shape == (2, 2)
        np.testing.assert_array_equal(np.matmul(np.eye(2), np.eye(2)), np.eye(2))


def test_existing_code_runs_on_the_engine():
    halves = np.ones((2, 2050), "f2")
    with gemm.use_in_numpy():
        assert (np.matmul(halves, halves.T) == 2050).all()
        coefficients = np.polynomial.polynomial.polyfit(np.arange(5.0), np.arange(5.0) * 2 + 1, 1)
    np.testing.assert_allclose(coefficients, [1, 2])


def test_opt_einsum_does_not_keep_our_functions():
    code = (
        "import numpy as np, gemm\n"
        "einsum = np.einsum\n"
        "x = np.ones((2, 2))\n"
        "with gemm.use_in_numpy():\n"
        "    np.einsum('ij,jk,kl', x, x, x)\n"
        "from opt_einsum.backends.dispatch import get_func\n"
        "assert get_func('einsum', 'numpy') is einsum\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
