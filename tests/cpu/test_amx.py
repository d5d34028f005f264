"""Whole blocks (AMX): the loop as emitted, everywhere; results against exact integers and against
the order of docs/numerics.md, where the machine has the registers."""

import multiprocessing
import os
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from engine.oracle import ALL_LEVELS, RUNNABLE, blocks_of_32, same_bits, sizes
from engine.test_assembly import loops, stack_traffic
from numba.core.types import intp

import gemm
from gemm import engine
from gemm.backends import ceiling, compiler, values
from gemm.backends.cpu import kernels, machine
from gemm.backends.reference.run import pointer
from gemm.block_packing import make_pack_blocks
from gemm.microkernels.dtypes import DTYPES, UNITS, TileShape
from gemm.microkernels.fused import flushing_multiply_add, fused_multiply_add
from gemm.microkernels.outer_product import make_outer_product
from gemm.microkernels.selection import select_blocks
from gemm.microkernels.vocabulary import tile_load, tile_store
from gemm.planner import block_units, make_plan

LEVEL = ALL_LEVELS["amx"]
UNROLL = 4
needs_registers = pytest.mark.skipif(
    "amx" not in RUNNABLE, reason="this machine has no AMX, or the system refuses its registers"
)
BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
MIXES = [("int8", "int8"), ("uint8", "int8"), ("int8", "uint8"), ("uint8", "uint8")]
SMALL = "amx:32x32:32,64,32"  # every loop goes round


def tile_of(acc: str) -> TileShape:
    return select_blocks(LEVEL.unit.blocks, DTYPES[acc])


def test_the_tile_is_two_by_two_blocks():
    assert tile_of("float32") == TileShape(32, 2, 16, DTYPES["float32"], 16)
    assert tile_of("int32").registers == 4


# -- as emitted ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "acc", "instruction"),
    [
        ("bfloat16", "bfloat16", "float32", "tdpbf16ps"),
        ("int8", "int8", "int32", "tdpbssd"),
        ("int8", "uint8", "int32", "tdpbsud"),
        ("uint8", "int8", "int32", "tdpbusd"),
        ("uint8", "uint8", "int32", "tdpbuud"),
    ],
)
def test_the_loop_is_loads_and_the_instruction(a, b, acc, instruction):
    shape, dtype = tile_of(acc), DTYPES[acc]
    units = block_units("amx", DTYPES[a], DTYPES[b], dtype)
    compute = make_outer_product(UNROLL)
    rows, columns, row = shape.rows, shape.columns, shape.columns * dtype.size

    def kernel(a, b, c, k):
        t = tile_load(shape, c, row, rows, columns)
        t = compute(t, a, 64, rows * 64, b, columns * 64, columns, k)
        tile_store(c, row, t, rows, columns)

    kinds = [values.Pointer(units[0]), values.Pointer(units[1]), values.Pointer(dtype), intp]
    assembly = compiler.compile_assembly(kernel, kinds, kernels.target_of(LEVEL))
    longest = max(loops(assembly), key=len)
    lines = [(line.split(None, 1)[0], line.partition("\t")[2] or line) for line in longest]
    names = [name for name, _ in lines]
    assert names.count(instruction) == UNROLL * 4
    assert names.count("tileloadd") == UNROLL * 4
    assert not stack_traffic(lines)
    assert not any(name.startswith("tilestore") for name in names)
    # Configured once before, released once after.
    assert len(re.findall(r"^\s*ldtilecfg", assembly, re.MULTILINE)) == 1
    assert len(re.findall(r"^\s*tilerelease", assembly, re.MULTILINE)) == 1
    assert assembly.index("ldtilecfg") < assembly.index(instruction) < assembly.index("tilerelease")


def test_a_kernel_without_blocks_leaves_the_registers_alone():
    plan = make_plan(*[DTYPES["float32"]] * 4, 100, 100, 100, 1, False, 1, "reference", None)
    function, kinds = plan.spec.build()
    types = [intp if isinstance(k, str) else values.Pointer(k) for k in kinds]
    assert "tile" not in compiler.compile_assembly(function, types, kernels.target_of(LEVEL))


# -- meaning -------------------------------------------------------------------------------------


def bfloats(shape, seed: int = 0, spread: int = 8) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    scale = 2.0 ** rng.integers(-spread, spread + 1, shape)
    return (rng.standard_normal(shape) * scale).astype(BFLOAT16)


def integers(shape, name: str, seed: int = 0) -> np.ndarray:
    info = np.iinfo(name)
    rng = np.random.default_rng([seed, *shape])
    values = rng.integers(info.min, info.max, shape, name, endpoint=True)
    ends = rng.random(shape)
    values[ends < 0.2], values[ends > 0.8] = info.min, info.max
    return values


