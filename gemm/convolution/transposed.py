"""Transposed convolution and the input gradient: the same gather, one phase of the stride at a
time.

Each output element is one chain over (taps that reach it, channels), channels innermost. No column
matrix is made and nothing is scattered, so nothing is added twice and no order depends on threads.
"""

from __future__ import annotations

import numpy as np

from gemm.convolution import filters, forward
from gemm.convolution.geometry import Geometry
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
) -> None:
    """Write into ``out`` (N, groups, I, *geometry.input) what ``source`` (N, groups, O / groups,
    *geometry.output) and filters from `arranged` give; the views and ``write_back`` are those of
    `forward.convolve`.
    """
    for phase, part in zip(geometry.phases(), packed, strict=True):
        forward.convolve(
            source,
            part,
            phase.axes,
            out[(slice(None),) * 3 + phase.positions],
            algorithm=algorithm,
            dtypes=dtypes,
            write_back=write_back.at((slice(None), *phase.positions)),
            threads=threads,
        )
