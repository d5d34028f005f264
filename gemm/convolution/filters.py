"""Filters as operand B: one (taps * channels, filters) matrix a group, channels innermost in its
rows, arranged once as the kernel reads it.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemm import targets
from gemm.convolution import layouts, operands
from gemm.convolution.depthwise import Taps, taps_of
from gemm.convolution.geometry import Phase
from gemm.convolution.product import (
    Panels,
    aligned,
    merged_step,
    packing,
    panels_of,
    panels_of_array,
)
from gemm.microkernels import dtypes
from gemm.microkernels.dtypes import DType
from gemm.planner import block_units, panel_units


@dataclass(frozen=True, eq=False)
class PackedFilters:
    """Filters arranged once for any number of convolutions; made by `pack_filters`.

    They lie in panels of the machine's kernel (product.py), or tap by tap for a depthwise
    convolution (depthwise.py). It is a copy, so later changes of the array that it was made from do
    not show. dtype: of the filters. channels: of one group.
    """

    kernel: tuple[int, ...]
    channels: int
    dtype: np.dtype
    operand: Panels | Taps
    calls: dict[Any, Any] = field(default_factory=dict, repr=False)
    other: list[Panels] = field(default_factory=list, repr=False)

    def panels(self, form: str) -> Panels:
        """The panels of a form (product.py); the second one that is asked for is made then."""
        operand = self.operand
        if isinstance(operand, Panels) and operand.form == form:
            return operand
        for kept in self.other:
            if kept.form == form:
                return kept
        made = panels_of(operand.matrix(), operand.level, operand.tile, None, form)
        self.other.append(made)
        return made

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.operand.groups

    @property
    def out_channels(self) -> int:
        """Output channels of all groups."""
        return self.operand.groups * self.operand.count

    @property
    def matrix(self) -> np.ndarray:
        """(groups, taps * channels, filters), in the filters' dtype: a copy."""
        return self.operand.matrix().astype(self.dtype)

    def as_for(self, level: str, dtype: np.dtype, acc: DType) -> PackedFilters:
        """The same for another instruction-set level, dtype or accumulator; itself where nothing
        changes.
        """
        operand = self.operand
        if level == operand.level and dtype == self.dtype and operand.tile.dtype is acc:
            return self
        form = operand.form if isinstance(operand, Panels) else "rows"
        return arrange(self.matrix.astype(dtype, copy=False), self.kernel, level, acc, form)


def arrange(
    matrix: np.ndarray,
    kernel: tuple[int, ...],
    level: str | None = None,
    acc: DType | None = None,
    form: str = "rows",
) -> PackedFilters:
    """(groups, taps * channels, filters) as the kernels of a level (the best one) read it.

    form: of the panels (product.py) that are made at once.
    """
    level = targets.default_level() if level is None else level
    if acc is None:
        kind = targets.element_type(matrix.dtype)
        acc = targets.accumulator(kind, kind)
    tile = targets.tile_for(level, acc, None)
    channels = matrix.shape[1] // max(math.prod(kernel), 1)
    operand: Panels | Taps
    if matrix.shape[0] > 1 and channels == matrix.shape[2] == 1 and tile.dtype.kind != "c":
        operand = taps_of(matrix, level, tile)
    else:
        units = None
        if matrix.dtype == np.int8 and acc is dtypes.int32:
            units = block_units(level, dtypes.uint8, dtypes.int8, acc)
            if units is None:
                units = panel_units(level, dtypes.uint8, dtypes.int8, acc, acc)
            units = units if units is not None and units[0].group >= 4 else None
        operand = panels_of(matrix, level, tile, units, "rows" if units else form)
    return PackedFilters(tuple(kernel), channels, matrix.dtype, operand)


