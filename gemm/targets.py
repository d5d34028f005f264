"""What the engine can be asked for by name: element types, accumulators, levels, kernels."""

from __future__ import annotations

import functools
import os

import numpy as np

from gemm.microkernels import dtypes
from gemm.microkernels.dtypes import DType
from gemm.microkernels.selection import select_blocks, select_tile

computed_dtypes: dict[np.dtype, DType] = {}  # those met so far


def element_type(dtype: np.dtype) -> DType:
    """The kernels' name for a NumPy dtype; TypeError for one they do not compute."""
    found = computed_dtypes.get(dtype)
    if found is None:
        found = dtypes.DTYPES.get(dtype.name)
        if found is None or not dtype.isnative:
            names = ", ".join(dtypes.DTYPES)
            raise TypeError(f"gemm computes {names} in native byte order, not {dtype!r}")
        computed_dtypes[dtype] = found
    return found


def accumulator(a: DType, out: DType, named: np.dtype | None = None) -> DType:
    """The type in which a product of `a` into `out` is accumulated (docs/numerics.md)."""
    if named is not None:
        acc = element_type(np.dtype(named))
        if acc.name != acc.compute or (acc.kind == "c") != (a.kind == "c"):
            raise TypeError(f"accumulate={acc} is no accumulator for {a}: use a 32 or 64 bit type")
        if (acc.kind == "f") != (a.kind == "f") and acc.kind != "c":
            raise TypeError(f"accumulate={acc} is no accumulator for {a}")
        return acc
    if a.kind == "c":
        return dtypes.complex128 if out.name == "complex128" else a
    if a.kind == "f":
        return dtypes.float64 if "float64" in (a.name, out.name) else dtypes.float32
    return dtypes.int64 if max(a.bits, out.bits) == 64 else dtypes.int32


if os.name == "posix":
    _encoded = functools.cache(os.fsencode)

    def environment(name: str) -> str | None:
        """os.environ.get without its encoding rounds, which cost a microsecond a call."""
        value = os.environ._data.get(_encoded(name))  # type: ignore[attr-defined]
        return None if value is None else os.fsdecode(value)

else:
    environment = os.environ.get  # type: ignore[assignment]


@functools.cache
def levels() -> dict:
    """Instruction-set levels this machine runs, best first, by name."""
    from gemm.backends.cpu.machine import machine

    return {level.name: level for level in machine().levels}


@functools.cache
def described() -> dict:
    """Every level the machine data describes, also those that only other machines run."""
    from gemm.backends.machines.cpus import LEVELS

    return {level.name: level for level in LEVELS}


def default_level() -> str:
    """GEMM_ISA, or the best the machine has."""
    named = environment("GEMM_ISA")
    if named:
        return check_level(named, "GEMM_ISA")
    if not levels():
        raise RuntimeError(
            "no instruction-set level of this machine is known; try kernel='reference'"
        )
    return next(iter(levels()))


def check_level(name: str, source: str) -> str:
    if name != "reference" and name not in levels():
        raise ValueError(
            f"{source}={name!r}: this machine runs {', '.join(levels())} (and 'reference')"
        )
    return name


def parse_kernel(
    kernel: str | None,
) -> tuple[str, tuple[int, int] | None, tuple[int, int, int] | None]:
    """'avx2', 'avx2:6x16' or 'reference:6x16:8,4,16' -> level, MR x NR, (MC, KC, NC)."""
    if kernel is None:
        return default_level(), None, None
    name, _, rest = kernel.partition(":")
    check_level(name, "kernel")
    tile = blocks = None
    try:
        for part in filter(None, rest.split(":")):
            if "x" in part:
                rows, columns = map(int, part.split("x"))
                tile = rows, columns
            else:
                mc, kc, nc = map(int, part.split(","))
                blocks = mc, kc, nc
    except ValueError:
        raise ValueError(f"kernel={kernel!r}: expected LEVEL[:MRxNR][:MC,KC,NC]") from None
    return name, tile, blocks


def unit_of(level: str):
    """(vector unit, fused) of a level; the reference target borrows the best level's."""
    if level == "reference":
        best = next(iter(levels().values()), None) or next(iter(described().values()))
        return best.unit, True
    found = described()[level]
    return found.unit, found.fused


@functools.lru_cache(maxsize=256)
def tile_for(level: str, acc: DType, shape: tuple[int, int] | None, pairs: bool = False):
    """The register tile: selected, or the one named, refused with the numbers when illegal.

    pairs: an epilogue reads columns in pairs, so vectors must pair too.
    """
    unit, _ = unit_of(level)
    if shape is None:
        return select_tile(unit, acc, pairs)
    rows, columns = shape
    lanes = unit.lanes(acc)
    if rows < 1 or columns < 1 or columns % lanes:
        raise ValueError(
            f"kernel tile {rows}x{columns}: NR must be a multiple of {lanes} lanes of {acc}"
            f" on {level}"
        )
    if pairs and columns // lanes % 2:
        raise ValueError(
            f"kernel tile {rows}x{columns}: an epilogue of pairs needs an even number of vectors, "
            f"{columns} columns are {columns // lanes} vectors of {lanes} lanes"
        )
    return dtypes.TileShape(rows, columns // lanes, lanes, acc)


def tile_of_blocks(level: str, acc: DType, shape: tuple[int, int] | None):
    """The tile of a level's unit for whole blocks: selected, or the one named; None where the
    named one is no tile of whole blocks that fits."""
    unit = unit_of(level)[0].blocks
    if shape is None:
        return select_blocks(unit, acc)
    rows, columns = shape
    lanes = unit.bytes // acc.size
    if rows < 1 or columns < 1 or rows % unit.rows or columns % lanes:
        return None
    high, wide = rows // unit.rows, columns // lanes
    if high * wide + high + wide > unit.registers:
        return None
    return dtypes.TileShape(rows, wide, lanes, acc, unit.rows)
