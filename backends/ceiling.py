"""What this machine can do at most: the rate of independent fused multiply-adds, and of copying.

The loop is compiled by the same path as every kernel and runs from registers only, so a kernel's
speed as a share of `fma_rate` says how much its loads and stores cost.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from gemm.microkernels.dtypes import DTYPES, DType, TileShape, int64
from gemm.microkernels.selection import VectorUnit
from gemm.microkernels.vocabulary import (
    load_lanes,
    outer_accumulate,
    shift,
    tile_load,
    tile_multiply_add,
    tile_store,
)

from .cpu import kernels
from .cpu.machine import machine
from .machines.cpus import CPULevel

UNROLL = 4


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


@dataclass(frozen=True)
class ChainsSpec:
    """The ceiling loop as a kernel of the cache."""

    tile: TileShape
    fused: bool

    def build(self):
        return make_chains(self.tile, self.fused), (self.tile.dtype, "integer")


def chains_of(unit: VectorUnit, dtype: DType) -> TileShape:
    """Enough independent vectors to keep every port busy; two registers hold the operands."""
    wanted = 2 * unit.latency * unit.ports
    return TileShape(min(wanted, unit.registers - 3), 1, unit.lanes(dtype), dtype)


def fma_rate(
    dtype: str, threads: int = 1, level: str | None = None, seconds: float = 0.03, repeats: int = 5
) -> float:
    """Floating-point operations a second of independent multiply-adds, best of `repeats`.

    dtype: name of an element type; narrow floats and complex types are answered by the type
    their multiply-adds are done in. level: instruction-set level (default: the machine's best).
    Raises ValueError for an integer type, whose rate depends on the instruction chosen, and for a
    level this machine has not.
    """
    kind = DTYPES[dtype].computed.real
    if kind.kind != "f":
        raise ValueError(f"{dtype}: the ceiling is measured for floating-point types")
    found = _level(level)
    spec = ChainsSpec(chains_of(found.unit, kind), found.fused)
    entry = kernels.entry(found, spec)
    works = [_Work(entry, spec.tile) for _ in range(threads)]
    steps = 1 << 12
    while works[0].run(steps) < seconds and steps < 1 << 34:
        steps *= 2
    flops = 2 * spec.tile.rows * spec.tile.columns * UNROLL * steps * threads
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            started = time.perf_counter()
            list(pool.map(lambda work: work.run(steps), works))
            best = min(best, time.perf_counter() - started)
    return flops / best


class _Work:
    """One thread's operands and its argument table."""

    def __init__(self, entry, tile: TileShape):
        self.entry = entry
        rows, columns = tile.rows, tile.columns
        self.data = np.full((rows + 2, columns), 0.5, tile.dtype.name)
        self.data[:rows] += np.arange(rows)[:, None]
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
