"""What results must be, bit for bit: the numerics contract written out in a few lines."""

from __future__ import annotations

import numpy as np

from gemm.backends.cpu.machine import machine
from gemm.backends.machines.cpus import LEVELS
from gemm.microkernels.dtypes import DTYPES
from gemm.microkernels.fused import (
    flushing_multiply_add,
    fused_multiply_add,
    rounding_twice,
)
from gemm.microkernels.selection import select_tile, unpacked_tile

RUNNABLE = {level.name: level for level in machine().levels}
ALL_LEVELS = {level.name: level for level in LEVELS}
# One level for each kind of vector unit: levels that share it run the same kernels.
UNITS = list({(x.unit, x.fused): x.name for x in machine().levels}.values())
FLOATS = ("float32", "float64")


def chain(a: np.ndarray, b: np.ndarray, fused: bool = True) -> np.ndarray:
    """a @ b of 2-D arrays: for each element one chain of fused multiply-adds over ascending k."""
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    with rounding_twice(not fused):
        for k in range(a.shape[1]):
            total = fused_multiply_add(a[:, k, None], b[None, k, :], total)
    return total


def blocks_of_32(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """docs/numerics.md: 32 k at a time, even and odd k each a chain, their sum added."""
    steps = -(-a.shape[1] // 32) * 32
    x, y = np.zeros((len(a), steps), "f4"), np.zeros((steps, b.shape[1]), "f4")
    x[:, : a.shape[1]], y[: len(b)] = a, b
    total = np.zeros((len(a), b.shape[1]), "f4")
    one = np.float32(1)
    for first in range(0, steps, 32):
        even = odd = np.zeros_like(total)
        for k in range(first, first + 32, 2):
            even = flushing_multiply_add(x[:, k, None], y[None, k], even)
            odd = flushing_multiply_add(x[:, k + 1, None], y[None, k + 1], odd)
        total = flushing_multiply_add(flushing_multiply_add(even, one, odd), one, total)
    return total


def bfloat16_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """float32 sums of bfloat16 products in the order of this machine's best level."""
    best = next(iter(RUNNABLE.values()))
    order = blocks_of_32 if "bfloat16x32" in best.units else chain
    return order(a.astype("f4"), b.astype("f4"))


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal in every bit, so that -0 differs from +0 and NaN equals itself."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def tile(level: str, dtype: str):
    """The register tile a level gets for a dtype."""
    return select_tile(ALL_LEVELS[level].unit, DTYPES[dtype])


def tile_in_place(level: str, dtype: str, ways: int | None = None):
    """The tile that reads rows of A where they lie; ways: of the first-level cache (this one's)."""
    ways = machine().caches[0].ways if ways is None else ways
    return unpacked_tile(tile(level, dtype), ALL_LEVELS[level].unit, ways)


def forced(level: str, dtype: str, kc: int = 4, shape=None) -> str:
    """`kernel=` for the level's own tile with the smallest blocks: every loop goes round."""
    shape = shape or tile(level, dtype)
    rows, columns = shape.rows, shape.columns
    return f"{level}:{rows}x{columns}:{rows},{kc},{columns}"


def random(shape, dtype: str, seed: int = 0) -> np.ndarray:
    """Values of both signs and of magnitudes that make rounding show."""
    rng = np.random.default_rng([seed, *np.atleast_1d(shape)])
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 9, shape)).astype(dtype)


def sizes(unit: int) -> list[int]:
    """Around one and two of `unit`, from nothing on."""
    return sorted({0, 1, unit - 1, unit, unit + 1, 2 * unit + 1})
