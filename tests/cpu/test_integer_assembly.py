"""The loops of integer products that no dot-product instruction serves: nothing on the stack."""

import pytest
from engine.oracle import ALL_LEVELS
from engine.test_assembly import main_loop, stack_traffic

from gemm.microkernels.dtypes import DTYPES, TileShape
from gemm.microkernels.selection import illegal, select_tile
from gemm.planner import panel_units

# (level, dtype): the multiplication and how many an accumulator and step take.
MULTIPLY = {
    ("avx512", "int32"): ("vpmulld", 1),
    ("avx512", "int64"): ("vpmullq", 1),
    ("avx2", "int32"): ("vpmulld", 1),
    ("avx2", "int64"): ("vpmuludq", 3),
    ("neon", "int32"): ("mla", 1),
}


@pytest.mark.parametrize(("level", "dtype"), MULTIPLY)
def test_the_accumulators_stay_in_registers(level, dtype):
    shape = select_tile(ALL_LEVELS[level].unit, DTYPES[dtype])
    loop = main_loop(level, dtype, shape)
    instruction, each = MULTIPLY[level, dtype]
    step = each * shape.rows * shape.vectors
    count = sum(name == instruction for name, _ in loop)
    assert count
    assert count % step == 0
    assert stack_traffic(loop) == []


def test_the_floats_tile_would_spill():
    """The planted violation: the tile of float32 leaves an integer's product no register."""
    unit, floats = ALL_LEVELS["avx2"].unit, select_tile(ALL_LEVELS["avx2"].unit, DTYPES["float32"])
    shape = TileShape(floats.rows, floats.vectors, unit.lanes(DTYPES["int32"]), DTYPES["int32"])
    assert "registers" in illegal(shape, unit)
    assert stack_traffic(main_loop("avx2", "int32", shape))


@pytest.mark.parametrize("level, units", [("avx512_bf16", None), ("avx512_vnni", "int16x2")])
def test_halves_only_where_whole_products_are_slow(level, units):
    found = panel_units(level, *[DTYPES["int32"]] * 4)
    assert (found and found[0].name) == units
