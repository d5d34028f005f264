"""An operand packed once: the bits of the unpacked product, refusals with the numbers."""

import pickle
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from engine.oracle import random, same_bits, tile

import gemm
from gemm import targets
from gemm.backends.reference.run import pointer
from gemm.grouping import make_pack_groups
from gemm.microkernels.dtypes import DTYPES, UNITS, TileShape
from gemm.packed import _panels
from gemm.planner import panels

LEVEL = targets.default_level()


def kernels(dtype: str) -> list[str | None]:
    """The default, and blocks so small that every loop goes round."""
    shape = tile(LEVEL, dtype)
    return [None, f"{LEVEL}:{shape.rows}x{shape.columns}:{shape.rows},8,{shape.columns}"]


@pytest.mark.parametrize("dtype", ["float32"])
def test_the_bits_are_those_of_the_unpacked_product(dtype):
    for m, n, k in ((1, 1, 1), (13, 17, 9), (6, 16, 8), (70, 300, 900), (3, 33, 40)):
        a, b = random((m, k), dtype), random((k, n), dtype, 1)
        expected = gemm.matmul(a, b)
        for kernel in kernels(dtype):
            for source in (b, np.asfortranarray(b), b[::-1, ::-1][::-1, ::-1]):
                packed = gemm.pack(source, kernel=kernel)
                assert packed.shape == (k, n)
                for threads in (1, 3):
                    assert same_bits(gemm.matmul(a, packed, threads=threads), expected), (m, n, k)
        out = np.full((n, m), np.nan, dtype).T
        assert gemm.matmul(np.asfortranarray(a), packed, out=out) is out
        assert same_bits(out, expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_panels_of_units(dtype):
    kind = getattr(ml_dtypes, dtype, dtype)
    a, b = ((random(s, "float32") * 4).clip(-128, 127).astype(kind) for s in ((21, 43), (43, 37)))
    t = targets.element_type(a.dtype)
    shape, units = panels(LEVEL, t, t, t, targets.accumulator(t, t), None)
    kc = units[0].group if units and shape.block > 1 else 8
    named = f"{LEVEL}:{shape.rows}x{shape.columns}:{shape.rows},{kc},{shape.columns}"
    expected = gemm.matmul(a, b)
    for kernel in (None, named):
        assert gemm.matmul(a, gemm.pack(b, kernel=kernel)).tobytes() == expected.tobytes()


def test_batches_vectors_and_aliased_out():
    a, b = random((4, 5, 30), "float32"), random((30, 30), "float32", 1)
    packed = gemm.pack(b)
    expected = gemm.matmul(a, b)
    assert same_bits(gemm.matmul(a, packed), expected)
    assert same_bits(gemm.matmul(a[::-2, ::2], packed, threads=2), expected[::-2, ::2])
    assert same_bits(gemm.matmul(a[0, 0], packed), expected[0, 0])
    assert same_bits(gemm.matmul(a, pickle.loads(pickle.dumps(packed))), expected)
    assert gemm.matmul(a[:0], packed).shape == (0, 5, 30)
    mine = a.copy()
    assert gemm.matmul(mine, packed, out=mine) is mine
    assert same_bits(mine, expected)


def test_what_does_not_fit_is_refused_with_the_numbers():
    packed = gemm.pack(np.ones((4, 3), np.float32))
    a, out = np.ones((2, 4), np.float32), np.full((2, 3), 7, np.float32)
    other = replace(packed, level="pentium")
    for error, message, call in (
        (ValueError, "packed for pentium.*this machine runs", lambda: gemm.matmul(a, other, out)),
        (TypeError, "its dtype, not float64", lambda: gemm.matmul(a.astype("f8"), packed, out)),
        (ValueError, r"K = 4.*\(2, 3\)", lambda: gemm.matmul(a[:, :3], packed, out)),
        (ValueError, r"\(2, 3\), the product \(1, 3\)", lambda: gemm.matmul(a[:1], packed, out)),
        (TypeError, "out must be", lambda: gemm.matmul(a, packed, out.astype("f8"))),
        (TypeError, "second of a product", lambda: gemm.matmul(packed, a, out)),
        (TypeError, r"not \['dtype'\]", lambda: gemm.matmul(a, packed, out, dtype="f8")),
        (ValueError, "threads must be", lambda: gemm.matmul(a, packed, out, threads=0)),
        (ValueError, r"shape \(3,\)", lambda: gemm.pack(np.ones(3))),
        (ValueError, r"shape \(0, 3\)", lambda: gemm.pack(np.ones((0, 3)))),
        (TypeError, "gemm computes", lambda: gemm.pack(np.ones((2, 2), "longdouble"))),
        (ValueError, "reference", lambda: gemm.pack(np.ones((2, 2)), kernel="reference")),
    ):
        with pytest.raises(error, match=message):
            call()
    assert (out == 7).all()


UNITS_OF = [("int8", "int8x4"), ("int8", "int16x2"), ("uint8", "int16x2"), ("int16", "int16x2"),
            ("uint16", "int16x2"), ("bfloat16", "bfloat16x2")]  # fmt: skip


@pytest.mark.parametrize(("dtype", "unit"), UNITS_OF)
@pytest.mark.parametrize("k", [1, 4, 7])
def test_panels_are_those_of_the_kernels_packing(dtype, unit, k):
    """Also of levels that need not run here: the packing routine as plain Python."""
    source, shape = DTYPES[dtype], TileShape(2, 2, 4, DTYPES["int32"])
    columns, wide = 13, 16
    b = random((k, columns), "float32").astype(getattr(ml_dtypes, dtype, dtype))
    units = -(-k // UNITS[unit].group)
    expected = np.zeros(wide * units * 4 + 256, np.uint8)
    routine = make_pack_groups(shape.columns, shape.lanes, source, UNITS[unit])
    routine(pointer(expected, DTYPES["uint8"]), pointer(b, source), b.strides[1], b.strides[0],
            columns, k)  # fmt: skip
    padded = b[:, np.minimum(np.arange(wide), columns - 1)]
    assert _panels(padded, shape, UNITS[unit]).tobytes() == expected[: wide * units * 4].tobytes()
