"""What this machine can do at most: the rate of independent multiply-adds, and of copying.

The loop is compiled by the same path as every kernel and does nothing else, so a kernel's speed as
a share of `fma_rate` says how much its packing, loads and stores cost. Integers and bfloat16 are
multiplied and added by the best instruction the level has for them: 4 products of bytes a lane, 2
of 16 bits, else one multiplication and one addition.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gemm.microkernels.arithmetic import bit_or
from gemm.microkernels.dtypes import DTYPES, UNITS, DType, TileShape, int64
from gemm.microkernels.selection import VectorUnit, select_blocks
from gemm.microkernels.vocabulary import (
    load_lanes,
    outer_accumulate,
    recast,
    shift,
    store_lanes,
    tile_load,
    tile_multiply_add,
    tile_store,
)

from .cpu import kernels
from .cpu.machine import machine
from .machines.cpus import CPULevel

UNROLL = 4
RING = 8  # loop steps after which the second operand of a loop over units repeats


def make_chains(shape: TileShape, fused: bool):
    """chains(data, steps): `steps` x UNROLL multiply-adds on every element of a tile at `data`.

    data: the tile, then one vector of factors, then one of summands; the tile is written back.
    Where the target fuses, t += x * y with everything but t held still; elsewhere that product
    would be computed once for all steps, so there t = t * x + y.
    """
    dtype = shape.dtype
    row = shape.columns * dtype.size
    lanes, rows = shape.lanes, shape.rows

    def accumulated(data, steps):
        t = tile_load(shape, data, row, rows, lanes)
        x = shift(data, rows * row)
        y = shift(data, (rows + 1) * row)
        for _ in range(steps):
            for _ in range(UNROLL):
                t = outer_accumulate(t, x, 0, y, lanes)
        tile_store(data, row, t, rows, lanes)

    def scaled(data, steps):
        t = tile_load(shape, data, row, rows, lanes)
        x = load_lanes(shift(data, rows * row), lanes, lanes)
        y = load_lanes(shift(data, (rows + 1) * row), lanes, lanes)
        for _ in range(steps):
            for _ in range(UNROLL):
                t = tile_multiply_add(t, x, y)
        tile_store(data, row, t, rows, lanes)

    chains = accumulated if fused else scaled
    chains.label = f"ceiling {dtype}"  # type: ignore[attr-defined]
    return chains


def make_unit_chains(shape: TileShape, units: tuple[DType, DType]):
    """sums(data, steps): `steps` x UNROLL multiply-adds of units on every element of a tile.

    data: the tile, a factor for each row (in whole vectors), then RING x UNROLL vectors of the
    other factor, both in the given units. That operand moves with the step and each row has its own
    factor, since a compiler does not repeat an integer product that it knows: one load for all
    rows of a step is the price, and load ports are idle otherwise.
    """
    dtype = shape.dtype
    size = dtype.size
    row = shape.columns * size
    lanes, rows = shape.lanes, shape.rows
    factors = -(-rows // shape.columns)
    first, second = units

    def sums(data, steps):
        t = tile_load(shape, data, row, rows, lanes)
        a = recast(shift(data, rows * row), first)
        ring = recast(shift(data, (rows + factors) * row), second)
        for step in range(steps):
            b = shift(ring, (step & (RING - 1)) * (UNROLL * row))
            for i in range(UNROLL):
                t = outer_accumulate(t, a, size, shift(b, i * row), lanes)
        tile_store(data, row, t, rows, lanes)

    sums.label = f"ceiling {units[0]} {units[1]}"  # type: ignore[attr-defined]
    return sums


def make_block_chains(shape: TileShape, units: tuple[DType, DType]):
    """As make_unit_chains for whole blocks, of which the first level holds each operand's one.

    data: the tile, a unit for each row, a unit for each column. Each step loads both again.
    """
    rows, columns = shape.rows, shape.columns
    row = columns * shape.dtype.size
    first, second = units

    def blocks(data, steps):
        t = tile_load(shape, data, row, rows, columns)
        a = recast(shift(data, rows * row), first)
        b = recast(shift(data, rows * row + rows * 64), second)
        for _ in range(steps):
            for _ in range(UNROLL):
                t = outer_accumulate(t, a, 64, b, columns)
        tile_store(data, row, t, rows, columns)

    blocks.label = f"ceiling {units[0]} {units[1]}"  # type: ignore[attr-defined]
    return blocks


@dataclass(frozen=True)
class ChainsSpec:
    """The ceiling loop as a kernel of the cache. units: of the two operands, or plain floats."""

    tile: TileShape
    fused: bool
    units: tuple[DType, DType] | None = None

    def build(self):
        arguments = self.tile.dtype, "integer"
        if self.units is not None and self.tile.block > 1:
            return make_block_chains(self.tile, self.units), arguments
        if self.units is not None:
            return make_unit_chains(self.tile, self.units), arguments
        return make_chains(self.tile, self.fused), arguments

    @property
    def operations(self) -> int:
        """Multiplications and additions of one step."""
        group = 1 if self.units is None else self.units[0].group
        return 2 * group * self.tile.rows * self.tile.columns * UNROLL

    @property
    def vectors(self) -> int:
        """Vectors of operands behind the tile."""
        if self.units is None:
            return 2
        if self.tile.block > 1:
            return 64 * (self.tile.rows + self.tile.columns) // (4 * self.tile.columns)
        return -(-self.tile.rows // self.tile.columns) + RING * UNROLL


def chains_of(unit: VectorUnit, dtype: DType) -> TileShape:
    """Enough independent vectors to keep every port busy; two registers hold the operands."""
    wanted = 2 * unit.latency * unit.ports
    return TileShape(min(wanted, unit.registers - 3), 1, unit.lanes(dtype), dtype)


def unit_chains_of(unit: VectorUnit, dtype: DType) -> TileShape:
    """As chains_of where each row has a factor of its own, in a register, too."""
    free = unit.registers - 2 - unit.temporaries
    return TileShape(min(2 * unit.latency * unit.ports, free // 2), 1, unit.lanes(dtype), dtype)


def units_of(level: CPULevel, dtype: DType) -> tuple[DType, DType] | None:
    """The largest group of k that holds `dtype`'s values and that the level multiplies at once.

    None: plain floats. Integers without such a group are their own units.
    """
    pairs = ("bfloat16x32", "bfloat16x2") if dtype.name == "bfloat16" else ()
    groups = [(16, name, name) for name in pairs]
    if dtype.kind in "iub":
        groups = [(8, "uint8x64", "int8x64"), (8, "uint8x4", "int8x4"), (16, "int16x2", "int16x2")]
    for bits, first, second in groups:
        if dtype.bits <= bits and second in level.units:
            return UNITS[first], UNITS[second]
    return (dtype.computed, dtype.computed) if dtype.kind in "iub" else None


def spec_of(level: CPULevel, dtype: DType) -> ChainsSpec:
    """The loop that measures `dtype`'s ceiling on `level`."""
    kind, units = dtype.computed.real, units_of(level, dtype)
    if units is None:
        return ChainsSpec(chains_of(level.unit, kind), level.fused)
    if level.unit.blocks is not None and units[0].size == 64:
        return ChainsSpec(select_blocks(level.unit.blocks, kind), False, units)
    return ChainsSpec(unit_chains_of(level.unit, kind), False, units)


