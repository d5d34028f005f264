"""A problem's plan: level, kernel, blocks, team. The same problem always gets the same plan."""

from __future__ import annotations

import functools

from gemm.microkernels.dtypes import DType

from . import plan as planning
from .kernels import KernelSpec
from .plan import Plan
from .targets import levels, parse_kernel, tile_for, unit_of

SHARE = 10e-6  # seconds of work that pay for waking a worker
CLOCK = 3e9


def grain(level: str, acc: DType) -> int:
    """Multiply-adds of the smallest share worth a worker of its own."""
    unit, _ = unit_of(level)
    return int(SHARE * CLOCK * unit.ports * unit.lanes(acc))


def workers_for(level: str, acc: DType, work: int, threads: int) -> int:
    """Workers for `work` multiply-adds: as many as it pays for, and as the system gives."""
    wanted = max(1, min(threads, work // grain(level, acc)))
    if wanted == 1 or level == "reference":
        return wanted
    from gemm.backends.cpu.team import workers

    return workers(levels()[level], wanted)


@functools.lru_cache(maxsize=4096)
def make_plan(a: DType, b: DType, out: DType, acc: DType, m: int, n: int, k: int, batch: int,
              scratch_home: bool, threads: int, kernel: str | None, isa: str | None,
              program=None) -> Plan:  # fmt: skip
    """The plan of a problem; the same arguments give the same plan."""
    from gemm.backends.cpu.machine import machine

    level, shape, named = parse_kernel(kernel or isa)
    tile = tile_for(level, acc, shape, program is not None and program.pairs)
    spec = KernelSpec("blocked", tile, a, b, out, program=program)
    splits = (True, True) if program is None else program.splits
    caches = machine().caches
    blocks = planning.cache_blocks(tile, caches)
    threads = workers_for(level, acc, m * n * k * batch, threads)
    why = [
        f"tile {tile.rows}x{tile.columns}: {tile.rows * tile.vectors * acc.components} accumulators"
        f" of {unit_of(level)[0].registers} registers, the fewest loads a multiply-add that fit",
        f"L1 {caches[0]}, L2 {caches[1]}, L3 {caches[2]}"
        f" -> MC {blocks.mc}, KC {blocks.kc}, NC {blocks.nc}",
    ]
    if named is not None:
        blocks = planning.Blocks(*named, band=max(named[0], 1))
        reason = planning.illegal(blocks, (1, 1, 1), spec)
        if reason:
            raise ValueError(f"kernel={kernel!r}: {reason}")
        why[-1] = f"MC, KC, NC = {named} as named"
        if not scratch_home:
            blocks = planning.replace(blocks, band=planning.round_up(max(m, 1), tile.rows))
        team = planning.partition(batch, m, n, tile, threads, splits)
    else:
        team = planning.partition(batch, m, n, tile, threads, splits)
        blocks = planning.fit(blocks, tile, -(-m // team[1]), -(-n // team[2]), k, scratch_home)
    reason = planning.illegal(blocks, team, spec)
    if reason:
        raise ValueError(reason)
    return Plan(level, spec, blocks, team, tuple(why))
