"""Axis orders: every array is seen as channels first or last through a view, never through a copy.

A layout is a word of one letter an axis. 'NCHW' and 'NHWC' name the channels-first and
channels-last families in every rank, so ``conv1d(..., layout='NHWC')`` takes (N, W, C). The
filter's word says O for output channels and I for input channels of its group: 'NCHW' goes with (O,
I, KH, KW) and 'NHWC' with (O, KH, KW, I). Three words (input, filter, output) may be given where
they differ, in any order of axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}

Layout = str | Sequence[str]


@dataclass(frozen=True)
class Layouts:
    """Where the axes of (N, C, *spatial) or (O, I, *kernel) are found in the user's arrays."""

    input: tuple[int, ...]
    filter: tuple[int, ...]
    output: tuple[int, ...]


def parse(name: str, layout: Layout, rank: int) -> Layouts:
    """The axis orders of ``layout`` for ``rank`` spatial axes; ValueError when it is not one."""
    given: tuple[str, ...]
    if isinstance(layout, str):
        last = layout[-1:] == "C"
        given = (layout, "OHWI" if last else "OIHW", layout)
    else:
        given = tuple(layout)
        if len(given) != 3:
            raise ValueError(
                f"{name}: layout must be a word or three words (input, filter, output), "
                f"got {layout!r}"
            )
    return Layouts(
        _order(name, given[0], "NC", rank),
        _order(name, given[1], "OI", rank),
        _order(name, given[2], "NC", rank),
    )


def _order(name: str, word: str, head: str, rank: int) -> tuple[int, ...]:
    families = {
        head + "HW": head + SPATIAL[rank],
        head[0] + "HW" + head[1]: head[0] + SPATIAL[rank] + head[1],
    }
    letters = families.get(word, word)
    if rank == 1:
        letters = letters.replace("L", "W")
    wanted = head + SPATIAL[rank]
    if sorted(letters) != sorted(wanted):
        raise ValueError(
            f"{name}: layout {word!r} does not name the axes {', '.join(wanted)} once each"
        )
    return tuple(letters.index(letter) for letter in wanted)


def view(array: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
    """``array`` as (N, C, *spatial), a view."""
    return array.transpose(order)


def stored(shape: Sequence[int], order: tuple[int, ...]) -> tuple[int, ...]:
    """The shape, in the user's axis order, of an array that `view` shows as ``shape``."""
    axes: list[int] = [0] * len(order)
    for extent, position in zip(shape, order, strict=True):
        axes[position] = extent
    return tuple(axes)
