"""subnormals='flush': what counts as zero, and that nothing else of the call or thread changes."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from engine.oracle import RUNNABLE, UNITS, chain, forced, random, same_bits

import gemm
from gemm import engine
from gemm.backends.cpu import kernels
from gemm.backends.cpu.addresses import float_control
from gemm.backends.cpu.team import team
from gemm.microkernels.fused import flushing_multiply_add

FUSED = [name for name in UNITS if RUNNABLE[name].fused]
TINY = {"float32": 2.0**-126, "float64": 2.0**-1022}


def control() -> int:
    """This thread's floating-point control word."""

    def read(mask):
        return float_control() & mask

    level = next(iter(RUNNABLE.values()))
    address = kernels.load(level, "read control", lambda: (read, ("integer",)), entry="raw")
    return ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(-1)


def flushing_chain(a, b):
    total = np.zeros((len(a), b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        total = flushing_multiply_add(a[:, k, None], b[None, k], total)
    return total


def tiny(shape, seed: int) -> np.ndarray:
    """float32 around the smallest normal number: subnormal, normal, zero, of both signs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * 2.0 ** rng.integers(-135, -60, shape)
    x[rng.random(shape) < 0.1] = -0.0
    return x.astype("f4")


@pytest.mark.parametrize("level", FUSED)
@pytest.mark.parametrize("shape", [(5, 9, 7), (37, 40, 70)])
def test_every_step_flushes(level, shape):
    m, k, n = shape
    a, b = tiny((m, k), 1), tiny((k, n), 2) * np.float32(2.0**60)
    expected = flushing_chain(a, b)
    assert not same_bits(expected, chain(a, b))
    out = np.full((m, n), np.nan, "f4")
    engine.product(a, b, out, kernel=forced(level, "float32"), subnormals="flush")
    assert same_bits(out, expected)
    engine.product(a, b, out, kernel=forced(level, "float32"), subnormals="keep")
    assert same_bits(out, chain(a, b))


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("threads", [1, 2])
def test_flushed_operands_steps_and_results(dtype, threads):
    real = np.dtype(dtype).type(0).real.dtype.name
    least = TINY[real]
    a = np.full((150, 200), least / 4, dtype)
    b = np.ones((200, 180), dtype)
    assert (gemm.matmul(a, b, threads=threads) != 0).all()
    out = np.full((150, 180), 77, dtype)
    gemm.matmul(a, b, out=out, threads=threads, subnormals="flush")
    assert (out == 0).all()
    # A product of normal numbers that is subnormal.
    a[:], b[:] = least * 2, 2.0**-5
    assert (gemm.matmul(a[:3, :2], b[:2, :3]) != 0).all()
    assert (gemm.matmul(a, b, threads=threads, subnormals="flush") == 0).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "float16"])
def test_normal_operands_keep_their_bits(dtype):
    for seed, (m, k, n) in enumerate([(3, 5, 7), (90, 110, 70), (300, 200, 260), (1, 50, 900)]):
        a, b = (random(s, "f4", seed) for s in ((m, k), (k, n)))
        if dtype == "float16":
            a, b = a + np.sign(a), b + np.sign(b)  # its subnormal operands are zero, too
        a, b = a.astype(dtype), b.astype(dtype)
        for threads in (1, 2):
            plain = gemm.matmul(a, b, threads=threads)
            assert same_bits(gemm.matmul(a, b, threads=threads, subnormals="flush"), plain)
    x = (1 + np.random.default_rng().random((400, 100))).astype(dtype)
    assert same_bits(gemm.matmul(x, x.T, subnormals="flush"), gemm.matmul(x, x.T))


def test_vectors_flush_too():
    x, y = np.full(100, 2.0**-1030), np.ones(100)
    assert gemm.vecdot(x, y) != 0 and gemm.vecdot(x, y, subnormals="flush") == 0
    assert (gemm.matvec(np.tile(x, (3, 1)), y, subnormals="flush") == 0).all()
    assert (gemm.vecmat(x, np.tile(y, (3, 1)).T, subnormals="flush") == 0).all()


def test_the_control_word_is_as_before():
    a = tiny((300, 300), 3)
    for threads in (1, 2):
        before = control()
        gemm.matmul(a, a, threads=threads, subnormals="flush")
        assert control() == before  # exception flags, too
        # The team goes back to the caller's word, too.
        assert same_bits(gemm.matmul(a, a, threads=threads), gemm.matmul(a, a, threads=1))
    if os.uname().machine == "x86_64":
        assert not control() & 0x8040


def test_a_team_too_small_flushes_in_the_caller():
    level = next(iter(RUNNABLE.values()))
    crew, a = team(level), np.full((700, 700), 2.0**-1030)
    size, crew.size = crew.size, 0
    refused, crew._refused = crew._refused, True
    try:
        plan, batch, rows, scratch = engine.planned(a, a, np.empty_like(a), None, 1, None)
        from dataclasses import replace

        from gemm.execution import execute

        out = np.full_like(a, 7)
        execute(replace(plan, team=(1, 2, 1)), a, np.ones_like(a), out, batch, rows, scratch,
                flush=True)  # fmt: skip
    finally:
        crew.size, crew._refused = size, refused
    assert (out == 0).all()


def test_refusals():
    a = np.ones((4, 4))
    for wrong in ("Flush", True, 0, "zero"):
        with pytest.raises(ValueError, match="expected 'keep' or 'flush'"):
            gemm.matmul(a, a, subnormals=wrong)
    with pytest.raises(TypeError, match="int32 has no subnormal"):
        gemm.matmul(a.astype("i4"), a.astype("i4"), subnormals="flush")
    with pytest.raises(ValueError, match="reference"):
        gemm.matmul(a, a, subnormals="flush", kernel="reference")
    with pytest.raises(ValueError, match="split_k=2"):
        gemm.matmul(a, a, subnormals="flush", split_k=2)
    assert "subnormals: flushed" in gemm.explain(a, a, subnormals="flush")
    assert "subnormals" not in gemm.explain(a, a)


def test_a_first_call_that_flushes():
    code = (
        "import numpy as np, gemm\n"
        "a = np.full((64, 64), 2.0**-1030)\n"
        "assert (gemm.matmul(a, np.ones((64, 64)), subnormals='flush') == 0).all()\n"
        "assert a[0, 0] * 1.5 != 0\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
