"""Shapes, batch steps and types of a product of device arrays."""

from __future__ import annotations

import itertools

from gemm.microkernels.dtypes import DTYPES, DType


def merged(shape, *steps) -> tuple[tuple[int, ...], ...]:
    """Batch rows (extent, step of each operand), innermost first, merged where they can be."""
    rows: list[tuple[int, ...]] = []
    for axis in reversed(range(len(shape))):
        extent = shape[axis]
        now = tuple(s[axis] for s in steps)
        if extent == 1:
            continue
        if rows and all(s == t * rows[-1][0] for s, t in zip(now, rows[-1][1:], strict=True)):
            rows[-1] = (rows[-1][0] * extent, *rows[-1][1:])
        else:
            rows.append((extent, *now))
    return tuple(rows)


def broadcast(shape, view):
    """The batch steps of an operand as seen by a batch of this shape."""
    own, steps = view.shape[:-2], view.strides[:-2]
    skip = len(shape) - len(own)
    out = [0] * skip
    for want, extent, step in zip(shape[skip:], own, steps, strict=True):
        out.append(step if extent == want and extent != 1 else 0)
    return out


def batch_shape(a, b) -> tuple[int, ...]:
    """NumPy's broadcast of two batch shapes; ValueError where they do not fit."""
    out = []
    for x, y in itertools.zip_longest(reversed(a), reversed(b), fillvalue=1):
        if x != y and 1 not in (x, y):
            raise ValueError(
                f"batch dimensions {tuple(a)} and {tuple(b)} do not broadcast together"
            )
        out.append(y if x == 1 else x)
    return tuple(reversed(out))


def result_type(a: DType, b: DType) -> DType:
    """NumPy's promotion, by NumPy; 16- and 8-bit floats of other libraries mix with none."""
    if a == b:
        return a
    if {a.name, b.name} & NARROW_FLOATS:
        raise TypeError(f"no product of {a} and {b}: convert one operand first")
    import numpy as np

    return DTYPES[np.result_type(a.name, b.name).name]


NARROW_FLOATS = {"bfloat16", "float8_e4m3fn", "float8_e5m2"}