def test_flushing():
    one, least = np.float32(1), np.float32(2.0**-126)
    half = np.float32(2.0**-127)
    add = flushing_multiply_add
    assert same_bits(add(one, half, np.zeros(1, "f4")), np.zeros(1, "f4"))
    assert same_bits(add(-one, half, least[None]), least[None])  # the operand is zero
    # 2^-126 - 2^-152 rounds to 2^-126 and is not tiny; 2^-126 - 2^-150 is.
    tiny = np.float32(2.0**-76)
    assert same_bits(add(-tiny, tiny, least[None]), least[None])
    tiny = np.float32(2.0**-75)
    assert same_bits(add(-tiny, tiny, least[None]), np.zeros(1, "f4"))
    # Where nothing is subnormal it is the fused multiply-add.
    rng = np.random.default_rng(0)
    a, b, c = ((rng.standard_normal(2000) * 2.0 ** rng.integers(-30, 30, 2000)).astype("f4")
               for _ in range(3))  # fmt: skip
    assert same_bits(add(a, b, c), fused_multiply_add(a, b, c))
    assert same_bits(add(a, b, -(a * b)), fused_multiply_add(a, b, -(a * b)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bfloat16"])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("k", [1, 3, 64, 70])
def test_packing_as_plain_python(dtype, whole, k):
    """Every layout gives the same panels: units of 64 bytes, zero beyond k, the last row again."""
    unit = UNITS["bfloat16x32" if dtype == "bfloat16" else f"{dtype}x64"]
    panel, count, size = 32, 37, 64 // unit.group
    x = bfloats((count, k)) if dtype == "bfloat16" else integers((count, k), dtype)
    units = -(-k // unit.group)
    padded = np.zeros((64, units * 64), np.uint8)
    rows = np.ascontiguousarray(x).view(np.uint8).reshape(count, -1)
    padded[:count, : k * size] = rows
    padded[count:, : k * size] = rows[-1]
    # (panel, row, unit, piece, byte) in the order of memory.
    split = padded.reshape(2, panel, units, 16, 4)
    expected = split.transpose(0, 2, 1, 3, 4) if whole else split.transpose(0, 2, 3, 1, 4)
    routine = make_pack_blocks(panel, 16, DTYPES[dtype], unit, whole)
    for y in (x, np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2]):
        got = np.full(expected.size, 0xAA, np.uint8)
        routine(pointer(got, DTYPES["uint8"]), pointer(y, DTYPES[dtype]), y.strides[0],
                y.strides[1], count, k)  # fmt: skip
        assert (got == np.ascontiguousarray(expected).ravel()).all()


# -- on the machine ------------------------------------------------------------------------------


def into(a, b, out, **options) -> np.ndarray:
    result = np.full((a.shape[0], b.shape[1]), 77, out)
    engine.product(a, b, result, **options)
    return result


@needs_registers
@pytest.mark.parametrize(("a_type", "b_type"), MIXES)
def test_integers_at_every_edge(a_type, b_type):
    for k in sizes(64):
        a, b = integers((65, k), a_type), integers((k, 65), b_type, 1)
        expected = a.astype("i4") @ b.astype("i4")
        for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
            for m in sizes(32):
                for n in sizes(32):
                    got = into(x[:m], y[:, :n], "int32", kernel=SMALL)
                    assert (got == expected[:m, :n]).all(), (m, n, k)
            for kernel in (None, "amx"):
                assert (into(x, y, "int32", kernel=kernel, threads=2) == expected).all()


@needs_registers
@pytest.mark.parametrize(("a_type", "b_type"), MIXES)
def test_sums_at_the_ends_are_exact_modulo_two_to_the_32(a_type, b_type):
    """133000 products of the largest size pass 2^31 and, unsigned, 2^32."""
    k = 133_000
    for x in (np.iinfo(a_type).min, np.iinfo(a_type).max):
        for y in (np.iinfo(b_type).min, np.iinfo(b_type).max):
            a, b = np.full((1, k), x, a_type), np.full((k, 33), y, b_type)
            got = into(a, b, "int32", kernel=SMALL)
            assert (got.astype("i8") % 2**32 == int(x) * int(y) * k % 2**32).all()


@needs_registers
@pytest.mark.parametrize("k", sizes(32))
def test_bfloat16_at_every_edge_bit_for_bit(k):
    a, b = bfloats((65, k)), bfloats((k, 65), 1)
    expected = blocks_of_32(a, b)
    for x, y in ((a, b), (np.asfortranarray(a), np.asfortranarray(b))):
        for m in sizes(32):
            for n in sizes(32):
                got = into(x[:m], y[:, :n], "float32", kernel="amx:32x32:32,32,32")
                assert same_bits(got, expected[:m, :n]), (m, n, k)
    narrow = gemm.matmul(a, b)
    assert narrow.dtype == BFLOAT16
    assert same_bits(narrow.view("u2"), expected.astype(BFLOAT16).view("u2"))


@needs_registers
@pytest.mark.parametrize("low", [-70, -135])
def test_bfloat16_subnormals_are_flushed_as_said(low):
    rng = np.random.default_rng(1)
    a, b = (
        (rng.standard_normal(s) * 2.0 ** rng.integers(low, low + 15, s)).astype(BFLOAT16)
        for s in ((32, 96), (96, 32))
    )
    if low < -100:
        b = (b.astype("f8") * 2.0**130).astype(BFLOAT16)
    assert same_bits(into(a, b, "float32"), blocks_of_32(a, b))


@needs_registers
def test_the_reference_target_agrees():
    kernel = "reference:32x32:32,32,32"
    a, b = bfloats((35, 70)), bfloats((70, 33), 1)
    assert same_bits(into(a, b, "float32", kernel=kernel), into(a, b, "float32"))
    kernel = "reference:32x32:32,64,32"
    for a_type, b_type in MIXES:
        x, y = integers((35, 70), a_type), integers((70, 33), b_type, 1)
        assert (into(x, y, "int32", kernel=kernel) == into(x, y, "int32", kernel="amx")).all()


@needs_registers
def test_bits_do_not_depend_on_shape_threads_batch_or_packing():
    a, b = bfloats((130, 300)), bfloats((300, 200), 1)
    whole = gemm.matmul(a, b, threads=1).view("u2")
    for threads in (2, 3):
        assert same_bits(gemm.matmul(a, b, threads=threads).view("u2"), whole)
    for m in (1, 2, 8, 9, 33):
        assert same_bits(gemm.matmul(a[:m], b).view("u2"), whole[:m])
        assert same_bits(gemm.matmul(a, b[:, :m]).view("u2"), whole[:, :m])
    assert same_bits(gemm.matmul(a[5], b).view("u2"), whole[5])
    assert same_bits(gemm.matmul(a.reshape(10, 13, 300), b).view("u2").reshape(130, 200), whole)
    assert same_bits(gemm.matmul(a, gemm.pack(b)).view("u2"), whole)
    for kernel in ("amx:32x32:32,32,32", "amx:16x48:64,96,48", "amx:16x16"):
        assert same_bits(gemm.matmul(a, b, kernel=kernel).view("u2"), whole)
    product = gemm.matmul(a, a.T).view("u2")
    assert same_bits(product, np.ascontiguousarray(product.T))


@needs_registers
def test_what_does_not_fit_is_refused_with_the_numbers():
    a = np.ones((4, 4), BFLOAT16)
    for kernel, message in (
        ("amx:32x32:32,48,32", "KC = 48 is not a multiple of the 32"),
        ("amx:14x32", "14x32.*whole blocks"),
        ("amx:48x48", "48x48.*whole blocks"),
    ):
        with pytest.raises(ValueError, match=message):
            gemm.matmul(a, a, kernel=kernel)


def _child(queue):
    a = integers((100, 200), "int8")
    queue.put((into(a, a.T, "int32", kernel="amx") == a.astype("i4") @ a.T.astype("i4")).all())


@needs_registers
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_multiplies_too():
    a = integers((100, 200), "int8")
    into(a, a.T, "int32", kernel="amx", threads=2)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_child, args=(queue,))
    child.start()
    assert queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0


REFUSED = """
from gemm.backends.cpu import machine
machine.tiles_permitted = lambda: False
import ml_dtypes, numpy as np, gemm
from gemm import targets
x = np.ones((40, 40), ml_dtypes.bfloat16)
print("amx" in targets.levels(), float(gemm.matmul(x, x)[0, 0]))
"""


def test_where_the_system_refuses_nothing_uses_the_registers():
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "40.0"], done.stderr