def of_array(w: np.ndarray, groups: int, dtype: np.dtype, form: str = "rows") -> PackedFilters:
    """Filters (O, I, *kernel) of any strides as `arrange` has them, for operands of ``dtype``."""
    kernel = w.shape[2:]
    if (
        w.dtype == dtype != np.int8
        and not (groups > 1 and w.shape[1] == 1 == w.shape[0] // groups)
        and w.size
        and merged_step(kernel, w.strides[2:]) is not None
    ):
        kind = targets.element_type(dtype)
        level = targets.default_level()
        tile = targets.tile_for(level, targets.accumulator(kind, kind), None)
        panels = panels_of_array(w, groups, level, tile, form)
        return PackedFilters(tuple(kernel), w.shape[1], dtype, panels)
    return arrange(matrix(w, groups).astype(dtype, copy=False), kernel, form=form)


def arranger(packed: PackedFilters, w: np.ndarray, groups: int, order: tuple[int, ...]) -> Any:
    """A function that arranges other arrays like the one whose view channels first is ``w`` as
    the kernel of a repeated call takes them."""
    panels = packed.other[-1] if packed.other else packed.operand
    if (
        isinstance(panels, Taps)
        or panels.units is not None
        or merged_step(w.shape[2:], w.strides[2:]) is None
    ):
        form = "" if isinstance(panels, Taps) else panels.form

        def anew(w: np.ndarray) -> Any:
            made = of_array(layouts.view(w, order), groups, w.dtype, form or "rows")
            return made.panels(form) if form else made.operand

        return anew
    routine, shape = packing(w, groups, panels.level, panels.tile, panels.form)
    dtype = panels.data.dtype

    def fill(w: np.ndarray) -> Any:
        data = aligned(shape, dtype)
        routine.run(w, data)
        return Filled(data)

    return fill


@dataclass(frozen=True)
class Filled:
    """Panels of a repeated call: of them the kernel needs no more than the memory."""

    data: np.ndarray


def pack_filters(
    w: np.ndarray, groups: int = 1, *, layout: layouts.Layout = "NCHW"
) -> PackedFilters:
    """Arrange convolution filters once, for ``gemm.conv1d``, ``conv2d`` or ``conv3d`` in place of
    ``w``.

    w: (O, I, *kernel) or (O, *kernel, I) by ``layout``, any dtype and strides; O divisible by
    ``groups``. Raises ValueError or TypeError as the convolution itself would. The copy is in the
    accumulator's dtype, its filters rounded up to whole panels.
    """
    name = "pack_filters"
    w = operands.array(name, "w", w)
    rank = w.ndim - 2
    if rank not in layouts.SPATIAL:
        raise ValueError(f"{name}: w must have 3, 4 or 5 axes, got shape {w.shape}")
    w = layouts.view(w, layouts.parse(name, layout, rank).filter)
    operands.check_groups(name, groups, w.shape[0])
    return of_array(w, groups, w.dtype)


def matrix(w: np.ndarray, groups: int) -> np.ndarray:
    """(groups, taps * I, O / groups) of filters (O, I, *kernel); a view when w lies in memory as O,
    *kernel, I.
    """
    out_channels, channels, *kernel = w.shape
    rows = np.moveaxis(w, 1, -1).reshape(
        groups, out_channels // groups, math.prod(kernel) * channels
    )
    return rows.swapaxes(1, 2)


def transposed_matrix(w: np.ndarray, groups: int, phase: Phase) -> np.ndarray:
    """(groups, taps * O / groups, I) of the taps that one phase of a transposed convolution
    uses.
    """
    out_channels, channels, *kernel = w.shape
    w = w.reshape(groups, out_channels // groups, channels, *kernel)
    w = w[(slice(None),) * 3 + np.ix_(*phase.taps)]
    w = np.moveaxis(w, (1, 2), (-2, -1))
    return w.reshape(groups, math.prod(w.shape[1:-1]), channels)


_packed: dict[Any, tuple[weakref.ref[Any], bytes, Any]] = {}


def cached(owner: Any, w: np.ndarray, key: Any, build: Callable[[], Any]) -> Any:
    """``build()``, made once for as long as ``owner`` lives and the values of ``w`` stay.

    ``owner`` is what holds the filters, a tensor or an array; ``key`` tells its uses apart. A
    digest of the values, read at memory speed, finds every change in place, those that no version
    counter sees included. Filters that lie scattered in memory are not kept.
    """
    values = w.ravel(order="K")
    if w.size == 0 or not np.may_share_memory(values, w):
        return build()
    name, digest = (id(owner), key), _digest(values)
    kept = _packed.get(name)
    if kept is not None and kept[0]() is owner and kept[1] == digest:
        return kept[2]
    packed = build()
    _packed[name] = weakref.ref(owner, lambda _: _packed.pop(name, None)), digest, packed
    return packed


# Odd, so that no word is lost; each row of a piece has its own.
_WEIGHTS = np.arange(1, 2049, 2, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)


def _digest(values: np.ndarray) -> bytes:
    """A fingerprint of contiguous memory: 64 weighted sums of its 8-byte words, and the rest as it
    is. Words of 8-byte numbers are folded first: of their signs alone, two would cancel."""
    raw = values.view(np.uint8)
    whole = raw.size // 512 * 512
    words = raw[:whole].view(np.uint64).reshape(-1, 64)
    total = np.zeros(64, np.uint64)
    for first in range(0, len(words), len(_WEIGHTS)):
        piece = words[first : first + len(_WEIGHTS)]
        if values.dtype.itemsize > 4:
            piece = piece ^ (piece >> np.uint64(31))
        total *= _WEIGHTS[1]
        total += np.einsum("ij,i->j", piece, _WEIGHTS[: len(piece)])
    return total.tobytes() + raw[whole:].tobytes()
