"""The micro-kernel's loop as the machine sees it: the multiply-adds, their operands, nothing else.

Emitted from machine data, so every level is looked at wherever the tests run.
"""

import re

import pytest

from gemm.microkernels.dtypes import DTYPES, DType, TileShape
from gemm.microkernels.outer_product import make_outer_product, make_outer_product_ahead
from gemm.microkernels.selection import illegal
from gemm.microkernels.vocabulary import shift, tile_load, tile_store

from .oracle import ALL_LEVELS, FLOATS, tile, tile_in_place

UNROLL = 4
# One level for each vector unit: the others emit the same loop.
NAMES = list({level.unit: name for name, level in ALL_LEVELS.items()}.values())
FUSED = re.compile(r"^(vfn?m(add|sub)\w*|fmla)$")
MULTIPLY, ADD = re.compile(r"^v?mulp[sd]$"), re.compile(r"^v?addp[sd]$")


def micro_kernel(shape: TileShape):
    """The micro-kernel on packed panels, with a tile loaded before and stored after."""
    size = shape.dtype.size
    step = shape.columns * size
    compute = make_outer_product(UNROLL)
    rows, columns = shape.rows, shape.columns

    def kernel(a, b, c, k):
        t = tile_load(shape, c, step, rows, columns)
        t = compute(t, a, size, rows * size, b, step, columns, k)
        tile_store(c, step, t, rows, columns)

    return kernel


def loops(assembly: str) -> list[list[str]]:
    """The instructions of each innermost loop: from a label to a branch back to it."""
    lines = [line.split("#")[0].split("//")[0].strip() for line in assembly.splitlines()]
    lines = [line for line in lines if line and (not line.startswith(".") or line.endswith(":"))]
    found = []
    for end, line in enumerate(lines):
        match = re.match(r"^(j\w+|b\.?\w*|cbn?z|tbn?z)\s.*?(\.L\w+)$", line)
        if match and f"{match[2]}:" in lines[:end]:
            body = lines[lines.index(f"{match[2]}:") + 1 : end + 1]
            if not any(x.endswith(":") for x in body):
                found.append(body)
    return found


def main_loop(level: str, dtype: str, shape: TileShape | None = None, kernel=None,
              integers: int = 1) -> list[tuple[str, str]]:  # fmt: skip
    """(mnemonic, operands) of the unrolled loop over k."""
    from numba.core.types import intp

    from gemm.backends import compiler, values
    from gemm.backends.cpu import kernels

    shape = shape or tile(level, dtype)
    kinds = [values.Pointer(DTYPES[dtype])] * 3 + [intp] * integers
    target = kernels.target_of(ALL_LEVELS[level])
    assembly = compiler.compile_assembly(kernel or micro_kernel(shape), kinds, target)
    longest = max(loops(assembly), key=len)
    return [(line.split(None, 1)[0], line.partition("\t")[2] or line) for line in longest]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("level", NAMES)
def test_the_loop_holds_the_multiply_adds_and_no_spill(level, dtype):
    shape = tile(level, dtype)
    loop = main_loop(level, dtype)
    wanted = UNROLL * shape.rows * shape.vectors
    if ALL_LEVELS[level].fused:
        assert sum(bool(FUSED.match(name)) for name, _ in loop) == wanted
    else:
        assert sum(bool(MULTIPLY.match(name)) for name, _ in loop) == wanted
        assert sum(bool(ADD.match(name)) for name, _ in loop) == wanted
    assert stack_traffic(loop) == []


def in_place(shape: TileShape):
    """The same on rows of A where they lie, `row_step` bytes apart."""
    size = shape.dtype.size
    step = shape.columns * size
    compute = make_outer_product_ahead(2)
    rows, columns = shape.rows, shape.columns

    def kernel(a, b, c, row_step, k):
        t = tile_load(shape, c, step, rows, columns)
        t = compute(t, a, row_step, size, b, step, columns, k, shift(a, rows * row_step))
        tile_store(c, step, t, rows, columns)

    return kernel


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("level, ways", [("avx512", 8), ("avx512", 12), ("avx2", 8), ("avx2", 12)])
def test_the_loop_over_rows_in_place_holds_no_spill(level, ways, dtype):
    shape = tile_in_place(level, dtype, ways)
    loop = main_loop(level, dtype, shape, in_place(shape), 2)
    assert sum(bool(FUSED.match(name)) for name, _ in loop) == 2 * shape.rows * shape.vectors
    # %rbp is a row's address here.
    assert not [operands for _, operands in loop if "%rsp" in operands]
    assert sum(name == "prefetcht1" for name, _ in loop) == 2


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_blocked_kernel_asks_for_the_next_rows(dtype):
    """Of the whole kernel, whose loops call what the test above looks at alone."""
    from numba.core.types import intp

    from gemm.backends import compiler, values
    from gemm.backends.cpu import kernels
    from gemm.kernels import KernelSpec

    shape, kind = tile_in_place("avx512", dtype, 12), DTYPES[dtype]

    def asked_for(spec):
        function, arguments = spec.build()
        kinds = [values.Pointer(x) if isinstance(x, DType) else intp for x in arguments]
        target = kernels.target_of(ALL_LEVELS["avx512"])
        found = loops(compiler.compile_assembly(function, kinds, target))
        return [sum(line.startswith("prefetcht1") for line in loop) for loop in found]

    spec = KernelSpec("blocked", shape, kind, kind, kind)
    assert 2 in asked_for(spec.unpacked())
    assert not any(asked_for(spec))


def stack_traffic(loop) -> list[str]:
    return [operands for _, operands in loop if re.search(r"%rsp|%rbp|\[sp|\[x29", operands)]


def test_a_tile_that_does_not_fit_is_seen_to_spill():
    """The planted violation: one tile too large, and the check above bites."""
    level = "avx2"
    shape = TileShape(8, 2, 8, DTYPES["float32"])
    assert "registers" in illegal(shape, ALL_LEVELS[level].unit)
    assert stack_traffic(main_loop(level, "float32", shape))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("level", NAMES)
def test_the_chosen_tile_is_legal_and_covers_the_latency(level, dtype):
    unit, shape = ALL_LEVELS[level].unit, tile(level, dtype)
    assert illegal(shape, unit) == ""
    assert shape.rows * shape.vectors >= unit.latency * unit.ports
    assert shape.rows * shape.vectors + shape.vectors + unit.temporaries <= unit.registers


def test_selection_answers_with_numbers():
    unit = ALL_LEVELS["avx2"].unit
    dtype = DTYPES["float64"]
    assert "needs 19 registers, the machine has 16" in illegal(TileShape(8, 2, 4, dtype), unit)
    assert "has 4 independent chains" in illegal(TileShape(4, 1, 4, dtype), unit)
    assert "empty side" in illegal(TileShape(0, 1, 4, dtype), unit)
