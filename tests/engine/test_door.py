"""The door: plain products go straight into machine code, everything else is declined unharmed."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gemm
from gemm import engine
from gemm.backends.cpu import door as machine_door

from .oracle import FLOATS, chain, random, same_bits

pytestmark = pytest.mark.skipif(
    not machine_door.supported(), reason="this build of Python has no door: see door.supported"
)


@pytest.fixture(params=FLOATS)
def opened(request):
    """The dtype's name, after enough calls that its door is open."""
    from gemm import door

    a = np.ones((4, 4), request.param)
    for _ in range(door.PATIENCE + 1):
        gemm.matmul(a, a)
    assert door.is_open(request.param)
    return request.param


def test_the_layout_it_relies_on_holds_here():
    assert machine_door.layout_holds()


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (2, 3, 4), (8, 8, 8), (7, 33, 5), (13, 17, 300), (64, 96, 80)]
)
def test_it_gives_the_chain(opened, m, n, k):
    a, b = random((m, k), opened), random((k, n), opened, 1)
    expected = chain(a, b)
    fresh = engine.door(a, b, None)
    assert same_bits(fresh, expected)
    assert fresh.flags.c_contiguous and fresh.flags.owndata and fresh.flags.writeable
    out = np.full((m, n), np.nan, opened)
    assert engine.door(a, b, out) is out
    assert same_bits(out, expected)


def test_neighbours_in_memory_do_not_overlap(opened):
    """Small arrays of one program often lie side by side: they were declined for that."""
    memory = np.ones((3, 4, 4), opened)
    a, b = memory[0], memory[2]
    assert engine.door(a, b, memory[1]) is not None
    assert engine.door(a, memory[1], b) is not None
    assert (memory[1] == 4).all() and (b == 16).all()
    flat = np.ones(40, opened)
    assert engine.door(flat[:16].reshape(4, 4), b, flat[15:31].reshape(4, 4)) is None
    assert engine.door(b, flat[15:31].reshape(4, 4), flat[:16].reshape(4, 4)) is None


def test_strided_operands(opened):
    a, b = random((40, 60), opened), random((90, 80), opened, 1)
    for x in (a[:20, :30], a[::2, ::2], a[::-1, ::-2], a.T[:30, :30]):
        for y in (b[:30, :40], b[::3, ::2], b[:30, ::-1], np.asfortranarray(b[:30])):
            x30, y30 = x[:, :30], y[:30]
            got = engine.door(x30, y30, None)
            assert same_bits(got, chain(x30, y30))
    out = np.full((20, 100), np.nan, opened)
    assert engine.door(a[:20, :30], b[:30, :40], out[:, 10:50]) is not None
    assert same_bits(out[:, 10:50].copy(), chain(a[:20, :30], b[:30, :40]))
    assert np.isnan(out[:, :10]).all() and np.isnan(out[:, 50:]).all()


class Subclass(np.ndarray):
    pass


def declined(opened):
    """Operands and outputs that the door leaves to Python, by name."""
    other = "float32" if opened == "float64" else "float64"
    x, y = np.ones((4, 4), opened), np.ones((4, 4), opened)
    buffer = np.ones((8, 4), opened)
    readonly = np.ones((4, 4), opened)
    readonly.flags.writeable = False
    return {
        "a list": (x, [[1.0]], None),
        "None": (None, y, None),
        "an integer": (x, y, 3),
        "another dtype": (x, y.astype(other), None),
        "byte-swapped": (x, y.astype(y.dtype.newbyteorder()), None),
        "no kernel's dtype": (x.astype("g"), y.astype("g"), None),
        "two vectors": (x[0], y[0], None),
        "a vector and inner sizes": (x, y[0, :3], None),
        "3-D": (x[None], y, None),
        "0-D": (x, y[0, 0], None),
        "scalar": (x, np.float64(3), None),
        "subclass": (x, y.view(Subclass), None),
        "masked": (x, np.ma.array(y), None),
        "inner sizes": (x, y[:3], None),
        "empty": (x[:0], y, None),
        "no k": (x[:, :0], y[:0], None),
        "out of another dtype": (x, y, np.ones((4, 4), other)),
        "out of another shape": (x, y, np.ones((4, 5), opened)),
        "out with steps": (x, y, np.ones((4, 8), opened)[:, ::2]),
        "out read-only": (x, y, readonly),
        "out is an operand": (x, y, y),
        "out overlaps": (buffer[:4], y, buffer[2:6]),
        "out is a subclass": (x, y, np.ones((4, 4), opened).view(Subclass)),
    }


