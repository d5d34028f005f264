"""The plan in words is the plan that runs."""

import numpy as np
import pytest

import gemm
from gemm import engine, slices
from gemm.backends.cpu import kernels

from .oracle import RUNNABLE, forced, tile, tile_in_place

LEVEL = next(iter(RUNNABLE))


def test_a_large_product(monkeypatch):
    a = np.zeros((1000, 1000))
    text = gemm.explain(a, a, threads=1)
    packed, unpacked = tile(LEVEL, "float64"), tile_in_place(LEVEL, "float64")
    shape = unpacked or packed
    assert "(1000 x 1000) @ (1000 x 1000) -> float64" in text
    assert f"kernel: {LEVEL}, blocked, tile {shape.rows}x{shape.columns}" in text
    assert ("rows of A read in place" in text) == (unpacked is not None)
    text = gemm.explain(a.T, a, threads=1)
    assert f"kernel: {LEVEL}, blocked, tile {packed.rows}x{packed.columns}" in text
    for word in ("blocks: MC", "KC", "NC", "path:", "threads: 1", "why: tile", "why: L1"):
        assert word in text
    monkeypatch.setattr(slices, "LONG", 10**8)
    assert "slices: " in gemm.explain(a, np.broadcast_to(a, (5, 1000, 1000)))


def test_a_matrix_and_its_transpose():
    a = np.zeros((700, 300))
    assert "half is computed, half mirrored" in gemm.explain(a, a.T)
    assert "mirrored" not in gemm.explain(a, a.T.copy())


def test_what_it_names_is_what_runs():
    for shapes in (((80, 80), (80, 80)), ((8, 8), (8, 8)), ((2, 600), (600, 700))):
        a, b = (np.ones(shape) for shape in shapes)
        text = gemm.explain(a, b, kernel=None)
        level, family = text.split("kernel: ")[1].split(", ")[:2]
        engine.product(a, b, np.empty((a.shape[0], b.shape[1])))
        ran = [spec for name, spec in kernels.loaded() if name == level == LEVEL]
        assert any(f"family={family!r}" in spec for spec in ran)


def test_forced_kernels_threads_and_layouts():
    a = np.zeros((300, 200), np.float32)
    text = gemm.explain(a, a.T, kernel=forced(LEVEL, "float32", 8))
    assert "KC 8" in text and "as named" in text and "a keyword was given" in text
    assert "threads: 2 (" in gemm.explain(np.zeros((900, 900)), np.zeros((900, 900)), threads=2)
    assert "-> float32" in gemm.explain(a, a.T, out=np.zeros((300, 300), np.float32, order="F"))
    assert "-> complex64" in gemm.explain(a, a.T.astype(np.complex64))
    assert ", 3 times" in gemm.explain(np.zeros((3, 4, 5)), np.zeros((5, 6)))
    assert "computed by NumPy" in gemm.explain(np.zeros((2, 2), object), np.zeros((2, 2), object))
    assert "nothing to do" in gemm.explain(np.zeros((0, 5)), np.zeros((5, 7)))
    assert "(1 x 5) @ (5 x 1)" in gemm.explain(np.zeros(5), np.zeros(5))


def test_the_door_is_named():
    a = np.ones((8, 8))
    for _ in range(20):
        gemm.matmul(a, a)
        gemm.dot(a[0], a[1])
    assert "through the door (open)" in gemm.explain(a, a)
    assert "through the door (open)" in gemm.explain(a, a[0])
    inner = gemm.explain(a[0], a[1])
    assert "through the door (open)" in inner and ", inner, tile 1x32" in inner
    assert "32 chains over k" in inner
    assert "from Python" in gemm.explain(a[0], a[1].astype("f4"))


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (((3, 4), (5, 6)), {}, ValueError, "4 columns, 5 rows"),
        (((), (5, 6)), {}, ValueError, "at least 1-D"),
        (((3, 4), (4, 6)), {"blocks": 3}, TypeError, "unexpected keyword argument 'blocks'"),
        (((3, 4), (4, 6)), {"kernel": "pentium"}, ValueError, "this machine runs"),
        (((3, 4), (4, 6)), {"threads": 0}, ValueError, "threads must be at least 1"),
    ],
)
def test_bad_questions(arguments, options, error, message):
    with pytest.raises(error, match=message):
        gemm.explain(*(np.zeros(shape) for shape in arguments), **options)
