"""Slices of K by name: partial products, summed in ascending order."""

from __future__ import annotations

import struct
from dataclasses import replace

from gemm.microkernels.dtypes import DType

from ..team import choice as plans
from .choose import boxable, prepare
from .launches import Launch, launch_ring, launch_team
from .signature import Matrix, Signature, accumulator, round_up, unit_of


def _joined(backend, device, s: Signature, steps: int, slices: int, acc: DType) -> Launch | None:
    """Slices of K that one launch computes and sums (team/join.py); None where not all of its
    teams would be on the machine at once, or operands are no boxes of the group-wide unit."""
    unit, kind = unit_of(device.target, s)
    a_fits, b_fits, _ = boxable(s)
    both_k = (s.a.along(), s.b.along()) == ("k", "k")
    if unit != "wide" or not (a_fits and b_fits) or s.precision == "tf32x3":
        return None
    if kind.startswith("float8") or not (kind in ("float16", "bfloat16") or both_k):
        return None
    m, n = s.a.rows, s.b.rows
    least = 128 // s.b.dtype.size if s.b.along() == "rows" else 32
    for block in ((64, 32), (64, 64), (64, 128), (64, 256), (128, 256)):
        if block[1] >= least and -(-m // block[0]) * -(-n // block[1]) * slices <= device.units:
            break
    else:
        return None
    plan = plans.wide_plan(device.target, kind, s.a.dtype, s.b.dtype, acc, block,
                           (s.a.along(), s.b.along()), store="rows", sum_of=s.out)  # fmt: skip
    partial = m * n * acc.size
    # Slices take the place of a batch; k starts where they do.
    sliced = replace(s, out=acc, c_row=n * acc.size, batch=((slices, 0, 0, partial),))
    name = "tf32" if kind == "tf32" else s.a.dtype.name
    launch = launch_ring(backend, device, plan, sliced, name, steps=steps)

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        space, flags, value = device.meeting(slices * partial, stream)
        try:
            table = struct.pack("5q", c, s.c_row, flags, value, slices)
            launch(a, b, space, stream, 0, 0, table)
        finally:
            device.part(space, stream)

    return run


def split(backend, device, s: Signature, slices: int) -> Launch:
    """K in `slices` equal parts (the last may be shorter), summed in ascending order.

    The partial products are matrices of a batch; their sum is the chain of 1 * p for each slice.
    """
    m, n, k = s.a.rows, s.b.rows, s.a.depth
    if slices < 1:
        raise ValueError(f"split_k={slices}: expected a positive number of slices")
    if s.batch or s.scaled:
        raise ValueError("split_k is for one product without scales, not for a batch")
    acc = accumulator(s.a.dtype, s.out)
    unit = 128 // s.a.dtype.size
    length = min(round_up(-(-k // slices), unit), k)
    whole, rest = divmod(k, length)
    count = whole + bool(rest)
    partial = m * n * acc.size
    steps = [(length * x.k_step) for x in (s.a, s.b)]

    def of(depth, batch):
        part = replace(s, a=replace(s.a, depth=depth), b=replace(s.b, depth=depth), out=acc,
                       c_row=n * acc.size, c_aligned=True, batch=batch, scaled=False)  # fmt: skip
        return prepare(backend, device, part)

    joined = _joined(backend, device, s, length // unit, count, acc)
    if joined is not None:
        return joined
    main = of(length, ((whole, *steps, partial),) if whole > 1 else ())
    tail = of(rest, ()) if rest else None
    ones = Matrix(1, count, acc.size, 0, acc, True)
    flat = s.c_row == n * s.out.size or m == 1
    row_count, width = (1, m * n) if flat else (m, n)
    values = Matrix(width, count, acc.size, partial, acc, True)
    batch = () if row_count == 1 else ((row_count, 0, n * acc.size, s.c_row),)
    total = Signature(ones, values, s.out, s.c_row, s.c_aligned, batch)
    near = ("k", "rows")
    tile, lane = plans.lanes_shape(acc)
    plan = plans.team_plan(
        device.target, "lanes", "", acc, acc, s.out, acc, near, "held", tile, lane, near=near
    )
    add = launch_team(backend, device, plan, total)
    code = {"float32": "f", "float64": "d", "int32": "i", "int64": "q"}[acc.name]
    one = device.constant(struct.pack(code, 1))

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        space = device.allocate(count * partial, stream)
        try:
            main(a, b, space, stream, 0, 0)
            if tail is not None:
                tail(
                    a + whole * steps[0],
                    b + whole * steps[1],
                    space + whole * partial,
                    stream,
                    0,
                    0,
                )
            add(one, space, c, stream)
        finally:
            device.free(space, stream)

    return run
