"""Runs a plan: scratch, the table of arguments, the team.

Scratch blocks are kept for reuse, at most `KEPT` of them, so memory is bounded by the largest
plans run at the same time: a few times workers * (MC * KC + KC * NC) elements.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
import sys
import threading
from typing import Any

import numpy as np

from gemm.microkernels import dtypes

from . import plan as planning
from .plan import Plan
from .targets import levels

_PAGE = 4096
_HUGE = 1 << 21
KEPT = 4
_spare: list[tuple[int, int, np.ndarray]] = []
_spare_lock = threading.Lock()

if hasattr(os, "register_at_fork"):
    # Taken over a fork, so that no other thread holds it, for ever, in the child.
    os.register_at_fork(
        before=_spare_lock.acquire,
        after_in_parent=_spare_lock.release,
        after_in_child=_spare_lock.release,
    )


def take_space(nbytes: int) -> tuple[int, int, np.ndarray]:
    """Scratch of at least nbytes as (size, huge-page-aligned address, owner); see `give_space`."""
    with _spare_lock:
        for i, block in enumerate(_spare):
            if block[0] >= nbytes:
                return _spare.pop(i)
    return new_space(nbytes)


def new_space(nbytes: int) -> tuple[int, int, np.ndarray]:
    """Memory of at least nbytes that begins on a huge page: (size, address, owner)."""
    # NumPy asks for huge pages from 4 MiB on: they spare the many misses of address translation.
    nbytes = max(2 * _HUGE, planning.round_up(nbytes, _HUGE))
    raw = np.empty(nbytes + _HUGE, np.uint8)
    return nbytes, planning.round_up(raw.ctypes.data, _HUGE), raw


def give_space(block: tuple[int, int, np.ndarray]) -> None:
    """Keeps a block for the next taker."""
    with _spare_lock:
        _spare.append(block)
        if len(_spare) > KEPT:
            _spare.remove(min(_spare, key=lambda kept: kept[0]))


_LINE = 64
_LARGE = 1 << 18  # bytes from which an aligned array is worth its making


def new_array(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An array that holds nothing yet; a large one starts with a line of the cache, so that a
    vector stored to it touches one line and not two."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE:
        return np.empty(shape, dtype)
    raw = np.empty(nbytes + _LINE, np.uint8)
    return np.ndarray(shape, dtype, raw, -address(raw) % _LINE)


_int64_at = ctypes.c_int64.from_address
_DATA = 16  # where a CPython ndarray keeps its data pointer


def _slow_address(array: np.ndarray) -> int:
    return array.ctypes.data


def _fast_address(array: np.ndarray) -> int:
    return _int64_at(id(array) + _DATA).value


def _layout_known() -> bool:
    from gemm.backends.cpu.door import layout_holds, supported

    return supported() and layout_holds()


_address = None


def address(array: np.ndarray) -> int:
    """The address of an array's first element."""
    return address_function()(array)


def address_function():
    """The quickest `address` that is right in this process."""
    global _address
    if _address is None:
        _address = _fast_address if _layout_known() else _slow_address
    return _address


_CONTENT = bytes.__basicsize__ - 1  # the last declared byte of a bytes object is its first own


def _content_of(held: bytes) -> int:
    return id(held) + _CONTENT


def _pointed_to(held: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(held), ctypes.c_void_p).value or 0


# Where a bytes object keeps its content: only while the object is held.
content = _content_of if sys.implementation.name == "cpython" else _pointed_to


def batches(shape, *strides) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """(number of matrices, rows (extent, steps...) innermost first), merged where they can be."""
    if not shape:
        return 1, ()
    rows: list[tuple[int, ...]] = []
    for axis in reversed(range(len(shape))):
        extent = shape[axis]
        steps = tuple(s[axis] for s in strides)
        if extent == 1:
            continue
        if rows and all(s == rows[-1][0] * r for s, r in zip(steps, rows[-1][1:], strict=True)):
            rows[-1] = (rows[-1][0] * extent, *rows[-1][1:])
        else:
            rows.append((extent, *steps))
    total = 1
    for extent in shape:
        total *= extent
    return total, tuple(rows)


_addresses, _fixed, _one = (struct.Struct(f"={count}q") for count in (4, 22, 1))
_ONE_MATRIX = np.array([[1, 0, 0, 0]], np.int64)


