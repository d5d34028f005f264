"""The loop of complex products: real factors and pairs, the multiply-adds and nothing else."""

import pytest
from engine.oracle import ALL_LEVELS
from engine.test_assembly import FUSED, UNROLL, loops, stack_traffic
from numba.core.types import intp

from gemm.backends import compiler, values
from gemm.backends.cpu import kernels
from gemm.kernels import KernelSpec
from gemm.microkernels.dtypes import DTYPES
from gemm.microkernels.outer_product import make_outer_product, make_outer_product_ahead
from gemm.microkernels.selection import select_tile, unpacked_tile
from gemm.microkernels.vocabulary import shift, tile_load, tile_store

# Stack accesses of a loop. 27 accumulators, 3 vectors of B and a factor leave one register of 32,
# and LLVM loads the next row of B early; 14 x 8, two vectors wide, is no faster.
SPILLS = {("avx512", "complex128"): 14}


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_the_loop_holds_no_shuffle(level, dtype):
    target = kernels.target_of(ALL_LEVELS[level])
    dtype = DTYPES[dtype]
    shape = select_tile(ALL_LEVELS[level].unit, dtype)
    compute, part, size = make_outer_product(UNROLL), dtype.real, dtype.real.size
    rows, columns = shape.rows, shape.columns
    step = columns * dtype.size

    def kernel(a, b, c, k):
        t = tile_load(shape, c, step, rows, columns)
        t = compute(t, a, size, rows * size, b, step, columns, k)
        tile_store(c, step, t, rows, columns)

    kinds = [values.Pointer(part), values.Pointer(dtype), values.Pointer(dtype), intp]
    longest = max(loops(compiler.compile_assembly(kernel, kinds, target)), key=len)
    lines = [(line.split(None, 1)[0], line.partition("\t")[2] or line) for line in longest]
    assert sum(bool(FUSED.match(name)) for name, _ in lines) % (rows * shape.vectors) == 0
    assert any(FUSED.match(name) for name, _ in lines)
    assert not [name for name, _ in lines if "shuf" in name or "perm" in name or "xor" in name]
    assert len(stack_traffic(lines)) <= SPILLS.get((level, dtype.name), 0)


# No spill of a tile: addresses of rows may rest on the stack.
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("level, ways", [("avx512", 8), ("avx512", 12)])
def test_the_loop_over_rows_in_place_spills_no_tile(level, ways, dtype):
    unit, dtype = ALL_LEVELS[level].unit, DTYPES[dtype]
    shape = unpacked_tile(select_tile(unit, dtype), unit, ways)
    assert shape is not None
    spec = KernelSpec("blocked", shape, dtype, dtype, dtype, units=(dtype.real, dtype)).unpacked()
    compute, size = make_outer_product_ahead(spec.unroll), dtype.size
    rows, columns = shape.rows, shape.columns
    step = columns * size

    def kernel(a, b, c, row_step, k):
        t = tile_load(shape, c, step, rows, columns)
        t = compute(t, a, row_step, size // 2, b, step, columns, k, shift(a, rows * row_step))
        tile_store(c, step, t, rows, columns)

    kinds = [values.Pointer(x) for x in (dtype.real, dtype, dtype)] + [intp, intp]
    target = kernels.target_of(ALL_LEVELS[level])
    longest = max(loops(compiler.compile_assembly(kernel, kinds, target)), key=len)
    fused = sum(bool(FUSED.match(line.split(None, 1)[0])) for line in longest)
    assert fused == spec.unroll * rows * shape.vectors
    assert sum(line.startswith("prefetcht1") for line in longest) == 2
    assert not [line for line in longest if "mm" in line and "%rsp" in line]