def test_permission_is_asked_only_where_it_can_be(monkeypatch):
    monkeypatch.setattr(machine.platform, "system", lambda: "Darwin")
    assert machine.tiles_permitted() is False


@needs_registers
def test_the_ceiling_is_that_of_whole_blocks():
    for dtype, unit in (("bfloat16", "bfloat16x32"), ("int8", "uint8x64")):
        spec = ceiling.spec_of(LEVEL, DTYPES[dtype])
        assert spec.units[0] is UNITS[unit] and spec.tile.block == 16
        blocks = ceiling.fma_rate(dtype, level="amx", seconds=0.002, repeats=2)
        assert blocks > ceiling.fma_rate(dtype, level="avx512", seconds=0.002, repeats=2)


@needs_registers
def test_whole_tiles_are_narrowed_as_the_integers_do():
    """The instruction that narrows two vectors against ml_dtypes: ties, infinities, NaN, limits."""
    a = bfloats((64, 32), 5)
    a[:, 1:] = 0
    b = np.zeros((32, 64), BFLOAT16)
    b[0] = np.float32(1) + np.arange(64, dtype="f4") / 64
    a[:32, 0] = np.ldexp(np.float32(1) + np.arange(32, dtype="f4") / 128, np.arange(-126, 128, 8))
    a[32, 0], a[33, 0], a[34, 0] = np.inf, -np.inf, np.nan
    wide, narrow = into(a, b, "f4"), into(a, b, BFLOAT16)
    expected = wide.astype(BFLOAT16)
    numbers = ~np.isnan(wide)
    assert same_bits(narrow[numbers].view("u2"), expected[numbers].view("u2"))
    assert np.isnan(narrow.astype("f4")[~numbers]).all() and not numbers.all()
    ties = (wide.view("u4") & 0xFFFF) == 0x8000
    assert ties.sum() > 100
