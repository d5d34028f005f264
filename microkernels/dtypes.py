"""Element types as the kernels see them: what lies in memory and what is computed with.

A `DType` names a storage format and the compute type its values are widened to when they are
loaded. Storage and compute agree for float32, float64, int32, int64 and the complex types; the
narrow formats are widened by the load and rounded (floats) or truncated (integers) by the store.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace


@dataclass(frozen=True, eq=False)
class DType:
    """One object for each type, compared by identity.

    name: NumPy's (or ml_dtypes') name; kind: f, i, u or c; bits: size in memory;
    compute: name of the type the loads widen to; group: values of k in one element of a panel
    (gemm/grouping.py)."""

    name: str
    kind: str
    bits: int
    compute: str
    group: int = 1

    @property
    def size(self) -> int:
        """Bytes of one element in memory."""
        return self.bits // 8

    @property
    def real(self) -> DType:
        """The type of one component: float32 for complex64, itself for real types."""
        return {"complex64": float32, "complex128": float64}.get(self.name, self)

    @property
    def components(self) -> int:
        return 2 if self.kind == "c" else 1

    @property
    def computed(self) -> DType:
        return DTYPES[self.compute]

    def widened_to(self, wide: DType) -> DType:
        """The same storage, computed as `wide` is."""
        return self if self.kind == "c" else _widened(self, wide.compute)

    def __repr__(self) -> str:
        usual = DTYPES.get(self.name, self).compute
        return self.name if self.compute == usual else f"{self.name}->{self.compute}"


@functools.cache
def _widened(dtype: DType, compute: str) -> DType:
    return dtype if compute == dtype.compute else replace(dtype, compute=compute)


DTYPES: dict[str, DType] = {}


def _define(name: str, kind: str, bits: int, compute: str) -> DType:
    DTYPES[name] = DType(name, kind, bits, compute)
    return DTYPES[name]


float64 = _define("float64", "f", 64, "float64")
float32 = _define("float32", "f", 32, "float32")
float16 = _define("float16", "f", 16, "float32")
bfloat16 = _define("bfloat16", "f", 16, "float32")
float8_e4m3fn = _define("float8_e4m3fn", "f", 8, "float32")
float8_e5m2 = _define("float8_e5m2", "f", 8, "float32")
complex64 = _define("complex64", "c", 64, "complex64")
complex128 = _define("complex128", "c", 128, "complex128")
int8 = _define("int8", "i", 8, "int32")
uint8 = _define("uint8", "u", 8, "int32")
int16 = _define("int16", "i", 16, "int32")
uint16 = _define("uint16", "u", 16, "int32")
int32 = _define("int32", "i", 32, "int32")
uint32 = _define("uint32", "u", 32, "int32")
int64 = _define("int64", "i", 64, "int64")
uint64 = _define("uint64", "u", 64, "int64")
# Stored as one byte, 0 or 1; sums of products are counts, and the store writes count != 0.
bool_ = _define("bool", "b", 8, "int32")

# Units of a panel for dot-product instructions; in memory and in lanes they are 32-bit integers.
UNITS = {
    name: DType(name, "g", 32, "int32", group)
    for name, group in (("int16x2", 2), ("bfloat16x2", 2), ("int8x4", 4), ("uint8x4", 4))
}
# Units of 64 bytes for instructions on whole blocks (gemm/block_packing.py).
UNITS |= {
    name: DType(name, "g", 512, compute, group)
    for name, compute, group in (
        ("bfloat16x32", "float32", 32), ("int8x64", "int32", 64), ("uint8x64", "int32", 64),
    )
}  # fmt: skip


@dataclass(frozen=True)
class TileShape:
    """A register tile: `rows` x (`vectors` * `lanes`) accumulators of `dtype`.

      lanes  lanes  (vectors = 2)
    +------+------+
    |      |      |  rows
    +------+------+

    block: rows of one register. A register of 16 x 16 accumulators takes units of 64 bytes.
    """

    rows: int
    vectors: int
    lanes: int
    dtype: DType
    block: int = 1

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def registers(self) -> int:
        """Registers that hold the accumulators."""
        return self.rows // self.block * self.vectors

    def __repr__(self) -> str:
        blocks = f" in blocks of {self.block}x{self.lanes}" if self.block > 1 else ""
        return f"{self.rows}x{self.columns} {self.dtype}{blocks}"
