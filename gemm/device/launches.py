"""Launches: a kernel with its grid and its sizes, told only addresses and the stream."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..team import PackPlan, TeamPlan, build, walk
from ..team import choice as plans
from .signature import TABLE_ROWS, Matrix, Signature, round_up

# run(address of a, of b, of c, stream, address of scale a, of scale b, table of a program)
Launch = Callable[..., None]


RECENT_BOXES = 256


class Boxes(dict):
    """Tensor maps of one operand by its address, made when they are first asked for."""

    def __init__(self, device, described):
        super().__init__()
        self.device, self.described = device, described

    def __missing__(self, address: int) -> bytes:
        if len(self) >= RECENT_BOXES:
            self.clear()
        self[address] = found = self.device.box_map(address, *self.described)
        return found


class NoBoxes(dict):
    """For a result that leaves by pointer."""

    def __missing__(self, address: int) -> bytes:
        return bytes(128)


def spread(blocks: int, units: int, peers: int = 1) -> int:
    """Teams for so many blocks: as few as finish in the same number of waves."""
    waves = -(-blocks // units)
    teams = -(-blocks // waves)
    return -(-teams // peers) * peers


def axes(s: Signature):
    """The batch as two axes (extent, a, b, c), inner first."""
    rows = [*s.batch, (1, 0, 0, 0), (1, 0, 0, 0)]
    return rows[0], rows[1]


def box_of(backend, name: str, matrix: Matrix, panel, share, inner, outer, operand: int,
         batched: bool, parts: int = 1, part_extent: int = 0):  # fmt: skip
    """(arguments of `box_map` for an operand, without its address; bytes of a share that arrive).

    share: rows and k of the panel that one team fetches. Rows along k beyond the operand are not
    asked for: zeros, too, cost the copy engine time.
    """
    size = matrix.dtype.size
    rows, depth = share
    if panel.along == "k":
        rows = min(rows, round_up(matrix.rows, 8))
    if panel.along == "k":
        k = part_extent * parts if parts > 1 else matrix.depth
        extents, lines = [k, matrix.rows], matrix.row_step if matrix.rows > 1 else 0
        box = [depth, rows]
    else:
        extents, lines = [matrix.rows, matrix.depth], matrix.k_step if matrix.depth > 1 else 0
        box = [128 // size if panel.swizzled else rows, depth]
    steps = [lines or round_up(extents[0] * size, 16)]
    if batched:
        for extent, *axis in (inner, outer):
            step = axis[operand]
            extents.append(extent if step else 1)
            steps.append(step or round_up(extents[0] * size, 16))
            box.append(1)
    described = (backend.box_kind(name), tuple(extents), tuple(steps), tuple(box), panel.swizzled)
    return described, rows * depth * size


def load_kernel(backend, device, plan: TeamPlan):
    reason = plan.illegal()
    if reason:
        raise ValueError(f"{plan.label}: {reason}")
    return backend.kernel(device, plan, build)


def launch_ring(backend, device, plan: TeamPlan, s: Signature, name: str, parts_k: int = 0,
          steps: int = 0) -> Launch:  # fmt: skip
    """A launch of `make_ring_kernel`; steps: of a slice of K, where slices are summed."""
    kernel = load_kernel(backend, device, plan)
    m, n, k = s.a.rows, s.b.rows, s.a.depth
    bm, bn, bk = plan.block
    inner, outer = axes(s)
    batched = plan.batched
    a_box, a_bytes = box_of(backend, name, s.a, plan.tile.a, (bm, bk), inner, outer, 0, batched,
                          plan.parts, parts_k)  # fmt: skip
    b_box, b_bytes = box_of(backend, name, s.b, plan.tile.b, plan.share, inner, outer, 1, batched,
                          plan.parts, parts_k)  # fmt: skip
    expected = plan.parts * (a_bytes + plan.peers * b_bytes)
    c_box = None
    if plan.store == "box" and plan.program is None:
        size = s.out.size
        extents, lines = [n, m], [s.c_row if m > 1 else round_up(n * size, 16)]
        box = [min(128 // size, plan.tile.columns), plan.tile.box_rows]
        if batched:
            for extent, *axis in (inner, outer):
                extents.append(extent)
                lines.append(axis[2] or round_up(n * size, 16))
                box.append(1)
        c_box = (backend.box_kind(s.out.name), tuple(extents), tuple(lines), tuple(box), True)
    down, across, rows, columns = walk(plan, m, n)
    spans = rows * columns * s.count
    grid = spread(spans * plan.peers, device.units * plan.teams_per_unit, plan.peers)
    flags = [int(bool(axis[i])) for i in (1, 2) for axis in (inner, outer)]
    tail = (m, n, steps or -(-k // bk), expected, parts_k, rows, columns, spans, inner[0], *flags,
            s.c_row, inner[3], outer[3], down, across)  # fmt: skip
    launch = kernel.bind(grid, *tail, together=True) if plan.joined else kernel.bind(grid, *tail)
    a_map, b_map = Boxes(device, a_box), Boxes(device, b_box)
    c_map = Boxes(device, c_box) if c_box else NoBoxes()

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        launch(stream, a_map[a], b_map[b], c_map[c], c, scale_a, scale_b, extra)

    return run


def table_of(batch) -> bytes:
    rows = [*batch, *[(1, 0, 0, 0)] * (TABLE_ROWS - len(batch))]
    return struct.pack("16q", *itertools.chain(*rows))


def launch_team(backend, device, plan: TeamPlan, s: Signature) -> Launch:
    """A launch of `make_team_kernel`."""
    kernel = load_kernel(backend, device, plan)
    m, n, k = s.a.rows, s.b.rows, s.a.depth
    down, across, rows, columns = walk(plan, m, n)
    spans = rows * columns * s.count
    grid = min(spans, device.units * 16)
    tail = (table_of(s.batch), m, n, k, s.a.row_step, s.a.k_step, s.b.k_step, s.b.row_step, s.c_row,
            rows, columns, spans, down, across)  # fmt: skip
    launch = kernel.bind(grid, *tail)

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        launch(stream, a, b, c, extra)

    return run


def launch_pack(backend, device, plan: PackPlan, m: Matrix, batch, dst_row: int, part_step: int,
          rule: bytes = b""):  # fmt: skip
    """run(src, dst, stream) of `make_pack_kernel`; batch: (extent, src step, dst step); rule: of a
    plan that has one."""
    kernel = backend.kernel(device, plan, build)
    across = -(-m.depth // plan.stage.depth)
    spans = -(-m.rows // plan.stage.rows) * across * math.prod(row[0] for row in batch)
    dims = table_of([(*row, 0) for row in batch]) + rule
    tail = (dims, m.rows, m.depth, m.row_step, m.k_step, dst_row, part_step, across, spans)
    launch = kernel.bind(min(spans, device.units * 8), *tail)

    def run(src, dst, stream):
        launch(stream, dst, src)

    return run


def pack_operand(backend, device, s: Signature, which: int, along: str = "k", parts: int = 1):
    """(signature with operand `which` packed, bytes, run, k of a part).

    along: the index made adjacent; lines start at multiples of 16 bytes.
    """
    old = s.b if which else s.a
    size = old.dtype.size
    # Packing is symmetric in the two indices: `turned` calls the adjacent one its depth.
    turned = old if along == "k" else replace(
        old, rows=old.depth, depth=old.rows, row_step=old.k_step, k_step=old.row_step
    )  # fmt: skip
    part = round_up(turned.depth, 128 // size)
    line = part * size * parts
    plan = plans.pack_plan(old.dtype, turned.near(), None, parts)
    steps, total, source = [], line * turned.rows, []
    for extent, *axis in s.batch:
        step = axis[which]
        if step == 0 or extent == 1:
            steps.append(0)
            continue
        source.append((extent, step, total))
        steps.append(total)
        total *= extent
    run = launch_pack(backend, device, plan, turned, source, line, part * size)
    row_step, k_step = (line, size) if along == "k" else (size, line)
    new = Matrix(old.rows, old.depth, row_step, k_step, old.dtype, True)
    batch = []
    for (extent, *axis), step in zip(s.batch, steps, strict=True):
        axis[which] = step
        batch.append((extent, *axis))
    changed: dict[str, Any] = {"batch": tuple(batch), "b" if which else "a": new}
    s = replace(s, **changed)
    return s, total, run, part


def after_packs(device, packs, launch: Launch) -> Launch:
    """`launch` on operands packed before it; packs: (which, bytes, run)."""
    if not packs:
        return launch

    def run(a, b, c, stream, scale_a=0, scale_b=0, extra=0):
        room = [a, b]
        taken = []
        try:
            for which, nbytes, pack in packs:
                space = device.allocate(nbytes, stream)
                taken.append(space)
                pack(room[which], space, stream)
                room[which] = space
            launch(room[0], room[1], c, stream, scale_a, scale_b, extra)
        finally:
            for space in taken:
                device.free(space, stream)

    return run
