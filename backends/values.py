"""Numba types of the vocabulary's values, and the typing rule of every word.

A rule takes Numba argument types and returns the result type; a constant argument (a `DType`, a
`TileShape`, a literal integer) reaches it as a type that carries the value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models, register_default

from gemm.microkernels import vocabulary as words
from gemm.microkernels.cooperative import StageShape, TeamTile
from gemm.microkernels.dtypes import DType, TileShape

NUMBA_SCALARS = {
    "float64": types.float64,
    "float32": types.float32,
    "int32": types.int32,
    "int64": types.int64,
}
LLVM_SCALARS = {
    "float64": ir.DoubleType(),
    "float32": ir.FloatType(),
    "int32": ir.IntType(32),
    "int64": ir.IntType(64),
}
BYTE_POINTER = ir.IntType(8).as_pointer()

# Classes whose instances a kernel may name as compile-time constants.
CONSTANTS = (DType, TileShape, StageShape, TeamTile)


class Pointer(types.Type):
    """An address of elements of `dtype`, known to be a multiple of `align` bytes; `space` is
    LLVM's address space."""

    def __init__(self, dtype: DType, space: int = 0, align: int = 1):
        self.dtype, self.space, self.align = dtype, space, align
        super().__init__(f"Pointer({dtype}, {space}, {align})")


def vector_type(dtype: DType, lanes: int):
    """LLVM's vector of computed values; complex ones are pairs of adjacent lanes (re, im)."""
    return ir.VectorType(LLVM_SCALARS[dtype.real.compute], lanes * dtype.components)


class Lanes(types.Type):
    def __init__(self, dtype: DType, lanes: int):
        self.dtype, self.lanes = dtype, lanes
        self.llvm = vector_type(dtype, lanes)
        super().__init__(f"Lanes({dtype}, {lanes})")


class Tile(types.Type):
    def __init__(self, shape: TileShape):
        self.shape = shape
        size = f"{shape.rows}, {shape.vectors}, {shape.lanes}, {shape.dtype}, {shape.block}"
        super().__init__(f"Tile({size})")

    @property
    def vector(self):
        return vector_type(self.shape.dtype, self.shape.lanes)

    @property
    def llvm(self):
        if self.shape.block > 1:
            return ir.IntType(8)  # registers by number: no value passes through LLVM
        return ir.ArrayType(self.vector, self.shape.rows * self.shape.vectors)


class Constant(types.Type):
    """A compile-time value (element type, tile shape, target): nothing at run time."""

    def __init__(self, value):
        self.value = value
        # Numba keeps one type for each name, and the text of a shape leaves out its lanes.
        super().__init__(f"Constant({type(value).__name__} {astuple(value)})")


@register_default(Pointer)
class _PointerModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, ir.IntType(8).as_pointer(fe_type.space))


@register_default(Lanes)
@register_default(Tile)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, dmm, fe_type):
        super().__init__(dmm, fe_type, fe_type.llvm)


@register_default(Constant)
class _ConstantModel(models.OpaqueModel):
    pass


def constant(ty):
    """The value carried by a constant argument's type."""
    if isinstance(ty, Constant):
        return ty.value
    if isinstance(ty, types.IntegerLiteral):
        return ty.literal_value
    raise TypeError(f"expected a compile-time constant, got {ty}")


def scalar(dtype: DType):
    """Numba's type for one computed value of `dtype`."""
    return NUMBA_SCALARS[dtype.compute]


def element(ty) -> DType:
    """The DType of a Numba scalar."""
    from gemm.microkernels.dtypes import DTYPES

    name = str(types.unliteral(ty))
    return DTYPES[{"uint64": "int64"}.get(name, name)]


RULES: dict[Callable, Callable] = {
    words.shift: lambda p, n: Pointer(p.dtype, p.space),
    words.recast: lambda p, d: Pointer(constant(d), p.space),
    words.load: lambda p: scalar(p.dtype),
    words.store: lambda p, x: types.none,
    words.copy: lambda d, s: types.none,
    words.prefetch: lambda p: types.none,
    words.prefetch_far: lambda p: types.none,
    words.load_lanes: lambda p, w, n: Lanes(p.dtype.computed, constant(w)),
    words.store_lanes: lambda p, v, n: types.none,
    words.scatter_lanes: lambda p, s, v, n: types.none,
    words.gather_lanes: lambda p, s, w, n: Lanes(p.dtype.computed, constant(w)),
    words.load_alternate: lambda p, w, n: Lanes(p.dtype.computed, constant(w)),
    words.broadcast: lambda x, w: Lanes(element(x), constant(w)),
    words.tile_zeros: lambda s: Tile(constant(s)),
    words.tile_load: lambda s, p, r, m, n: Tile(constant(s)),
    words.tile_store: lambda p, r, t, m, n: types.none,
    words.tile_spill: lambda t, d: Pointer(constant(d)),
    words.tile_transpose: lambda t: Tile(TileShape(t.shape.lanes, 1, t.shape.rows, t.shape.dtype)),
    words.outer_accumulate: lambda t, a, r, b, n: t,
    words.rows_accumulate: lambda t, a, r, x, n: t,
    words.tile_multiply_add: lambda t, x, y: t,
    words.tile_add_shifted: lambda t, u, n: t,
    words.lesser: lambda i, j: types.intp,
    words.greater: lambda i, j: types.intp,
}
