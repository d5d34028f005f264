"""Products of vectors: the 32 chains of docs/numerics.md bit for bit, and the doors they take."""

import sys

import numpy as np
import pytest
from exact import NATIVE, poisoned, small

import gemm
from gemm import door, engine
from gemm.backends.cpu import door as machine_door
from gemm.microkernels.fused import fused_multiply_add

rng = np.random.default_rng()
FLOATS = ("float32", "float64", "complex64", "complex128")
has_door = pytest.mark.skipif(
    not machine_door.supported(), reason="this build of Python has no door: see door.supported"
)


def random(size, dtype):
    x = rng.standard_normal(size)
    return (x + 1j * rng.standard_normal(size) if dtype.startswith("c") else x).astype(dtype)


def chains(x, y):
    """The inner product of real vectors in its promised order."""
    t = np.zeros(32, x.dtype)
    for start in range(0, len(x), 32):
        n = min(32, len(x) - start)
        t[:n] = fused_multiply_add(x[start : start + n], y[start : start + n], t[:n])
    for half in (16, 8, 4, 2, 1):
        t[:half] += t[half : 2 * half]
    return t[0]


def inner(x, y, conjugate=False):
    """The same for any dtype: a complex product is four real ones."""
    if x.dtype.kind != "c":
        return chains(x, y)
    rr, ii = chains(x.real, y.real), chains(x.imag, y.imag)
    ri, ir = chains(x.real, y.imag), chains(x.imag, y.real)
    result = np.empty((), x.dtype)
    result.real = rr + ii if conjugate else rr - ii
    result.imag = ri - ir if conjugate else ri + ir
    return result[()]


CALLS = {
    "dot": (gemm.dot, False),
    "inner": (gemm.inner, False),
    "matmul": (gemm.matmul, False),
    "einsum": (lambda x, y: gemm.einsum("i,i->", x, y), False),
    "tensordot": (lambda x, y: gemm.tensordot(x, y, 1)[()], False),
    "threads=": (lambda x, y: gemm.matmul(x, y, threads=2), False),
    "kernel=": (lambda x, y: gemm.vecdot(x, y, kernel="reference"), True),
    "vdot": (gemm.vdot, True),
    "vecdot": (gemm.vecdot, True),
    "batch": (lambda x, y: gemm.vecdot(np.stack([y, x]), y)[1], True),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("dtype", FLOATS)
def test_the_bits_of_an_inner_product(name, dtype):
    call, conjugate = CALLS[name]
    for k in (0, 1, 2, 31, 32, 33, 65, 300):
        for steps in ((1, 1), (2, 1), (-1, 3)):
            x, y = (random(k * abs(step), dtype)[::step] for step in steps)
            got = call(x, y)
            expected = inner(x, y, conjugate)
            assert type(got) is type(expected) and got.tobytes() == expected.tobytes(), (k, steps)


@pytest.mark.parametrize("level", engine.levels())
@pytest.mark.parametrize("dtype", ["bool", "uint8", "int64", "float16", "complex64"])
def test_every_instruction_set(level, dtype):
    for k in (1, 37, 100):
        x, y = small(rng, k, dtype, 2), small(rng, k, dtype, 2)
        assert gemm.vecdot(x, y, kernel=level) == np.vecdot(x, y)


@pytest.mark.parametrize("accumulate", ["complex64", "complex128"])
def test_a_wider_accumulator(accumulate):
    x, y = random(90, "complex64"), random(90, "complex64")
    got = gemm.vecdot(x, y, accumulate=accumulate)
    assert got == inner(x.astype(accumulate), y.astype(accumulate), True).astype("complex64")


def open_doors(dtype):
    a = np.ones((4, 4), dtype)
    for _ in range(door.PATIENCE + 1):
        gemm.matmul(a, a)
        gemm.dot(a[0], a[0])


@has_door
@pytest.mark.parametrize("dtype", NATIVE)
def test_the_doors_serve_vectors(dtype):
    open_doors(dtype)
    for k in (1, 7, 40, 1100):
        x, y = small(rng, k, dtype, 2), small(rng, 2 * k, dtype, 2)[::-2]
        got = engine.inner_door(x, y)
        assert type(got) is np.dtype(dtype).type and got == np.dot(x, y)
        assert engine.inner_door(x, y, True) == np.vdot(x, y)
        a, b = small(rng, (5, k), dtype, 2), small(rng, (k, 6), dtype, 2)
        for left, right, shape in ((a, y, (5,)), (x, b, (6,)), (a.T.copy().T, y, (5,))):
            expected = np.dot(left, right)
            for out in (None, poisoned(shape, dtype)):
                result = engine.door(left, right, out)
                assert result.shape == shape and result.dtype == dtype
                np.testing.assert_array_equal(result, expected)
        steps = poisoned((10,), dtype)
        before = steps.copy()
        assert engine.door(a, y, steps[::2]) is not None
        np.testing.assert_array_equal(steps[::2], np.dot(a, y))
        assert steps[1::2].tobytes() == before[1::2].tobytes()


@has_door
def test_what_the_inner_door_leaves_to_python():
    open_doors("float64")
    x, y = np.ones(4), np.ones(5)
    other = np.ones(4, "float32")
    for left, right in (
        (x, y), (x, other), (x, x[None]), (x[0], x), (x, [1.0] * 4), (None, x), (x, 3),
        (x, x.astype(">f8")), (x, np.ma.array(x)), (x.astype("g"), x.astype("g")),
    ):  # fmt: skip
        assert engine.inner_door(left, right) is None
        assert engine.inner_door(left, right, True) is None
    a = np.ones((4, 4))
    for out in (x, a[0], a[:, 1], np.ones(5), np.ones((1, 4)), np.ones(4, "f4"), 3):
        assert engine.door(a, x, out) is None
    assert engine.door(x, a, np.ones(8)[::2]) is None
    assert engine.door(a, x, np.broadcast_to(np.ones(1), 4)) is None
    assert (a == 1).all() and (x == 1).all()


@has_door
def test_references_do_not_leak():
    open_doors("float64")
    x, a = np.ones(8), np.ones((8, 8))
    watched = (x, a, x.dtype, np.float64)
    before = [sys.getrefcount(v) for v in watched]
    for _ in range(1000):
        engine.inner_door(x, x)
        engine.inner_door(x, a)
        engine.door(a, x, None)
        engine.door(a, x, x)
    after = [sys.getrefcount(v) for v in watched]
    assert before[:2] == after[:2]
    assert all(abs(p - q) < 50 for p, q in zip(before, after, strict=True)), (before, after)