def fma_rate(
    dtype: str, threads: int = 1, level: str | None = None, seconds: float = 0.03, repeats: int = 5
) -> float:
    """Multiplications and additions a second of independent multiply-adds, best of `repeats`.

    dtype: name of an element type. Narrow floats and complex types are answered by the type their
    multiply-adds are done in; integers, and bfloat16 where pairs of it are multiplied at once, by
    the best instruction for their width (units_of).
    level: instruction-set level (default: the machine's best). Raises ValueError for a level this
    machine has not.
    """
    found = _level(level)
    spec = spec_of(found, DTYPES[dtype])
    entry = kernels.entry(found, spec)
    works = [_Work(entry, spec) for _ in range(threads)]
    steps = 1 << 12
    while works[0].run(steps) < seconds and steps < 1 << 34:
        steps *= 2
    operations = spec.operations * steps * threads
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        # One thread is the caller's: another may sit on a core of another speed.
        each = map if threads == 1 else pool.map
        for _ in range(repeats):
            started = time.perf_counter()
            list(each(lambda work: work.run(steps), works))
            best = min(best, time.perf_counter() - started)
    return operations / best


class _Work:
    """One thread's operands and its argument table."""

    def __init__(self, entry, spec: ChainsSpec):
        self.entry = entry
        rows, columns = spec.tile.rows, spec.tile.columns
        shape = rows + spec.vectors, columns
        if spec.units is None:
            self.data = np.full(shape, 0.5, spec.tile.dtype.name)
            self.data[:rows] += np.arange(rows)[:, None]
        else:
            # Units of 16 bits that are bfloat16 values near 1, too; as integers any will do.
            values = np.random.default_rng(0).integers(0, 128, shape) * 0x10001 + 0x3F003F00
            kind = spec.tile.dtype
            self.data = values.astype(f"i{kind.size}").view(kind.name)
        # Blocks that cross cache lines would be measured, else.
        room = np.empty(self.data.nbytes + 64, np.uint8)
        start = -room.ctypes.data % 64
        aligned = room[start : start + self.data.nbytes].view(self.data.dtype)
        aligned[:] = self.data.reshape(-1)
        self.data = aligned
        self.table = np.array([self.data.ctypes.data, 0], int64.name)

    def run(self, steps: int) -> float:
        self.table[1] = steps
        started = time.perf_counter()
        self.entry(self.table.ctypes.data, 0)
        return time.perf_counter() - started


