"""Which register tile, decided from machine facts and not by search.

The tile must hold its accumulators, one row of B and one broadcast of A in registers, and give
the fused multiply-add units enough independent chains to cover their latency, and its loads must
leave the load ports slack. Among those that do, the best moves the fewest elements a
multiply-add: (rows + columns) / (rows * columns), the argument of Goto & van de Geijn (2008) and
of Low et al., "Analytical Modeling is Enough for High-Performance BLIS" (2016).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from .dtypes import DType, TileShape


@dataclass(frozen=True)
class BlockUnit:
    """Registers that hold blocks: registers: how many; rows: of one; bytes: of a row; latency and
    interval: cycles of a multiplication of two, and between the starts of two."""

    registers: int
    rows: int
    bytes: int
    latency: int
    interval: int


def select_blocks(unit: BlockUnit, dtype: DType) -> TileShape:
    """The tile of whole blocks: enough chains to cover the latency, a register for each block of A
    and of B beside, and among those the fewest bytes moved a multiplication."""
    lanes = unit.bytes // dtype.size
    shapes = [
        TileShape(high * unit.rows, wide, lanes, dtype, unit.rows)
        for high in range(1, unit.registers)
        for wide in range(1, unit.registers)
        if high * wide + high + wide <= unit.registers
        and high * wide * unit.interval >= unit.latency
    ]
    return min(shapes, key=traffic)


@dataclass(frozen=True)
class VectorUnit:
    """What a micro-kernel needs to know of a core.

    registers: vector registers; bytes: width of one; latency: cycles of a fused multiply-add;
    ports: fused multiply-adds started a cycle; temporaries: registers the step itself needs;
    integer_temporaries: how many more where products of 32 and of 64 bit integers are made of
    several instructions.
    blocks: the unit for whole blocks, where there is one.
    """

    registers: int
    bytes: int
    latency: int
    ports: int
    temporaries: int = 1
    integer_temporaries: tuple[int, int] = (1, 1)
    blocks: BlockUnit | None = None

    def lanes(self, dtype: DType) -> int:
        return max(1, self.bytes // dtype.size)

    def needs(self, dtype: DType) -> int:
        """Registers of a step besides accumulators and the row of B."""
        more = 0 if dtype.kind in "fc" else self.integer_temporaries[dtype.bits > 32]
        return self.temporaries + more


def illegal(shape: TileShape, unit: VectorUnit) -> str:
    """Why a tile does not suit a unit, with the numbers; empty when it does."""
    accumulators = shape.rows * shape.vectors
    needed = accumulators + shape.vectors + unit.needs(shape.dtype)
    if min(shape.rows, shape.vectors, shape.lanes) < 1:
        return f"{shape} has an empty side"
    if needed > unit.registers:
        return f"{shape} needs {needed} registers, the machine has {unit.registers}"
    # The chain of an integer is its addition, of one cycle.
    if accumulators < unit.latency * unit.ports and shape.dtype.kind in "fc":
        return (
            f"{shape} has {accumulators} independent chains, "
            f"{unit.latency} cycles x {unit.ports} ports want {unit.latency * unit.ports}"
        )
    if loads(shape) > LOADS_PER_FMA:
        return f"{shape} needs {loads(shape):.2f} loads a multiply-add, more than {LOADS_PER_FMA}"
    return ""


# Cores start as many vector loads a cycle as multiply-adds; a quarter is left to packing and C.
LOADS_PER_FMA = 0.75


def traffic(shape: TileShape) -> float:
    """Elements moved into registers per multiply-add."""
    return (shape.rows + shape.columns) / (shape.rows * shape.columns)


def loads(shape: TileShape) -> float:
    """Vector and broadcast loads per fused multiply-add."""
    return (shape.rows + shape.vectors / shape.dtype.components) / (shape.rows * shape.vectors)


def candidates(unit: VectorUnit, dtype: DType) -> list[TileShape]:
    """Every legal tile, best first."""
    lanes = unit.lanes(dtype)
    shapes = [
        TileShape(rows, vectors, lanes, dtype)
        for vectors in range(1, 5)
        for rows in range(1, unit.registers)
    ]
    legal = [s for s in shapes if not illegal(s, unit)]
    # A tile that misses the latency target still computes; it is only a last resort.
    if not legal:
        legal = [s for s in shapes if s.rows * s.vectors + 2 <= unit.registers]
    return sorted(legal, key=lambda s: (traffic(s), s.vectors))


def select_tile(unit: VectorUnit, dtype: DType, pairs: bool = False) -> TileShape:
    """The register tile for `dtype` on `unit`; pairs: of an even number of vectors."""
    return next(s for s in candidates(unit, dtype) if not (pairs and s.vectors % 2))


def unpacked_tile(tile: TileShape, unit: VectorUnit, ways: int) -> TileShape | None:
    """The tile that reads rows of A in place: `tile`, or fewer rows; None where none is legal.

    Rows a power of two of bytes apart share one set of a first-level cache of `ways` ways, of
    which a quarter is left to B.
    """
    rows = min(tile.rows, 3 * ways // 4 // 2 * 2)
    short = replace(tile, rows=rows)
    return None if illegal(short, unit) else short
