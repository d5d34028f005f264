"""Kernels for shapes of their own: A times its transpose, tall and narrow, few rows, batches."""

import itertools

import ml_dtypes
import numpy as np
import pytest
from engine.oracle import RUNNABLE, UNITS, chain, random, same_bits

import gemm
from gemm import engine, mirror, slices, symmetric
from gemm.backends.cpu import kernels
from gemm.backends.reference.run import pointer
from gemm.microkernels.dtypes import DTYPES
from gemm.planner import NARROW
from gemm.skinny import WIDTH

BEST = next(iter(RUNNABLE))
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def ran(text: str) -> bool:
    """Whether a kernel whose text holds `text` was loaded by this process."""
    return any(text in spec for _, spec in kernels.loaded())


def values(shape, dtype, seed: int = 0) -> np.ndarray:
    if np.dtype(dtype).kind in "iu":
        return np.random.default_rng(seed).integers(-100, 100, shape).astype(dtype)
    if np.dtype(dtype).kind == "b":
        return np.random.default_rng(seed).random(shape) < 0.1
    return random(shape, "f4" if dtype == BFLOAT16 else dtype, seed).astype(dtype)


def poisoned(shape, dtype) -> np.ndarray:
    out = np.empty(shape, dtype)
    out.view(np.uint8).fill(0xFF)
    return out


# -- A times its transpose -----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", BFLOAT16, "int8", "int32", "?"])
def test_a_triangle_has_the_bits_of_the_whole(dtype):
    for (n, k), threads in itertools.product(((256, 64), (300, 130), (413, 600)), (1, 2, 3)):
        a = values((n, k), dtype)
        for x in (a, np.asfortranarray(a)):
            copy = np.array(x.T, order="A")  # another array: an ordinary product
            expected = engine_product(x, copy, a.dtype, threads=1)
            assert symmetric.applies(x, x.T, expected)
            for order in "CF":
                out = poisoned((n, n), a.dtype)
                out = out if order == "C" else out.T
                engine.product(x, x.T, out, threads=threads)
                assert same_bits(out, expected), (n, k, threads, order)
    assert ran("triangle=True") and ran("family='mirror'")


def engine_product(a, b, dtype, **options) -> np.ndarray:
    out = poisoned((a.shape[0], b.shape[1]), dtype)
    engine.product(a, b, out, **options)
    return out


def test_a_triangle_on_every_level(monkeypatch):
    a = random((270, 90), "float32")
    for level in [x for x in UNITS if RUNNABLE[x].fused]:
        monkeypatch.setenv("GEMM_ISA", level)
        expected = engine_product(a, a.T.copy(), "f4")
        assert same_bits(engine_product(a, a.T, "f4"), expected), level
        assert any(name == level and "triangle=True" in spec for name, spec in kernels.loaded())


def test_a_triangle_in_slices(monkeypatch):
    monkeypatch.setattr(slices, "LONG", 1 << 20)
    monkeypatch.setattr(slices, "COLUMNS", 128)
    a = random((500, 70), "float64")
    expected = engine_product(a, a.T.copy(), "f8", threads=1)
    assert same_bits(engine_product(a, a.T, "f8", threads=1), expected)


def test_a_triangle_writes_nothing_but_its_output():
    a = random((300, 100), "float32")
    room = np.full((400, 500), 7, "f4")
    engine.product(a, a.T, room[50:350, 90:390])
    inside = room[50:350, 90:390].copy()
    room[50:350, 90:390] = 7
    assert (room == 7).all() and same_bits(inside, engine_product(a, a.T.copy(), "f4"))


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "int8"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_mirror_as_plain_python(dtype, workers):
    bits = mirror.BITS[np.dtype(dtype).itemsize]
    routine = mirror.make_mirror(mirror.square_of(16, DTYPES[dtype]), bits)
    for n in (1, 2, 5, 8, 19):
        room = values((n, n + 3), dtype, n)
        x = room[:, 1 : n + 1]
        expected = np.tril(x) + np.tril(x, -1).T
        frame = room[:, n + 1 :].copy()
        empty = [None] * 11
        for worker in range(workers):
            routine(None, None, pointer(x, bits), None, n, n, n, 0, 0, 0, 0, x.strides[0],
                    x.itemsize, *empty[:8], None, None, 1, workers, 1, None, worker)  # fmt: skip
        assert same_bits(x, expected) and same_bits(room[:, n + 1 :], frame)


