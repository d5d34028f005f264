"""What results must be, bit for bit: the numerics contract written out in a few lines."""

from __future__ import annotations

import numpy as np

from gemm.backends.cpu.machine import machine
from gemm.backends.machines.cpus import LEVELS
from gemm.microkernels.dtypes import DTYPES
from gemm.microkernels.fused import fused_multiply_add, rounding_twice
from gemm.microkernels.selection import select_tile

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


def same_bits(x: np.ndarray, y: np.ndarray) -> bool:
    """Equal in every bit, so that -0 differs from +0 and NaN equals itself."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


def tile(level: str, dtype: str):
    """The register tile a level gets for a dtype."""
    return select_tile(ALL_LEVELS[level].unit, DTYPES[dtype])


def forced(level: str, dtype: str, kc: int = 4) -> str:
    """`kernel=` for the level's own tile with the smallest blocks: every loop goes round."""
    shape = tile(level, dtype)
    rows, columns = shape.rows, shape.columns
    return f"{level}:{rows}x{columns}:{rows},{kc},{columns}"


def random(shape, dtype: str, seed: int = 0) -> np.ndarray:
    """Values of both signs and of magnitudes that make rounding show."""
    rng = np.random.default_rng([seed, *np.atleast_1d(shape)])
    return (rng.standard_normal(shape) * 2.0 ** rng.integers(-8, 9, shape)).astype(dtype)


def sizes(unit: int) -> list[int]:
    """Around one and two of `unit`, from nothing on."""
    return sorted({0, 1, unit - 1, unit, unit + 1, 2 * unit + 1})