def _level(name: str | None) -> CPULevel:
    levels = {level.name: level for level in machine().levels}
    if name is None:
        return next(iter(levels.values()))
    if name not in levels:
        raise ValueError(f"level={name!r}: this machine runs {', '.join(levels)}")
    return levels[name]


def make_read(lanes: int):
    """read(data, found, blocks): `blocks` x 8 vectors of int64 at data, or-ed into found."""
    size = lanes * int64.size

    def read(data, found, blocks):
        a = b = c = d = load_lanes(data, lanes, lanes)
        for _ in range(blocks):
            a = bit_or(a, load_lanes(data, lanes, lanes))
            b = bit_or(b, load_lanes(shift(data, size), lanes, lanes))
            c = bit_or(c, load_lanes(shift(data, 2 * size), lanes, lanes))
            d = bit_or(d, load_lanes(shift(data, 3 * size), lanes, lanes))
            a = bit_or(a, load_lanes(shift(data, 4 * size), lanes, lanes))
            b = bit_or(b, load_lanes(shift(data, 5 * size), lanes, lanes))
            c = bit_or(c, load_lanes(shift(data, 6 * size), lanes, lanes))
            d = bit_or(d, load_lanes(shift(data, 7 * size), lanes, lanes))
            data = shift(data, 8 * size)
        store_lanes(found, bit_or(bit_or(a, b), bit_or(c, d)), lanes)

    read.label = "ceiling read"  # type: ignore[attr-defined]
    return read


@dataclass(frozen=True)
class ReadSpec:
    """The loop of reads as a kernel of the cache."""

    lanes: int

    def build(self):
        return make_read(self.lanes), (int64, int64, "integer")


def reader(array: np.ndarray, level: str | None = None):
    """A callable that reads a C-contiguous array once, in order, and does nothing else."""
    found = _level(level)
    lanes = found.unit.lanes(int64)
    entry = kernels.entry(found, ReadSpec(lanes))
    result = np.zeros(lanes, np.int64)
    blocks = array.nbytes // (64 * lanes)
    if not array.flags.c_contiguous or not blocks:
        raise ValueError(f"a reader needs {64 * lanes} adjacent bytes or more")
    table = np.array([array.ctypes.data, result.ctypes.data, blocks], np.int64)
    held = (array, result)

    def read():
        entry(table.ctypes.data, 0)
        return held

    return read


def read_bandwidth(nbytes: int = 1 << 27, repeats: int = 5) -> float:
    """Bytes a second when one thread reads `nbytes` once, best of `repeats`."""
    read = reader(np.ones(nbytes // 8))
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        read()
        best = min(best, time.perf_counter() - started)
    return nbytes / best


def bandwidth(nbytes: int = 1 << 27, repeats: int = 5) -> float:
    """Bytes read plus bytes written a second when one thread copies `nbytes`, best of `repeats`."""
    source = np.ones(nbytes // 8)
    target = np.zeros_like(source)
    best = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - started)
    return 2 * source.nbytes / best
