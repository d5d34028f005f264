"""The loops of dot-product kernels, emitted from machine data for levels that need not run here."""

import pytest
from engine.oracle import ALL_LEVELS
from engine.test_assembly import UNROLL, loops, stack_traffic
from numba.core.types import intp

from gemm.backends import compiler, values
from gemm.backends.cpu import kernels
from gemm.microkernels.dtypes import DTYPES, UNITS
from gemm.microkernels.outer_product import make_outer_product
from gemm.microkernels.selection import select_tile
from gemm.microkernels.vocabulary import tile_load, tile_store
from gemm.planner import panel_units

# (level, a and b in memory, accumulator): the instruction and how many a step and accumulator.
CASES = [
    ("avx512_bf16", "bfloat16", "bfloat16", "float32", "vdpbf16ps"),
    ("avx512_bf16", "uint8", "int8", "int32", "vpdpbusd"),
    ("avx512_vnni", "int8", "int8", "int32", "vpdpbusd"),
    ("avx512_vnni", "int16", "int16", "int32", "vpdpwssd"),
    ("avx512_vnni", "int32", "int32", "int32", "vpdpwssd"),
    ("avx512_vnni", "uint8", "uint8", "int32", "vpdpwssd"),
    ("avx512", "int8", "int8", "int32", "vpmaddwd"),
    ("avx2", "uint8", "int8", "int32", "vpmaddwd"),
    ("sse2", "int16", "int16", "int32", "pmaddwd"),
]
SPLIT = ("vpmaddwd", "pmaddwd")


def panel_kernel(shape):
    """The micro-kernel on packed panels of 4-byte units, its tile loaded before, stored after."""
    compute = make_outer_product(UNROLL)
    rows, columns, size = shape.rows, shape.columns, shape.dtype.size
    step = columns * size

    def kernel(a, b, c, k):
        t = tile_load(shape, c, step, rows, columns)
        t = compute(t, a, size, rows * size, b, step, columns, k)
        tile_store(c, step, t, rows, columns)

    return kernel


@pytest.mark.parametrize(("level", "a", "b", "acc", "instruction"), CASES)
def test_the_loop_is_the_instruction_and_no_spill(level, a, b, acc, instruction):
    unit, dtype = ALL_LEVELS[level].unit, DTYPES[acc]
    shape = select_tile(unit, dtype)
    units = panel_units(level, DTYPES[a], DTYPES[b], dtype, dtype)
    assert units is not None
    kinds = [values.Pointer(units[0]), values.Pointer(units[1]), values.Pointer(dtype), intp]
    target = kernels.target_of(ALL_LEVELS[level])
    assembly = compiler.compile_assembly(panel_kernel(shape), kinds, target)
    longest = max(loops(assembly), key=len)
    lines = [(line.split(None, 1)[0], line.partition("\t")[2] or line) for line in longest]
    count = sum(name == instruction for name, _ in lines)
    step = shape.rows * shape.vectors
    assert count in (step, UNROLL * step), (shape, count)
    assert not any(name in SPLIT for name, _ in lines) or instruction in SPLIT
    # With 16 registers for 12 accumulators, 2 of B, 1 of A and a product, one may go out and in.
    assert len(stack_traffic(lines)) <= (2 if unit.registers == step + shape.vectors + 2 else 0)


@pytest.mark.parametrize("level", ["avx2", "sse2", "avx512"])
def test_no_instruction_that_saturates(level):
    """`pmaddubsw` adds two products in 16 bits; where only it exists, 16-bit units are taken."""
    int8, int32 = DTYPES["int8"], DTYPES["int32"]
    for a in ("int8", "uint8"):
        assert panel_units(level, DTYPES[a], int8, int32, int32) == (UNITS["int16x2"],) * 2
