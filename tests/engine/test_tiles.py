"""Every micro-kernel this machine runs, forced by name, at every edge: bit for bit the chain.

The reference target and `oracle.chain` are the oracle. A chain of an element depends on its row
of A, its column of B and K only, so the oracle runs once for each K at the largest size.
"""

import os
import subprocess
import sys

import numpy as np
import pytest

import gemm
from gemm.backends.cpu import kernels

from .oracle import (
    FLOATS,
    RUNNABLE,
    UNITS,
    chain,
    forced,
    random,
    same_bits,
    sizes,
    tile,
    tile_in_place,
)

KC = 4


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("level", UNITS)
@pytest.mark.parametrize("k", sizes(KC))
@pytest.mark.parametrize("which", [tile, tile_in_place])
def test_every_size_around_the_tile(which, level, dtype, k, poisoned_scratch):
    shape = which(level, dtype)
    if shape is None:
        pytest.skip(f"{level} has no tile that reads A in place")
    rows, columns = sizes(shape.rows), sizes(shape.columns)
    a = random((max(rows), k), dtype)
    b = random((k, max(columns)), dtype, 1)
    expected = chain(a, b, RUNNABLE[level].fused)
    kernel = forced(level, dtype, KC, shape)
    for m in rows:
        for n in columns:
            out = np.full((m, n), np.nan, dtype)
            assert gemm.matmul(a[:m], b[:, :n], out=out, kernel=kernel, threads=1) is out
            assert same_bits(out, expected[:m, :n]), (m, n, k)
    ran = {text for name, text in kernels.loaded() if name == level and "family='blocked'" in text}
    # Of an empty A nothing is adjacent.
    in_place = f"unpacked_a={shape == tile_in_place(level, dtype)}" if k else ""
    assert any(repr(shape) in text and in_place in text for text in ran), "it did not run"


GUARDED = """
import ctypes, mmap, sys
import numpy as np
import gemm
m, k, n, dtype, kernel = int(sys.argv[1]), int(sys.argv[2]), 40, *sys.argv[3:]
size = np.dtype(dtype).itemsize
pages = -(-m * k * size // mmap.PAGESIZE) + 1
held = mmap.mmap(-1, pages * mmap.PAGESIZE)
start = np.frombuffer(held, np.uint8).ctypes.data
end = (pages - 1) * mmap.PAGESIZE
libc = ctypes.CDLL(None)
assert libc.mprotect(ctypes.c_void_p(start + end), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
a = np.ndarray((m, k), dtype, held, end - m * k * size)
a[:] = np.arange(m * k).reshape(m, k) % 7
b = (np.arange(k * n).reshape(k, n) % 5).astype(dtype)
assert (gemm.matmul(a, b, kernel=kernel, threads=1) == a.astype(int) @ b.astype(int)).all()
"""


@pytest.mark.skipif(os.name != "posix", reason="guards a page by mprotect")
@pytest.mark.parametrize("dtype", FLOATS)
def test_no_row_of_a_is_read_beyond_its_end(dtype):
    level = UNITS[0]
    shape = tile_in_place(level, dtype)
    if shape is None:
        pytest.skip(f"{level} has no tile that reads A in place")
    for m, k in ((shape.rows, 5), (shape.rows + 1, 33), (1, 1)):
        arguments = [str(m), str(k), dtype, forced(level, dtype, 16, shape)]
        done = subprocess.run([sys.executable, "-c", GUARDED, *arguments], capture_output=True)
        assert done.returncode == 0, done.stderr.decode()[-500:]


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_reference_target_agrees_bit_for_bit(dtype, poisoned_scratch):
    level = next(iter(RUNNABLE))
    shape = tile(level, dtype)
    kernel = forced(level, dtype, KC)
    reference = kernel.replace(level, "reference", 1)
    for m, n, k in [(1, 1, 1), (shape.rows + 1, shape.columns + 1, 2 * KC + 1),
                    (shape.rows - 1, shape.columns - 1, KC), (2, shape.columns + 3, KC + 1),
                    (3, 2, 0)]:  # fmt: skip
        a, b = random((m, k), dtype), random((k, n), dtype, 1)
        # Transposed, stepped and reversed operands take the other packing routines.
        wide = np.full((k, 2 * n - 1), np.nan, dtype)  # every other column is B's
        wide[:, ::2] = b
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b)), (a, wide[:, ::2]),
                     (np.repeat(a, 2, 1)[:, ::2], np.repeat(b, 3, 0)[::3, ::-1])):  # fmt: skip
            cpu = gemm.matmul(x, y, kernel=kernel, threads=1)
            assert same_bits(cpu, gemm.matmul(x, y, kernel=reference, threads=1)), (m, n, k)
            assert same_bits(cpu, chain(x, y)), (m, n, k)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("level", UNITS)
