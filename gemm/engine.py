"""Problem to plan to kernel to run: the only place that talks to a backend.

`product` is the whole interface that the NumPy calls, convolution and the suite stand on.
"""

from __future__ import annotations

import ctypes
import functools
import os
import struct
import threading

import numpy as np

from gemm.microkernels import dtypes
from gemm.microkernels.dtypes import DType
from gemm.microkernels.selection import select_tile

from . import plan as planning
from .kernels import KernelSpec
from .plan import Plan
from .threads import checked, get_num_threads

_DTYPES: dict[np.dtype, DType] = {}


def element_type(dtype: np.dtype) -> DType:
    """The kernels' name for a NumPy dtype; TypeError for one they do not compute."""
    found = _DTYPES.get(dtype)
    if found is None:
        found = dtypes.DTYPES.get(dtype.name)
        if found is None or not dtype.isnative:
            names = ", ".join(dtypes.DTYPES)
            raise TypeError(f"gemm computes {names} in native byte order, not {dtype!r}")
        _DTYPES[dtype] = found
    return found


def accumulator(a: DType, out: DType, named: np.dtype | None = None) -> DType:
    """The type in which a product of `a` into `out` is accumulated (docs/numerics.md)."""
    if named is not None:
        acc = element_type(np.dtype(named))
        if acc.name != acc.compute or (acc.kind == "c") != (a.kind == "c"):
            raise TypeError(f"accumulate={acc} is no accumulator for {a}: use a 32 or 64 bit type")
        if (acc.kind == "f") != (a.kind == "f") and acc.kind != "c":
            raise TypeError(f"accumulate={acc} is no accumulator for {a}")
        return acc
    if a.kind == "c":
        return dtypes.complex128 if out.name == "complex128" else a
    if a.kind == "f":
        return dtypes.float64 if "float64" in (a.name, out.name) else dtypes.float32
    return dtypes.int64 if max(a.bits, out.bits) == 64 else dtypes.int32


# -- levels and kernels --------------------------------------------------------------------------


@functools.cache
def levels() -> dict:
    """Instruction-set levels this machine runs, best first, by name."""
    from gemm.backends.cpu.machine import machine

    return {level.name: level for level in machine().levels}


def default_level() -> str:
    """GEMM_ISA, or the best the machine has."""
    named = os.environ.get("GEMM_ISA")
    if named:
        return check_level(named, "GEMM_ISA")
    if not levels():
        raise RuntimeError(
            "no instruction-set level of this machine is known; try kernel='reference'"
        )
    return next(iter(levels()))


def check_level(name: str, source: str) -> str:
    if name != "reference" and name not in levels():
        raise ValueError(
            f"{source}={name!r}: this machine runs {', '.join(levels())} (and 'reference')"
        )
    return name


def parse_kernel(
    kernel: str | None,
) -> tuple[str, tuple[int, int] | None, tuple[int, int, int] | None]:
    """'avx2', 'avx2:6x16' or 'reference:6x16:8,4,16' -> level, MR x NR, (MC, KC, NC)."""
    if kernel is None:
        return default_level(), None, None
    name, _, rest = kernel.partition(":")
    check_level(name, "kernel")
    tile = blocks = None
    try:
        for part in filter(None, rest.split(":")):
            if "x" in part:
                rows, columns = map(int, part.split("x"))
                tile = rows, columns
            else:
                mc, kc, nc = map(int, part.split(","))
                blocks = mc, kc, nc
    except ValueError:
        raise ValueError(f"kernel={kernel!r}: expected LEVEL[:MRxNR][:MC,KC,NC]") from None
    return name, tile, blocks


def unit_of(level: str):
    """(vector unit, fused) of a level; the reference target borrows the best level's."""
    if level == "reference":
        known = levels()
        level = next(iter(known)) if known else ""
        if not known:
            from gemm.backends.machines.cpus import LEVELS

            return LEVELS[-2].unit, True
    found = levels()[level]
    return found.unit, found.fused


