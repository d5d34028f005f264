"""Opens the fast doors for a dtype once their kernels are at hand.

Products of plain arrays then go from Python straight into machine code. A dtype whose kernels
are in the cache is served from its first call on; otherwise the door's extra kernel is compiled
only after a number of calls, so that a cold first call compiles one kernel and not two.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import Any

import numpy as np

from gemm.microkernels.dtypes import DType

from . import engine
from . import plan as planning
from .execution import new_space
from .kernels import KernelSpec
from .planner import (
    SMALL_WORK,
    direct_limit,
    inner_spec,
    panel_units,
    rows_in_place,
    small_tile,
    unpacked_tile_of,
)
from .threads import agreed, default_threads, watch

PATIENCE = 16  # calls before a cold cache is worth another compilation
ALONE_WORK = 512**3  # beyond this the Python path costs nothing that shows
MOST_WORKERS = 4  # more are only worth it for work that the Python path does not delay
RELEASE_WORK = 1 << 18  # multiply-adds from which other Python threads get the GIL

_door: Any = None
_tried = False
_calls: dict[tuple[str, str], int] = {}
_served: set[tuple[str, str]] = set()


def specs(level: str, dtype: DType) -> tuple[KernelSpec, ...]:
    """The kernels behind the door for one dtype: small, blocked, and where there is one, blocked
    with rows of A in place."""
    acc = engine.accumulator(dtype, dtype)
    small = KernelSpec("small", small_tile(level, acc), dtype, dtype, dtype)
    tile = engine.tile_for(level, acc, None)
    units = panel_units(level, dtype, dtype, dtype, acc)
    blocked = KernelSpec("blocked", tile, dtype, dtype, dtype, units=units)
    short = unpacked_tile_of(level, tile, dtype, acc, units)
    if short is None:
        return small, blocked
    return small, blocked, replace(blocked, tile=short).unpacked()


def inner_specs(dtype: DType) -> tuple[KernelSpec, KernelSpec]:
    """The kernels behind the door of inner products: as they are, and with x conjugated."""
    same = (dtype, dtype, dtype, engine.accumulator(dtype, dtype))
    return inner_spec(*same), inner_spec(*same, conjugate=dtype.kind == "c")


def is_open(name: str, kind: str = "door") -> bool:
    """Whether products of the dtype of this name take the fast way by now; kind: as of `seen`."""
    return (kind, name) in _served


def seen(dtype: DType, np_dtype: np.dtype, kind: str = "door") -> bool:
    """Told of each product that took the Python path; opens the door when it is time.

    kind: 'door', or 'inner door' for an inner product. Returns whether there is nothing more to
    tell about this dtype.
    """
    key = kind, dtype.name
    if key in _served or np_dtype.num >= 24:
        return True
    if os.environ.get("GEMM_ISA"):
        return False  # forced for now: the door would take the best level's kernels
    _calls[key] = _calls.get(key, 0) + 1
    if _calls[key] == 1 or _calls[key] == PATIENCE:
        with contextlib.suppress(RuntimeError):  # no compiler: Python answers as before
            _serve(kind, dtype, np_dtype, compile_missing=_calls[key] == PATIENCE)
    return key in _served or _calls[key] >= PATIENCE


def _serve(kind: str, dtype: DType, np_dtype: np.dtype, compile_missing: bool) -> None:
    global _door, _tried
    from gemm.backends.cpu import door as machine_door
    from gemm.backends.cpu import kernels

    level_name = engine.default_level()
    if level_name == "reference":
        return
    level = engine.levels()[level_name]
    behind = specs(level_name, dtype) if kind == "door" else inner_specs(dtype)
    texts = ["door", kind, *map(repr, behind)]
    if not compile_missing and not all(kernels.stored(level, text) is not None for text in texts):
        return
    if _door is None:
        if _tried:
            return
        _tried = True
        _door = machine_door.open_door(level)
        if _door is None:
            return
        _door.table[_source().RELEASE] = RELEASE_WORK
    if kind == "door":
        _door.set_row(np_dtype, "descr", **_row(level, *behind))
        set_threads()
        engine.door = _door.call
    else:
        if _door.inner is None:
            _door.open_inner()
        plain, conjugate = (kernels.entry(level, spec).address for spec in behind)
        _door.set_row(np_dtype, "inner_descr", inner=plain, conjugate_inner=conjugate)
        engine.inner_door = _door.inner
    _served.add((kind, dtype.name))


def _row(level, small: KernelSpec, blocked: KernelSpec,
         unpacked: KernelSpec | None = None) -> dict[str, int]:  # fmt: skip
    from gemm.backends.cpu import kernels
    from gemm.backends.cpu.machine import machine

    tile, caches = blocked.tile, machine().caches
    blocks = _door_blocks(planning.cache_blocks(tile, caches), tile)
    a_room, b_room = planning.rooms(blocks, tile)
    short = {}
    if unpacked is not None:
        tile = unpacked.tile
        deep = planning.unpacked_blocks(planning.cache_blocks(tile, caches), tile, caches)
        deep = _door_blocks(deep, tile)
        rooms = planning.rooms(deep, tile, True)
        a_room, b_room = max(a_room, rooms[0]), max(b_room, rooms[1])
        short = {
            "unpacked": kernels.entry(level, unpacked).address,
            "unpacked_mc": deep.mc,
            "unpacked_kc": deep.kc,
            "unpacked_nc": deep.nc,
            "unpacked_mr": tile.rows,
        }
    _need((a_room + b_room) * MOST_WORKERS + 4096)
    grain = engine.grain(level.name, tile.dtype)
    return {
        "small": kernels.entry(level, small).address,
        "blocked": kernels.entry(level, blocked).address,
        "small_limit": direct_limit(small.a, small.b, tile.dtype),
        "skinny": SMALL_WORK,
        "grain": grain,
        "mc": blocks.mc,
        "kc": blocks.kc,
        "nc": blocks.nc,
        "mr": blocked.tile.rows,
        "nr": blocked.tile.columns,
        "a_room": a_room,
        "b_room": b_room,
        "in_place": int(blocked.out.name == tile.dtype.name),
        **short,
    }


def _door_blocks(blocks: planning.Blocks, tile) -> planning.Blocks:
    """Blocks of what the door serves: at most about 1024 rows at a time."""
    return planning.replace(blocks, mc=min(blocks.mc, planning.round_up(1024, tile.rows)))


def set_threads() -> None:
    """Tells the door how many threads it may use; one as soon as threads differ in their wishes.

    The door cannot know which thread calls it. Once a thread has set a number of its own, work
    that would pay for more than one worker is left to the Python path.
    """
    if _door is None:
        return
    from gemm.backends.cpu import team as machine_team

    table, source = _door.table, _source()
    threads = min(default_threads(), MOST_WORKERS)
    if not agreed() or default_threads() > MOST_WORKERS:
        threads = 1
    level = engine.levels()[engine.default_level()]
    if threads > 1:
        threads = machine_team.workers(level, threads)
    if threads > 1:
        mine = machine_team.team(level)
        table[source.TEAM], table[source.FAN_OUT] = mine.address, mine.fan_out_address
    table[source.THREADS] = threads
    table[source.ROWS_IN_PLACE] = MOST_WORKERS if rows_in_place(MOST_WORKERS) else 1
    for base in range(source.HEADER, len(table), source.ROW):
        alone = threads == default_threads()
        table[base + source.LIMIT] = ALONE_WORK if alone else 2 * table[base + source.GRAIN] - 1


def _in_child() -> None:
    """After a fork the door works alone; what pays for a team takes the Python path, which makes
    one. A product that another thread was in when the process forked is nobody's any more."""
    if _door is not None:
        table, source = _door.table, _source()
        table[source.THREADS], table[source.BUSY] = 1, 0
        for base in range(source.HEADER, len(table), source.ROW):
            table[base + source.LIMIT] = 2 * table[base + source.GRAIN] - 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def _source():
    from gemm.backends.cpu import door_source

    return door_source


_space = np.empty(0, np.uint8)


def _need(nbytes: int) -> None:
    global _space
    if _space.size < nbytes:
        _, start, raw = new_space(nbytes)
        _space = raw[start - raw.ctypes.data :]
        _door.set_space(_space)


watch(set_threads)