def test_b06_every_transposition_on_every_level(level, dtype):
    """OpenBLAS#1955: some shapes wrong in some transpositions on one instruction set."""
    shape = tile(level, dtype)
    epsilon = np.finfo(dtype).eps
    for m in (1, shape.rows, 2 * shape.rows + 1):
        for n in (1, shape.columns - 1, 2 * shape.columns + 1):
            for k in (1, 3, 2 * KC + 1):
                a, b = random((m, k), dtype), random((k, n), dtype, 1)
                exact = a.astype(np.float64) @ b.astype(np.float64)
                bound = (k + 2) * epsilon * (abs(a).astype("f8") @ abs(b).astype("f8"))
                for x in (a, np.asfortranarray(a)):
                    for y in (b, np.asfortranarray(b)):
                        got = gemm.matmul(x, y, kernel=forced(level, dtype, KC))
                        assert (abs(got - exact) <= bound).all(), (m, n, k)


@pytest.mark.parametrize("dtype", FLOATS)
def test_b07_all_levels_agree(dtype):
    """blis#930: right on one core type, wrong on a newer one. With fma: the same bits."""
    a, b = random((37, 29), dtype), random((29, 41), dtype, 1)
    results = {name: gemm.matmul(a, b, kernel=name) for name in RUNNABLE}
    fused = [results[name] for name, level in RUNNABLE.items() if level.fused]
    assert all(same_bits(x, fused[0]) for x in fused)
    bound = 30 * np.finfo(dtype).eps * (abs(a) @ abs(b))
    for name, level in RUNNABLE.items():
        if not level.fused:
            assert same_bits(results[name], chain(a, b, fused=False))
            assert (abs(results[name] - fused[0]) <= bound).all()


@pytest.mark.parametrize("dtype", FLOATS)
def test_other_legal_tiles_give_the_same_bits(dtype):
    level = next(iter(RUNNABLE))
    lanes = tile(level, dtype).lanes
    a, b = random((11, 13), dtype), random((13, 2 * lanes + 3), dtype, 1)
    expected = chain(a, b)
    for rows, vectors in ((1, 1), (3, 2)):
        kernel = f"{level}:{rows}x{vectors * lanes}"
        assert same_bits(gemm.matmul(a, b, kernel=kernel), expected), kernel


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("pentium", "this machine runs"),
        ("{level}:6", "expected LEVEL"),
        ("{level}:6x{odd}", "must be a multiple of"),
        ("{level}:6x{columns}:5,8,{columns}", "MC = 5"),
        ("{level}:6x{columns}:6,8,{odd}", "is not a multiple of NR"),
        ("{level}:6x{columns}:6,0,{columns}", "must be positive"),
        ("{level}:0x{columns}", "must be a multiple of"),
    ],
)
def test_a_kernel_that_cannot_be_had_is_refused_with_the_numbers(kernel, message):
    level = next(iter(RUNNABLE))
    lanes = tile(level, "float64").lanes
    name = kernel.format(level=level, columns=2 * lanes, odd=2 * lanes - 1)
    out = np.full((3, 3), 5.0)
    with pytest.raises(ValueError, match=message):
        gemm.matmul(np.ones((3, 3)), np.ones((3, 3)), out=out, kernel=name)
    assert (out == 5).all()


def test_the_environment_forces_a_level():
    code = """
import numpy as np, gemm
from gemm.backends.cpu import kernels
a = np.arange(63, dtype=np.float32).reshape(9, 7)
for _ in range(20):
    c = gemm.matmul(a, a.T)
print(*{name for name, _ in kernels.loaded()}, np.array_equal(c, np.einsum("ik,jk", a, a)))
"""
    for name in RUNNABLE:
        environment = {**os.environ, "GEMM_ISA": name}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True
        )
        assert done.stdout.split() == [name, "True"], done.stderr
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "GEMM_ISA": "pentium"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    assert "ValueError: GEMM_ISA='pentium': this machine runs" in done.stderr
