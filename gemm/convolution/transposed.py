"""Transposed convolution and the input gradient: the same gather, one phase of the stride at a
time.

Each output element is one chain over (taps that reach it, channels), channels innermost. No column
matrix is made and nothing is scattered, so nothing is added twice and no order depends on threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemm.convolution import filters, forward
from gemm.convolution.geometry import Geometry
from gemm.convolution.product import Panels, aligned, in_panels
from gemm.convolution.write_back import WriteBack


def key(geometry: Geometry, groups: int) -> tuple[int, ...]:
    """What `arranged` depends on beside the filters."""
    steps = tuple(min(s, i) for s, i in zip(geometry.stride, geometry.input, strict=True))
    return groups, *geometry.stride, *geometry.before, *geometry.dilation, *steps


def arranged(
    w: np.ndarray, geometry: Geometry, groups: int, dtype: np.dtype
) -> list[filters.PackedFilters]:
    """Filters (O, I, *kernel) as each phase of a transposed convolution uses them, in order."""
    return [
        filters.arrange(
            filters.transposed_matrix(w, groups, phase).astype(dtype, copy=False),
            tuple(len(taps) for taps in phase.taps),
        )
        for phase in geometry.phases()
    ]


def convolve(
    source: np.ndarray,
    packed: list[filters.PackedFilters],
    geometry: Geometry,
    out: np.ndarray,
    *,
    algorithm: str,
    dtypes: tuple[np.dtype, np.dtype],
    write_back: WriteBack,
    threads: int | None = None,
) -> Repeat | None:
    """Write into ``out`` (N, groups, I, *geometry.input) what ``source`` (N, groups, O / groups,
    *geometry.output) and filters from `arranged` give; the views and ``write_back`` are those of
    `forward.convolve`. Returns what repeats the call, None where a phase has no such thing.
    """
    parts = []
    for phase, part in zip(geometry.phases(), packed, strict=True):
        repeat = forward.convolve(
            source,
            part,
            phase.axes,
            out[(slice(None),) * 3 + phase.positions],
            algorithm=algorithm,
            dtypes=dtypes,
            write_back=write_back.at((slice(None), *phase.positions)),
            threads=threads,
        )
        parts.append((repeat, (slice(None), slice(None), *phase.positions)))
    if write_back.tiles or any(repeat is None for repeat, _ in parts):
        return None
    return Repeat(tuple(parts))


@dataclass(frozen=True)
class Repeat:
    """A call again, phase by phase: (what repeats a phase, its part of (N, C, *spatial)). order:
    the axes of the output that are those (None: as they are)."""

    parts: tuple[tuple[Any, tuple[slice, ...]], ...]
    order: tuple[int, ...] | None = None

    def without_operands(self) -> Repeat:
        """The same for filters that each call brings."""
        return replace(self, parts=tuple((r.without_operand(), at) for r, at in self.parts))

    def __call__(self, x, out, operands=None, given=None) -> bool:
        """As `forward.Repeat`; operands: one a phase, as `arranger` makes them."""
        whole = out if self.order is None else out.transpose(self.order)
        operands = (None,) * len(self.parts) if operands is None else operands
        return all(
            repeat(x, whole[at], operand, given)
            for (repeat, at), operand in zip(self.parts, operands, strict=True)
        )


INDEXED = 1 << 16  # filter values up to which a repeated call keeps the place of each


def arranger(
    repeat: Repeat, w: np.ndarray, order: tuple[int, ...], geometry: Geometry, groups: int
) -> Callable[[np.ndarray], Any]:
    """A function that arranges other arrays like ``w``, of the accumulator's storage or a narrower
    one, as the phases of a repeated call take them; ``order`` shows w as (O, I, *kernel)."""
    operands = [part.operand for part, _ in repeat.parts]
    flat = w.ravel(order="K")
    if (
        w.size > INDEXED
        or not np.may_share_memory(flat, w)
        or not all(isinstance(p, Panels) and p.units is None for p in operands)
    ):

        def anew(w: np.ndarray) -> Any:
            made = arranged(w.transpose(order), geometry, groups, w.dtype)
            return [
                m.panels(p.form) if isinstance(p, Panels) else m.operand
                for m, p in zip(made, operands, strict=True)
            ]

        return anew
    # One gather fills the panels of all phases, each from a cache line on.
    dtype = operands[0].data.dtype
    numbers = np.empty_like(w, np.intp)
    numbers.ravel(order="K")[...] = np.arange(w.size)
    line = 64 // dtype.itemsize
    places: list[np.ndarray] = []
    spans, end = [], 0
    for phase, panels in zip(geometry.phases(), operands, strict=True):
        matrix = filters.transposed_matrix(numbers.transpose(order), groups, phase)
        part = in_panels(matrix, panels.data.shape[-1], np.dtype(np.intp)).ravel()
        places += part, np.zeros(-part.size % line, np.intp)
        spans.append(slice(end, end + part.size))
        end += part.size + places[-1].size
    place = np.concatenate(places)

    def fill(w: np.ndarray) -> Any:
        data = aligned(place.shape, dtype)
        values = w.ravel(order="K")
        if values.dtype == dtype:
            values.take(place, out=data, mode="clip")
        else:
            data[...] = values.take(place, mode="clip")
        return [filters.Filled(data[span]) for span in spans]

    return fill
