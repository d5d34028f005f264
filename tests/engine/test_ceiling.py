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


INTEGERS = ("int8", "uint8", "bool", "int16", "uint16", "int32", "uint32", "int64", "uint64")
# What a multiply-add of one vector is on a level: bytes, 16-bit, 32-bit, 64-bit integers.
STEPS = {
    "avx512_bf16": ("vpdpbusd", "vpdpwssd", "vpmulld", "vpmullq"),
    "avx512_vnni": ("vpdpbusd", "vpdpwssd", "vpmulld", "vpmullq"),
    "avx512": ("vpmaddwd", "vpmaddwd", "vpmulld", "vpmullq"),
    "avx2": ("vpmaddwd", "vpmaddwd", "vpmulld", "vpmuludq"),
    "neon": ("mla", "mla", "mla", "mul"),
}


@pytest.mark.parametrize("level", STEPS)
@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_the_integer_loop_multiplies_in_every_step(level, dtype):
    """No product is known before the loop or shared by two rows; the rest is additions, loads."""
    from numba.core.types import intp

    from gemm.backends import compiler, values
    from gemm.backends.cpu import kernels

    from .test_assembly import loops

    spec = ceiling.spec_of(ALL_LEVELS[level], DTYPES[dtype])
    function, _ = spec.build()
    target = kernels.target_of(ALL_LEVELS[level])
    assembly = compiler.compile_assembly(function, [values.Pointer(spec.tile.dtype), intp], target)
    loop = [line.split()[0] for line in max(loops(assembly), key=len)]
    step = STEPS[level][int(np.log2(DTYPES[dtype].bits)) - 3]
    products = loop.count(step)
    assert products >= spec.tile.rows and products % spec.tile.rows == 0
    assert not [name for name in loop if re.search(r"call|spill", name)]
    if step.startswith("vpdp"):
        assert len(loop) - products <= 2 * products // spec.tile.rows + 5


def test_pairs_of_bfloat16_are_multiplied_as_such_where_the_level_does():
    paired = ceiling.spec_of(ALL_LEVELS["avx512_bf16"], DTYPES["bfloat16"])
    plain = ceiling.spec_of(ALL_LEVELS["avx512_vnni"], DTYPES["bfloat16"])
    assert paired.units[0].name == "bfloat16x2" and plain.units is None
    lanes = ALL_LEVELS["avx512_bf16"].unit.lanes(plain.tile.dtype)
    assert paired.operations == 4 * lanes * paired.tile.rows * ceiling.UNROLL


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
@pytest.mark.parametrize("level", ["avx512_vnni", "avx2", "sse2"])
def test_the_integer_loop_in_plain_python(level, dtype):
    """Exact modulo the accumulator's width, and the operations are counted as they are done."""
    spec = ceiling.spec_of(ALL_LEVELS[level], DTYPES[dtype])
    rows, columns, wide = spec.tile.rows, spec.tile.columns, spec.tile.dtype.name
    data = np.random.default_rng().integers(0, 1 << 31, (rows + spec.vectors, columns)).astype(wide)
    tile, ring = data[:rows].copy(), data[-ceiling.RING * ceiling.UNROLL :]
    factors = data[rows:].reshape(-1)
    parts = {"uint8x4": "u1", "int8x4": "i1", "int16x2": "i2"}
    x, y = (
        v.view(parts.get(unit.name, v.dtype)).reshape(*v.shape, -1).astype(object)
        for v, unit in zip((factors[:rows], ring), spec.units, strict=True)
    )
    steps = 11
    used = y[np.arange(steps * ceiling.UNROLL) % len(ring)]
    sums = tile.astype(object) + (x[:, None, None] * used).sum((1, 3))
    memory = words.Pointer(data.reshape(-1).view(np.uint8), 0, spec.tile.dtype)
    function, _ = spec.build()
    function(memory, steps)
    bits = spec.tile.dtype.bits
    assert np.array_equal(data[:rows].astype(object) % 2**bits, sums % 2**bits)
    assert spec.operations * steps == 2 * rows * used.size


def test_rates():
    rates = {name: ceiling.fma_rate(name, seconds=0.002, repeats=2) for name in FLOATS}
    rates |= {name: ceiling.fma_rate(name, seconds=0.002, repeats=2) for name in INTEGERS}
    assert all(1e8 < rate < 1e14 for rate in rates.values())
    assert ceiling.fma_rate("float16", seconds=0.002, repeats=1) > rates["float32"] / 10
    assert ceiling.bandwidth(1 << 22, 2) > 1e8


def test_what_cannot_be_measured_is_refused():
    with pytest.raises(ValueError, match="this machine runs"):
        ceiling.fma_rate("float32", level="pentium")
    with pytest.raises(KeyError):
        ceiling.fma_rate("float99")
