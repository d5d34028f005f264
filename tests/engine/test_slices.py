"""Long products in pieces: every element once, the same bits, and Ctrl-C between two of them."""

import os
import signal
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemm
from gemm import slices

from .oracle import random, same_bits


@pytest.fixture
def short(monkeypatch):
    """Everything is long."""
    for name, value in (("LONG", 1 << 12), ("ROWS", 10), ("COLUMNS", 20)):
        monkeypatch.setattr(slices, name, value)


@given(
    st.lists(st.integers(1, 6), max_size=3), st.integers(1, 4000), st.integers(1, 4000),
    st.integers(0, 10**6), st.integers(1, 4),
)  # fmt: skip
@settings(max_examples=100, deadline=None)
def test_pieces_cover_the_output_exactly_once(batch, m, n, k, threads):
    shape = (*batch, m, n)
    total, work = 0, []
    for index in slices.pieces(shape, k, threads):
        sides = [len(range(*part.indices(size))) for part, size in zip(index, shape, strict=True)]
        total += int(np.prod(sides, dtype=np.int64))
        work.append(int(np.prod(sides, dtype=np.int64)) * k)
    assert total == np.prod(shape, dtype=np.int64)
    assert max(work) <= max(slices.LONG * threads, slices.ROWS * slices.COLUMNS * max(k, 1))


def test_pieces_do_not_overlap(short):
    seen = np.zeros((3, 2, 65, 47), np.int8)
    for index in slices.pieces(seen.shape, 100):
        seen[index] += 1
    assert (seen == 1).all()


@pytest.mark.parametrize("shape", [(70, 90), (3, 2, 40, 50), (500, 3), (3, 500)])
def test_the_bits_are_those_of_one_product(shape, monkeypatch):
    *batch, m, n = shape
    a, b = random((*batch, m, 33), "float64"), random((*batch, 33, n), "float64", 1)
    whole = gemm.matmul(a, b)
    count = 0
    original = slices.operands

    def counted(*arguments):
        nonlocal count
        count += 1
        return original(*arguments)

    monkeypatch.setattr(slices, "operands", counted)
    for name, value in (("LONG", 1 << 12), ("ROWS", 10), ("COLUMNS", 20)):
        monkeypatch.setattr(slices, name, value)
    assert same_bits(gemm.matmul(a, b, threads=1), whole)
    assert count > 3


CODE = """
import sys
import numpy as np, gemm
from gemm import slices
slices.LONG = 1 << 27
a = np.ones((100, 100))
gemm.matmul(a, a, threads=1)
big = np.broadcast_to(np.ones((1, 2000)), (400000, 2000))
out = np.broadcast_to(np.zeros((1, 1)), (1, 1))
print("ready", flush=True)
try:
    gemm.matmul(big, np.ones((2000, 500)), threads=1)
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent as on POSIX")
def test_an_interrupt_is_answered():
    """400 gigaflop-pairs: minutes of work, ended by one signal."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True,
        # A background job of a shell ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as child:  # fmt: skip
        assert child.stdout.readline() == "ready\n"
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                child.wait(0.5)
            os.kill(child.pid, signal.SIGINT)
            assert child.communicate(timeout=30)[0] == "interrupted\n"
        finally:
            child.kill()