def test_what_it_does_not_serve_it_declines(opened):
    for name, (x1, x2, out) in declined(opened).items():
        before = None if not isinstance(out, np.ndarray) else out.copy()
        assert engine.door(x1, x2, out) is None, name
        assert before is None or np.array_equal(before, out), name


def test_what_it_declines_is_answered_by_python(opened):
    for name, (x1, x2, out) in declined(opened).items():
        try:
            copied = out
            if isinstance(out, np.ndarray):
                copied = out.copy()
                copied.flags.writeable = out.flags.writeable
            expected = np.matmul(x1, x2, out=copied)
        except (TypeError, ValueError) as error:
            with pytest.raises(type(error)):
                gemm.matmul(x1, x2, out=out)
            continue
        got = gemm.matmul(x1, x2, out=out)
        assert np.array_equal(got, expected) and got.dtype == expected.dtype, name


def test_keywords_and_positions(opened):
    a, b = random((3, 4), opened), random((4, 5), opened, 1)
    expected = chain(a, b)
    out = np.empty((3, 5), opened)
    for result in (
        gemm.matmul(a, b), gemm.matmul(a, b, out), gemm.matmul(a, b, out=out),
        gemm.matmul(a, b, out=(out,)), gemm.matmul(a, b, dtype=opened),
        gemm.matmul(a, b, order="C"),
    ):  # fmt: skip
        assert same_bits(result, expected)
    with pytest.raises(TypeError):
        gemm.matmul(a)
    with pytest.raises(TypeError):
        gemm.matmul(x1=a, x2=b)


def test_references_do_not_leak(opened):
    a, b = np.ones((8, 8), opened), np.ones((8, 8), opened)
    out = np.empty((8, 8), opened)
    watched = (None, a, b, out, a.dtype, np.ndarray)

    def counts():
        return [sys.getrefcount(x) for x in watched]

    before = counts()
    for _ in range(1000):
        engine.door(a, b, None)
        engine.door(a, b, out)
        engine.door(a, [1], None)
        engine.door(a, b, b)
    after = counts()
    # None and the type are shared with the rest of the interpreter, which may move them a little.
    assert all(abs(x - y) < 50 for x, y in zip(before, after, strict=True)), (before, after)
    assert before[1:4] == after[1:4]


def test_memory_does_not_grow(opened):
    import tracemalloc

    a = np.ones((32, 32), opened)
    engine.door(a, a, None)
    tracemalloc.start()
    try:
        first = tracemalloc.get_traced_memory()[0]
        for _ in range(500):
            engine.door(a, a, None)
        assert tracemalloc.get_traced_memory()[0] - first < 20_000
    finally:
        tracemalloc.stop()


CODE = """
import hashlib, sys
import numpy as np, gemm
state, rng = hashlib.sha256(), np.random.default_rng(5)
for m, n, k in [(1, 1, 1), (8, 8, 8), (7, 33, 5), (50, 60, 70), (150, 170, 300)]:
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    state.update(gemm.matmul(a, b).tobytes())
"""


def test_the_way_without_it_gives_the_same_bits():
    """GEMM_DOOR=0 is also what builds take whose objects are laid out differently."""
    code = CODE + "print(type(gemm.engine.door).__name__, state.hexdigest())"
    closed = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "GEMM_DOOR": "0"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    a = np.ones((4, 4))
    for _ in range(20):
        gemm.matmul(a, a)
    assert type(engine.door).__name__ == "builtin_function_or_method"
    names: dict = {}
    exec(CODE, names)
    assert closed.stdout.split() == ["function", names["state"].hexdigest()]


def test_python_threads_may_call_it_together(opened):
    from concurrent.futures import ThreadPoolExecutor

    sides = (8, 60, 130, 200)
    operands = [(random((n, n), opened), random((n, n), opened, 1)) for n in sides]
    expected = [gemm.matmul(a, b, threads=1) for a, b in operands]

    def work(seed):
        for turn in range(30):
            i = (seed + turn) % len(sides)
            if not same_bits(gemm.matmul(*operands[i]), expected[i]):
                return sides[i]
        return None

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(12))) == [None] * 12
