"""The measured ceiling: the loop it times is what it says, and its answers make sense."""

import re

import numpy as np
import pytest

from gemm.backends import ceiling
from gemm.microkernels import vocabulary as words
from gemm.microkernels.dtypes import DTYPES, float64
from gemm.microkernels.fused import fused_multiply_add

from .oracle import ALL_LEVELS, FLOATS


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("level", ["avx512", "avx2", "neon"])
def test_the_loop_is_multiply_adds_and_nothing_else(level, dtype):
    from numba.core.types import intp

    from gemm.backends import compiler, values
    from gemm.backends.cpu import kernels

    from .test_assembly import FUSED, loops

    shape = ceiling.chains_of(ALL_LEVELS[level].unit, DTYPES[dtype])
    function = ceiling.make_chains(shape, True)
    target = kernels.target_of(ALL_LEVELS[level])
    assembly = compiler.compile_assembly(function, [values.Pointer(DTYPES[dtype]), intp], target)
    loop = [line.split()[0] for line in max(loops(assembly), key=len)]
    others = [name for name in loop if not FUSED.match(name)]
    assert len(loop) - len(others) == ceiling.UNROLL * shape.rows
    assert len(others) <= 4, others
    assert not re.search(r"call|\bbl\b", " ".join(others))


@pytest.mark.parametrize("fused", [True, False])
def test_the_loop_in_plain_python(fused):
    shape = ceiling.chains_of(ALL_LEVELS["sse2"].unit, float64)
    data = np.full((shape.rows + 2, shape.columns), 0.5)
    data[: shape.rows] += np.arange(shape.rows)[:, None]
    expected, half = data[: shape.rows].copy(), np.full(1, 0.5)
    for _ in range(3 * ceiling.UNROLL):
        operands = (half, half, expected) if fused else (expected, half, half)
        expected = fused_multiply_add(*operands)
    memory = words.Pointer(data.reshape(-1).view(np.uint8), 0, float64)
    ceiling.make_chains(shape, fused)(memory, 3)
    assert np.array_equal(data[: shape.rows], expected)


def test_rates():
    rates = {name: ceiling.fma_rate(name, seconds=0.002, repeats=2) for name in FLOATS}
    assert all(1e8 < rate < 1e13 for rate in rates.values())
    assert ceiling.fma_rate("float16", seconds=0.002, repeats=1) > rates["float32"] / 10
    assert ceiling.bandwidth(1 << 22, 2) > 1e8


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="int32: the ceiling is measured for floating-point"):
        ceiling.fma_rate("int32")
    with pytest.raises(ValueError, match="this machine runs"):
        ceiling.fma_rate("float32", level="pentium")
    with pytest.raises(KeyError):
        ceiling.fma_rate("float99")
