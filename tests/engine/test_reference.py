"""The reference target: the kernel source as plain Python, and a checker of what it touches."""

import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest

import gemm
from gemm import engine
from gemm.microkernels import vocabulary as words
from gemm.microkernels.dtypes import float32, float64, int8
from gemm.microkernels.fused import fused_multiply_add

from .oracle import FLOATS, chain, random, same_bits

REFERENCE = "reference"


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "int32", "int64", "complex64", "float16"])
def test_small_integers_are_exact(dtype):
    a = np.arange(6).reshape(2, 3).astype(dtype)
    b = np.arange(12).reshape(3, 4).astype(dtype)
    expected = [[20, 23, 26, 29], [56, 68, 80, 92]]
    assert np.array_equal(gemm.matmul(a, b, kernel=REFERENCE), expected)


@pytest.mark.parametrize("dtype", FLOATS)
def test_it_is_the_chain(dtype):
    a, b = random((7, 9), dtype), random((9, 18), dtype, 1)
    tile = "2x8" if dtype == "float64" else "2x16"
    got = gemm.matmul(a, b, kernel=f"{REFERENCE}:{tile}:2,4,{tile[2:]}")
    assert same_bits(got, chain(a, b))


@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_multiply_add_rounds_once(dtype):
    """Against exact rational arithmetic; these products round differently when rounded twice."""
    kind = np.dtype(dtype).type
    rng = np.random.default_rng(3)
    twice = 0
    for _ in range(300):
        a, b, c = (kind(x) for x in rng.standard_normal(3) * 2.0 ** rng.integers(-20, 20, 3))
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        got = fused_multiply_add(*(np.asarray([x]) for x in (a, b, c)))[0]
        below, above = np.nextafter(got, kind(-np.inf)), np.nextafter(got, kind(np.inf))
        error = abs(Fraction(float(got)) - exact)
        assert error <= abs(Fraction(float(below)) - exact)
        assert error <= abs(Fraction(float(above)) - exact)
        twice += bool(a * b + c != got)
    assert twice > 20


def test_a_float32_sum_rounded_through_float64_would_differ():
    """2^-60 is lost in float64, and with it which way the tie of float32 goes."""
    one, small = np.float32(1), np.float32(2.0**-24)
    product, tiny = np.float32(1 + 2.0**-23), np.float32(2.0**-60)
    a = np.array([[one, small, tiny]])
    b = np.array([[product], [one], [one]])
    got = gemm.matmul(a[:, 1:], b[1:], kernel=REFERENCE)
    assert got[0, 0] == np.float32(2.0**-24)
    tie = fused_multiply_add(np.array([small]), np.array([product]), np.array([one]))[0]
    through_64 = np.float32(np.float64(small) * np.float64(product) + np.float64(one))
    exact = Fraction(float(small)) * Fraction(float(product)) + 1
    assert abs(Fraction(float(tie)) - exact) <= abs(Fraction(float(through_64)) - exact)


def test_an_access_outside_an_operand_is_an_error():
    memory = np.zeros(32, np.uint8)
    inside = words.Pointer(memory, 0, float64)
    assert list(words.load_lanes(inside, 4, 4)) == [0] * 4
    for bad in (lambda: words.load_lanes(words.shift(inside, 8), 4, 4),
                lambda: words.load(words.shift(inside, -8)),
                lambda: words.store(words.shift(inside, 32), 1.0)):  # fmt: skip
        with pytest.raises(IndexError, match="of a block of 32"):
            bad()


def test_lanes_beyond_the_edge_repeat_the_last_element():
    memory = np.arange(4, dtype=np.float32).view(np.uint8)
    v = words.load_lanes(words.Pointer(memory, 4, float32), 8, 3)
    assert list(v) == [1, 2, 3, 3, 3, 3, 3, 3]


def test_a_store_narrows_integers_modulo_their_width():
    memory = np.zeros(4, np.uint8)
    words.store_lanes(words.Pointer(memory, 0, int8), np.array([300, -1, 127, 128], np.int32), 4)
    assert list(memory.view(np.int8)) == [44, -1, 127, -128]


def test_it_needs_no_compiler():
    """Also where Numba and llvmlite cannot be imported at all."""
    code = """
import sys
sys.modules['numba'] = sys.modules['llvmlite'] = None
import numpy as np, gemm
a = np.arange(6.0).reshape(2, 3)
print(gemm.matmul(a, a.T, kernel='reference').tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[[5.0, 14.0], [14.0, 50.0]]", done.stderr


def test_a_team_gives_the_same_bits():
    a, b = random((13, 5), "float64"), random((5, 17), "float64", 1)
    alone = gemm.matmul(a, b, kernel=REFERENCE, threads=1)
    out = np.empty_like(alone)
    engine.product(a, b, out, kernel=REFERENCE, threads=3)
    assert same_bits(out, alone)