# -- tall and narrow -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", range(5, NARROW + 1))
def test_a_tall_a_with_few_columns(dtype, n):
    for m, k in ((1030, 31), (517, 64), (2501, 9), (130, 700)):
        a, b = random((m, k + 3), dtype)[:, 1 : k + 1], random((k, n + 2), dtype, 1)[:, :n]
        expected = chain(np.ascontiguousarray(a[:40]), b)
        whole = engine_product(np.asfortranarray(a), b, dtype)
        for threads in (1, 2):
            room = poisoned((m, n + 5), dtype)
            out = room[:, 2 : n + 2]
            assert engine.narrow(a, b, out)
            engine.product(a, b, out, threads=threads)
            assert same_bits(out[:40], expected) and same_bits(out, whole)
            rest = np.delete(room, np.s_[2 : n + 2], 1)
            assert (rest.view(np.uint8) == 0xFF).all()
    assert ran("family='narrow'")


@pytest.mark.parametrize("level", [x for x in UNITS if RUNNABLE[x].fused])
def test_tall_and_narrow_on_every_level(level, monkeypatch):
    monkeypatch.setenv("GEMM_ISA", level)
    a, b = random((3, 700, 40), "float32"), random((3, 40, 11), "float32", 1)
    out = poisoned((3, 700, 11), "f4")
    engine.product(a, b, out)
    assert any(name == level and "family='narrow'" in spec for name, spec in kernels.loaded())
    for i in range(3):
        assert same_bits(out[i, :30], chain(a[i, :30], b[i]))


# -- few rows ------------------------------------------------------------------------------------


def test_sixteen_rows():
    a, b = random((16, 600), "float32"), random((600, 900), "float32", 1)
    out = engine_product(a, b, "f4")
    assert same_bits(out[:, :50], chain(a, b[:, :50]))


# -- batches -------------------------------------------------------------------------------------


def test_a_batch_again_with_other_arrays():
    for dtype, n in itertools.product(("float64", "float32"), (1, 3, 9, 12)):
        for seed in range(3):
            a, b = (random((50, n, n), dtype, 2 * seed + i) for i in range(2))
            out = poisoned((50, n, n), dtype)
            assert gemm.matmul(a, b, out=out) is out
            for i in (0, 1, 49):
                assert same_bits(out[i], chain(a[i], b[i]))
            back = gemm.matmul(a[::-1], b[:, ::-1, ::-1])
            assert same_bits(back[3], chain(a[46], np.ascontiguousarray(b[3, ::-1, ::-1])))
    with pytest.raises(ValueError, match="read-only"):
        out.flags.writeable = False
        gemm.matmul(a, b, out=out)


@pytest.mark.parametrize("shared_by", [1, 2])
def test_workers_of_one_first_level_cache_pack_a(monkeypatch, shared_by):
    """Several workers read rows of A in place only where each has a first level of its own."""
    from dataclasses import replace

    from gemm import planner
    from gemm.backends.cpu import machine

    known = machine.machine()
    caches = (replace(known.caches[0], shared_by=shared_by), *known.caches[1:])
    monkeypatch.setattr(machine, "machine", lambda: replace(known, caches=caches))
    f64 = DTYPES["float64"]
    level = engine.default_level()
    for workers in (1, 2):
        plan = planner._blocked(level, None, None, *[f64] * 4, 512, 512, 512, 1, False, workers,
                                None, None, a_rows=True)  # fmt: skip
        assert plan.workers == workers
        some = planner.unpacked_tile_of(level, plan.spec.tile, f64, f64, None) is not None
        assert plan.spec.unpacked_a == (some and (workers == 1 or shared_by == 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("m", [1, 3, 4, 7])
def test_few_rows_over_several_blocks_of_columns_and_of_k(m, dtype):
    """More columns than a block, and every remainder of k, against the packed product's bits."""
    a, b = random((m, 13), dtype), random((13, WIDTH + 70), dtype, 1)
    for k in range(7, 14):
        expected = gemm.matmul(a[:, :k], b[:k], kernel=BEST)
        if k == 7:  # with the output in another layout
            out = np.empty((b.shape[1], m), dtype).T
            assert same_bits(gemm.matmul(a[:, :k], b[:k], out=out), expected)
        assert same_bits(gemm.matmul(a[:, :k], b[:k]), expected)
