"""Filters as operand B: one (taps * channels, filters) matrix a group, channels innermost in its
rows.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm.convolution import layouts, operands
from gemm.convolution.geometry import Phase


@dataclass(frozen=True, eq=False)
class PackedFilters:
    """Filters arranged once for any number of convolutions; made by `pack_filters`.

    ``matrix`` is (groups, taps * channels, filters). It is a copy, so later changes of the array
    that it was made from do not show.
    """

    matrix: np.ndarray
    kernel: tuple[int, ...]

    @property
    def groups(self) -> int:
        """Number of groups."""
        return self.matrix.shape[0]

    @property
    def channels(self) -> int:
        """Input channels of one group."""
        return self.matrix.shape[1] // math.prod(self.kernel)

    @property
    def out_channels(self) -> int:
        """Output channels of all groups."""
        return self.matrix.shape[0] * self.matrix.shape[2]

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the filters."""
        return self.matrix.dtype


def pack_filters(
    w: np.ndarray, groups: int = 1, *, layout: layouts.Layout = "NCHW"
) -> PackedFilters:
    """Arrange convolution filters once, for ``gemm.conv1d``, ``conv2d`` or ``conv3d`` in place of
    ``w``.

    w: (O, I, *kernel) or (O, *kernel, I) by ``layout``, any dtype and strides; O divisible by
    ``groups``. Raises ValueError or TypeError as the convolution itself would. The copy is as large
    as ``w``.
    """
    name = "pack_filters"
    w = operands.array(name, "w", w)
    rank = w.ndim - 2
    if rank not in layouts.SPATIAL:
        raise ValueError(f"{name}: w must have 3, 4 or 5 axes, got shape {w.shape}")
    w = layouts.view(w, layouts.parse(name, layout, rank).filter)
    operands.check_groups(name, groups, w.shape[0])
    return PackedFilters(matrix(w, groups).copy(order="K"), w.shape[2:])


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


_packed: dict[tuple[int, int], tuple[weakref.ref[Any], bytes, np.ndarray]] = {}


def cached(owner: Any, w: np.ndarray, groups: int) -> np.ndarray:
    """`matrix` of ``w``, arranged once for as long as ``owner`` lives and its values stay.

    ``owner`` is what holds the filters, a tensor or an array. A digest of the values, read at
    memory speed, finds every change in place, those that no version counter sees included. Filters
    that need no rearranging, or that lie scattered in memory, are not kept.
    """
    rows = np.moveaxis(w, 1, -1)
    values = w.ravel(order="K")
    if w.size == 0 or rows.flags.c_contiguous or not np.may_share_memory(values, w):
        return matrix(w, groups)
    key, digest = (id(owner), groups), _digest(values)
    kept = _packed.get(key)
    if kept is not None and kept[0]() is owner and kept[1] == digest:
        return kept[2]
    packed = matrix(w, groups)
    _packed[key] = weakref.ref(owner, lambda _: _packed.pop(key, None)), digest, packed
    return packed


def _digest(values: np.ndarray) -> bytes:
    """A fingerprint of contiguous memory: 64 sums of its 8-byte words, and the rest as it is."""
    raw = values.view(np.uint8)
    whole = raw.size // 512 * 512
    words = raw[:whole].view(np.uint64).reshape(-1, 64)
    return words.sum(0).tobytes() + raw[whole:].tobytes()
