"""A matrix times its own transpose: the lower half is computed, the upper half mirrored.

Element (i, j) and element (j, i) are the same chain for real types, so the bits are those of the
whole product. Both operands are packed once; the loops visit tiles on and below the diagonal:

    +--+  .  .  .
    |  +--+  .  .       a product too long for one call (slices.py) goes by rows: the part left of
    |     +--+  .       the diagonal block is an ordinary product, the block itself a triangle
    |        +--+
    +-----------+       then mirror.py fills in the dots
"""

from __future__ import annotations

import functools
from dataclasses import replace

from . import planner, slices
from .execution import address, execute
from .kernels import KernelSpec
from .mirror import BITS, square_of
from .plan import Blocks, Plan
from .targets import accumulator, default_level, element_type, unit_of

SMALLEST = 128  # rows below which halving does not pay
DEEP = 64  # K below which mirroring costs what halving saves


def applies(a, b, out) -> bool:
    """Whether b is a's transpose, and the product is worth halving."""
    return (
        a.ndim == 2
        and a.shape[0] >= SMALLEST
        and a.shape == b.shape[::-1]
        and a.strides == b.strides[::-1]
        and a.dtype is b.dtype
        and out.dtype.kind != "c"
        and a.shape[1] >= DEEP
        and out.itemsize in out.strides
        and address(a) == address(b)
    )


@functools.lru_cache(maxsize=512)
def plans(level: str, kind, to, acc, n: int, k: int, threads: int,
          a_rows: bool) -> tuple[Plan, Plan]:  # fmt: skip
    """(the triangle's, the mirror's) of n rows; threads: workers at most; a_rows: A's rows are
    adjacent along k."""
    workers = planner.workers_for(level, acc, n * n * k // 2, threads)
    in_place = a_rows and planner.rows_in_place(workers)
    whole = planner._blocked(level, None, None, kind, kind, to, acc, n, n, k, 1,
                             to.name != acc.name, 1, None, None, a_rows=in_place)  # fmt: skip
    why = (*whole.why, "b is a's transpose: half is computed, half mirrored")
    triangle = replace(whole, spec=replace(whole.spec, triangle=True), team=(1, workers, 1),
                       why=why)  # fmt: skip
    square, bits = square_of(unit_of(level)[0].bytes, to), BITS[to.size]
    spec = KernelSpec("mirror", square, bits, bits, bits)
    blocks = Blocks(square.rows, 1, square.columns, square.columns)
    return triangle, Plan(level, spec, blocks, (1, workers, 1), why)


def planned(a, out, accumulate, allowed: int) -> Plan:
    """The plan of the triangle of a whole product."""
    kind, to = element_type(a.dtype), element_type(out.dtype)
    acc = accumulator(kind, to, accumulate)
    n, k = a.shape
    return plans(default_level(), kind, to, acc, n, k, allowed, a.strides[-1] == a.itemsize)[0]


def product(a, b, out, multiply, accumulate, allowed: int, flush: bool) -> None:
    """out = a @ b, by multiply(a, b, out) where a part is no triangle; allowed: workers at most;
    flush: as of execution.execute."""
    if out.strides[-1] != out.itemsize:
        out = out.T
    n, k = a.shape
    kind, to = element_type(a.dtype), element_type(out.dtype)
    acc = accumulator(kind, to, accumulate)
    level, a_rows = default_level(), a.strides[-1] == a.itemsize
    side = n
    while side * side * k // 2 > slices.LONG * allowed and side > slices.COLUMNS:
        side = -(-side // 2)
    for top in range(0, n, side):
        end = min(n, top + side)
        if top:
            multiply(a[top:end], b[:, :top], out[top:end, :top])
        triangle, _ = plans(level, kind, to, acc, end - top, k, allowed, a_rows)
        execute(triangle, a[top:end], b[:, top:end], out[top:end, top:end], 1, (),
                to.name != acc.name, flush=flush)  # fmt: skip
    _, mirror = plans(level, kind, to, acc, n, k, allowed, a_rows)
    execute(mirror, out, out, out, 1, (), False)
