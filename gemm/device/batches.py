"""Any batch, any K and any steps of the result, by launches that take less."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from ..team import choice as plans
from .choose import prepare
from .launches import Launch, launch_pack
from .signature import LARGEST_GRID, TABLE_ROWS, Matrix, Signature, unit_of
from .slices import split


def any_result(backend, device, s: Signature, c_column: int, split_k) -> Launch:
    """As `any_batch`, for any column step of the result."""
    m, n = s.a.rows, s.b.rows
    size = s.out.size
    if c_column == size or n == 1:
        return any_batch(backend, device, s, split_k)
    if s.c_row == size or m == 1:
        # Columns of the result are adjacent: compute its transpose; a chain does not see it.
        batch = tuple((e, y, x, z) for e, x, y, z in s.batch)
        run = any_batch(
            backend, device, replace(s, a=s.b, b=s.a, c_row=c_column, batch=batch), split_k
        )
        return lambda a, b, c, stream, x=0, y=0: run(b, a, c, stream, y, x)  # type: ignore[misc]
    # Neither is: a contiguous result first, then element by element.
    steps, total, copies = [], m * n * size, []
    for extent, x, y, z in s.batch:
        steps.append((extent, x, y, total))
        copies.append((extent, total, z))
        total *= extent
    run = any_batch(
        backend, device, replace(s, c_row=n * size, c_aligned=True, batch=tuple(steps)), split_k
    )
    plan = plans.pack_plan(s.out, "k")
    row = Matrix(n, 1, size, size, s.out, True)
    copies = [(m, n * size, s.c_row), *copies]
    if len(copies) > TABLE_ROWS:
        raise ValueError(f"out has {len(copies)} irregular axes; gemm stores into {TABLE_ROWS}")
    copy = launch_pack(backend, device, plan, row, copies, c_column, 0)

    def run_and_copy(a, b, c, stream, scale_a=0, scale_b=0):
        space = device.allocate(total, stream)
        try:
            run(a, b, space, stream, scale_a, scale_b)
            copy(space, c, stream)
        finally:
            device.free(space, stream)

    return run_and_copy


def any_batch(backend, device, s: Signature, split_k) -> Launch:
    """As `prepare`, for any batch and K >= 0, with K in slices where named."""
    if s.a.depth == 0 and s.program is None:
        return _zeros(device, s)
    if split_k is not None and split_k != 1:
        return split(backend, device, s, int(split_k))
    unit, _ = unit_of(device.target, s)
    most = 2 if unit in ("wide", "matrix") else TABLE_ROWS
    outer = list(s.batch[most:])
    inner = list(s.batch[:most])
    # A grid counts blocks of at least 32 x 32 in 31 bits.
    blocks = -(-s.a.rows // 32) * -(-s.b.rows // 32)
    if blocks > LARGEST_GRID:
        raise ValueError(f"a result of {s.a.rows} x {s.b.rows} is beyond one launch")
    while inner and blocks * math.prod(r[0] for r in inner) > LARGEST_GRID:
        extent, *steps = inner.pop()
        most_of = max(1, LARGEST_GRID // (blocks * math.prod(r[0] for r in inner)))
        whole, rest = divmod(extent, most_of)
        part = prepare_parts(backend, device, s, inner, (most_of, *steps))
        pieces = [(i * most_of, part) for i in range(whole)]
        if rest:
            pieces.append(
                (whole * most_of, prepare_parts(backend, device, s, inner, (rest, *steps)))
            )
        return _each(outer, [(tuple(at * x for x in steps), run) for at, run in pieces])
    run = prepare(backend, device, _uneven(replace(s, batch=tuple(inner)), outer))
    return _each(outer, [((0, 0, 0), run)])


def prepare_parts(backend, device, s, inner, row) -> Launch:
    return prepare(backend, device, replace(s, batch=(*inner, row)))


def _uneven(s: Signature, outer) -> Signature:
    """s without its alignments where the outer steps break them."""
    a, b, c = (any(row[i] % 16 for row in outer) for i in (1, 2, 3))
    return replace(
        s,
        a=replace(s.a, aligned=s.a.aligned and not a),
        b=replace(s.b, aligned=s.b.aligned and not b),
        c_aligned=s.c_aligned and not c,
    )


def _each(outer, pieces) -> Launch:
    """Runs pieces ((a, b, c offset), run) for every index of the outer batch rows."""
    if not outer and len(pieces) == 1 and not any(pieces[0][0]):
        return pieces[0][1]

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        for index in itertools.product(*(range(row[0]) for row in outer)):
            x, y, z = (
                sum(i * row[j] for i, row in zip(index, outer, strict=True)) for j in (1, 2, 3)
            )
            for (p, q, r), piece in pieces:
                piece(a + x + p, b + y + q, c + z + r, stream, scale_a, scale_b, extra)

    return run


def _zeros(device, s: Signature) -> Launch:
    """The empty sum: +0 everywhere."""
    width, rows = s.b.rows * s.out.size, s.a.rows

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        for index in itertools.product(*(range(row[0]) for row in s.batch)):
            at = c + sum(i * row[3] for i, row in zip(index, s.batch, strict=True))
            # Rows may run backwards: clear each run of the 2-D memset upwards.
            step = s.c_row if rows > 1 else width
            low = min(0, step * (rows - 1))
            device.clear(at + low, max(abs(step), width), width, rows, stream)

    return run