class Prepared:
    """What stays the same each time a plan is run."""

    def __init__(self, plan: Plan, scratch_home: bool, k: int):
        blocks, tile = plan.blocks, plan.spec.tile
        self.plan_level = plan.level
        size = tile.dtype.size
        a_room, b_room = planning.rooms(blocks, tile, plan.spec.unpacked_a, plan.spec.group)
        self.home_rs = blocks.band * size if scratch_home else 0
        # One K block needs no home; several rest in `out` or in the scratch.
        home = blocks.mc * self.home_rs if k > blocks.kc else 0
        worker_room = planning.round_up(a_room + b_room + home + _PAGE, _PAGE)
        self.space = worker_room * plan.workers
        self.fixed = (
            blocks.mc, blocks.kc, blocks.nc, blocks.band, a_room, b_room, worker_room,
        )  # fmt: skip
        self.team: Any = None
        self.entry: Any = None
        if plan.level != "reference":
            from gemm.backends.cpu import kernels
            from gemm.backends.cpu.team import team

            level = levels()[plan.level]
            self.entry = kernels.entry(level, plan.spec)
            if plan.workers > 1:
                self.team = team(level)

    @functools.cached_property
    def flushed(self):
        """Calls the entry with subnormal operands and results taken as zero."""
        from gemm.backends.cpu.flush import flushed

        return flushed(levels()[self.plan_level])


class Arranged:
    """A plan with the shapes and steps of a call: only addresses are missing."""

    def __init__(self, plan: Plan, a, b, out, batch: int, rows, scratch_home: bool):
        m, k = a.shape[-2:]
        n = b.shape[-1]
        ready = plan.__dict__.get("prepared")
        if ready is None:
            ready = plan.__dict__["prepared"] = Prepared(plan, scratch_home, k)
        self.plan, self.ready = plan, ready
        self.dims = np.array(rows, np.int64) if rows else _ONE_MATRIX
        ars, acs = a.strides[-2:]
        brs, bcs = b.strides[-2:]
        rs, cs = out.strides[-2:]
        if n == 1:
            # The step between columns of a single one says nothing: call it adjacent.
            bcs, cs = b.itemsize, out.itemsize
        self.integers = (m, n, k, ars, acs, brs, bcs, rs, cs, ready.home_rs, *ready.fixed, batch)
        # The table of arguments between the addresses of arrays and that of the epilogue's table.
        self.middle = _fixed.pack(*self.integers, address(self.dims), *plan.team)

    def run(self, a: int, b: int, out: int, extra: int = 0, flush: bool = False) -> None:
        """The kernel on these addresses; extra: of an epilogue's table; flush: subnormal operands
        and results are zero."""
        ready = self.ready
        space = take_space(ready.space)
        try:
            table = _addresses.pack(a, b, out, space[1]) + self.middle + _one.pack(extra)
            arguments = content(table)
            if ready.team is not None:
                ready.team.run(ready.entry.address, arguments, self.plan.workers, flush)
            elif flush:
                ready.flushed(ready.entry.address, arguments, 0, 0, 0)
            else:
                ready.entry(arguments, 0)
        finally:
            give_space(space)


def execute(plan: Plan, a, b, out, batch: int, rows, scratch_home: bool, extra=None,
            flush: bool = False) -> None:  # fmt: skip
    """out = a @ b as `plan` says. rows: as from `batches`; extra: table of an epilogue's
    operands, int64 (on the reference target an arithmetic.Table); flush: subnormal operands and
    results are zero."""
    if flush and plan.level == "reference":
        raise ValueError("subnormals='flush': the reference target keeps subnormal numbers")
    arranged = Arranged(plan, a, b, out, batch, rows, scratch_home)
    if plan.level == "reference":
        _execute_reference(
            plan, a, b, out, arranged.ready.space, arranged.integers, arranged.dims, extra
        )
        return
    at = 0 if extra is None else address(extra)
    arranged.run(address(a), address(b), address(out), at, flush)


def _execute_reference(plan, a, b, out, nbytes: int, integers, dims, extra) -> None:
    from gemm.backends.reference.run import pointer, run

    spec = plan.spec
    function, _ = spec.build()
    space = np.full(nbytes, 0xFF, np.uint8)  # NaN: nothing may read what was not packed
    pointers = [pointer(x, t) for x, t in ((a, spec.a), (b, spec.b), (out, spec.out))]
    pointers.append(pointer(space, dtypes.uint8))
    tables = [pointer(dims, dtypes.uint8)]
    table = pointer(np.zeros(0, np.uint8), dtypes.uint8) if extra is None else extra
    run(function, (*pointers, *integers, *tables, *plan.team, table), plan.workers)
