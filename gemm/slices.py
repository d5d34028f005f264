"""Long products in pieces, so that Ctrl-C is answered and progress can be shown.

Machine code does not return to the interpreter before it is done. A product that takes long is
therefore computed as several smaller ones over parts of the output: batches first, then rows,
then columns where the rows alone are long. No chain over k is cut, so the bits are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

LONG = 1 << 32  # multiply-adds a thread does between two looks at the interpreter
UNIT = 64  # sides of a part are multiples of this, so that an epilogue's chains go on as they were
ROWS, COLUMNS = 1024, 2048  # sides below which packing again would show


def pieces(shape: tuple[int, ...], k: int, threads: int = 1) -> Iterator[tuple[Any, ...]]:
    """Indices of the parts of an output (*batch, M, N), each at most about `LONG` a thread.

    An index has one slice for each axis of the output.
    """
    *batch, m, n = shape
    bound = LONG * threads
    return _pieces(tuple(batch), m, n, max(1, k), bound, ())


def of(a, b, out, threads: int) -> Iterator[tuple[Any, Any, Any]]:
    """The parts of a product out = a @ b: as it is, or in pieces when it is long."""
    if out.size * a.shape[-1] <= LONG * threads:
        yield a, b, out
        return
    for index in pieces(out.shape, a.shape[-1], threads):
        yield operands(index, a, b, out)


def _pieces(batch, m: int, n: int, k: int, bound: int, before) -> Iterator[tuple[Any, ...]]:
    work = m * n * k
    for extent in batch:
        work *= extent
    if work <= bound:
        yield (*before, *[slice(None)] * (len(batch) + 2))
    elif batch:
        extent, *rest = batch
        for part in parts(extent, max(1, bound * extent // work)):
            if part.stop - part.start > 1:
                yield (*before, part, *[slice(None)] * (len(rest) + 2))
            else:
                yield from _pieces(tuple(rest), m, n, k, bound, (*before, part))
    else:
        rows = max(ROWS, bound // (n * k))
        columns = max(COLUMNS, bound // (min(rows, m) * k))
        for row_part in parts(m, rows, UNIT):
            for column_part in parts(n, columns, UNIT):
                yield (*before, row_part, column_part)


def parts(extent: int, most: int, unit: int = 1) -> Iterator[slice]:
    """Slices of at most `most`, multiples of `unit`, that divide `extent` evenly."""
    count = -(-extent // most)
    units = -(-extent // unit)
    for i in range(count):
        first, last = (units * j // count * unit for j in (i, i + 1))
        if first < last:
            yield slice(first, min(last, extent))


def operands(index: tuple[Any, ...], a, b, out):
    """The views of a, b and out that the part `index` of out needs."""
    *batch, rows, columns = index
    return (a[(*batch, rows)], b[(*batch, slice(None), columns)], out[index])