def tile_for(level: str, acc: DType, shape: tuple[int, int] | None):
    """The register tile: selected, or the one named, refused with the numbers when illegal."""
    unit, _ = unit_of(level)
    if shape is None:
        return select_tile(unit, acc)
    rows, columns = shape
    lanes = unit.lanes(acc)
    if rows < 1 or columns < 1 or columns % lanes:
        raise ValueError(
            f"kernel tile {rows}x{columns}: NR must be a multiple of {lanes} lanes of {acc} on {level}"
        )
    return dtypes.TileShape(rows, columns // lanes, lanes, acc)


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
    tile = tile_for(level, acc, shape)
    spec = KernelSpec("blocked", tile, a, b, out, program=program)
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
        team = planning.partition(batch, m, n, tile, threads)
    else:
        team = planning.partition(batch, m, n, tile, threads)
        blocks = planning.fit(blocks, tile, -(-m // team[1]), -(-n // team[2]), k, scratch_home)
    reason = planning.illegal(blocks, team, spec)
    if reason:
        raise ValueError(reason)
    return Plan(level, spec, blocks, team, tuple(why))


# -- scratch -------------------------------------------------------------------------------------

_PAGE = 4096
_spare: list[np.ndarray] = []
_spare_lock = threading.Lock()
KEPT = 4


def take_space(nbytes: int) -> np.ndarray:
    """A page-aligned scratch block of at least nbytes; give it back with `give_space`."""
    with _spare_lock:
        for i, block in enumerate(_spare):
            if block.size >= nbytes:
                return _spare.pop(i)
    raw = np.empty(nbytes + _PAGE, np.uint8)
    start = -raw.ctypes.data % _PAGE
    return raw[start : start + nbytes]


def give_space(block: np.ndarray) -> None:
    with _spare_lock:
        _spare.append(block)
        _spare.sort(key=lambda b: b.size)
        del _spare[:-KEPT]


# -- running -------------------------------------------------------------------------------------


def _batches(shape, *strides) -> tuple[int, list[tuple[int, ...]]]:
    """(number of matrices, rows (extent, steps...) innermost first), merged where they can be."""
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
    return total, rows


_pack_table = struct.Struct("=27q")


def product(
    a, b, out, *, accumulate=None, alpha=1, beta=0, threads=None, kernel=None, epilogue=None
):
    """out[...] = alpha * (a @ b) + beta * out.

    a (*batch, M, K), b (*batch, K, N), out (*batch, M, N): ndarrays of native byte order and any
    strides; batch dimensions are equal (broadcast by zero strides). a and b have one dtype, or
    are int8 and uint8. `out` may have another dtype of the same kind and must not overlap a or
    b. accumulate: accumulator dtype (default: docs/numerics.md). beta == 0 never reads out.
    threads: workers at most; kernel: 'LEVEL[:MRxNR][:MC,KC,NC]' forces one.
    """
    if epilogue is not None:
        raise NotImplementedError("epilogue= is not supported by this version")
    if alpha != 1 or beta != 0:
        _scaled(a, b, out, accumulate, alpha, beta, threads, kernel)
        return
    if out.strides[-1] != out.itemsize and out.strides[-2] == out.itemsize:
        # Columns of `out` are adjacent: compute its transpose; a chain does not see the swap.
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
    m, k = a.shape[-2:]
    n = b.shape[-1]
    batch, rows = _batches(out.shape[:-2], a.strides[:-2], b.strides[:-2], out.strides[:-2])
    if m == 0 or n == 0 or batch == 0:
        return
    ta, tb, to = element_type(a.dtype), element_type(b.dtype), element_type(out.dtype)
    acc = accumulator(ta, to, accumulate)
    scratch_home = to.name != acc.name or (out.strides[-1] != out.itemsize and n > 1)
    isa = None if kernel else os.environ.get("GEMM_ISA")
    allowed = get_num_threads() if threads is None else checked(threads)
    plan = make_plan(ta, tb, to, acc, m, n, k, batch, scratch_home, allowed, kernel, isa)
    execute(plan, a, b, out, batch, rows, scratch_home)
    if not kernel and a.dtype is out.dtype:
        from . import door as doorkeeper

        doorkeeper.seen(ta, a.dtype)


def execute(plan: Plan, a, b, out, batch: int, rows, scratch_home: bool) -> None:
    """Runs a plan: lays out scratch and arguments, then calls each worker."""
    spec, blocks = plan.spec, plan.blocks
    tile = spec.tile
    size = tile.dtype.size
    m, k = a.shape[-2:]
    n = b.shape[-1]
    slack = 64 * tile.lanes
    a_room = planning.round_up(blocks.mc * blocks.kc * size + slack, 64)
    b_room = planning.round_up(blocks.nc * blocks.kc * size + slack, 64)
    # One K block needs no home; several rest in `out` or in the scratch.
    needs_home = scratch_home and k > blocks.kc
    home_rs = blocks.nc * size if scratch_home else 0
    home_room = blocks.band * home_rs if needs_home else 0
    worker_room = planning.round_up(a_room + b_room + home_room + _PAGE, _PAGE)
    space = take_space(worker_room * plan.workers)
    try:
        dims = np.asarray(rows or [(1, 0, 0, 0)], np.int64)
        integers = (
            m, n, k, a.strides[-2], a.strides[-1], b.strides[-2], b.strides[-1],
            out.strides[-2], out.strides[-1], home_rs, blocks.mc, blocks.kc, blocks.nc,
            blocks.band, a_room, b_room, worker_room, batch,
        )  # fmt: skip
        if plan.level == "reference":
            _execute_reference(plan, a, b, out, space, integers, dims)
            return
        from gemm.backends.cpu import kernels
        from gemm.backends.cpu.team import team

        entry = kernels.entry(levels()[plan.level], spec)
        table = ctypes.create_string_buffer(_pack_table.size)
        _pack_table.pack_into(
            table, 0,
            a.ctypes.data, b.ctypes.data, out.ctypes.data, space.ctypes.data, *integers,
            dims.ctypes.data, *plan.team, 0,
        )  # fmt: skip
        arguments = ctypes.addressof(table)
        if plan.workers > 1:
            team(levels()[plan.level]).run(entry.address, arguments, plan.workers)
        else:
            entry(arguments, 0)
    finally:
        give_space(space)


def _execute_reference(plan, a, b, out, space, integers, dims) -> None:
    from gemm.backends.reference.run import pointer, run

    spec = plan.spec
    function, _ = spec.build()
    space.fill(0xFF)  # NaN in every float format: nothing may read what was not packed
    pointers = [pointer(x, t) for x, t in ((a, spec.a), (b, spec.b), (out, spec.out))]
    pointers.append(pointer(space, dtypes.uint8))
    tables = [pointer(dims, dtypes.uint8)]
    extra = pointer(np.zeros(0, np.uint8), dtypes.uint8)
    arguments = (*pointers, *integers, *tables, *plan.team, extra)
    run(function, arguments, plan.workers)


def _scaled(a, b, out, accumulate, alpha, beta, threads, kernel) -> None:
    product_of = np.empty(out.shape, out.dtype)
    product(a, b, product_of, accumulate=accumulate, threads=threads, kernel=kernel)
    if beta == 0:
        np.multiply(product_of, out.dtype.type(alpha), out=out)
    else:
        out[...] = out.dtype.type(alpha) * product_of + out.dtype.type(beta) * out


def inner(x, y, out, *, conjugate=False) -> None:
    """x, y (*batch, K) -> out (*batch,): one inner product each."""
    if conjugate:
        x = np.conj(x)
    product(x[..., None, :], y[..., :, None], out[..., None, None])


def door(x1, x2, out):
    """The fast path for plain arrays; None when it does not apply."""
    return None
