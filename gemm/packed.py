"""An operand packed once and used many times: `gemm.pack(b)`, accepted by `matmul` as x2.

    K block     0                                  1
                panel 0    panel 1    ..           panel 0    ..
                +---------+---------+----         +---------+----
    data        | k = 0.. | k = 0.. |             | k = KC..|
                +---------+---------+----         +---------+----
                each NR wide, k by k, values of the compute type or units of grouping.py

The layout is that of packing.py for one level's tile and one KC, with all column panels of a K
block side by side; columns beyond N repeat the last one. It is the machine's and the kernel's
own: an operand packed for a level that is not here is refused.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm.microkernels.dtypes import DTYPES, DType, TileShape

from . import operands
from . import plan as planning
from .execution import batches, execute
from .halves import in_halves
from .kernels import KernelSpec, group_of
from .planner import panels, workers_for
from .targets import accumulator, element_type, levels, parse_kernel
from .threads import checked, get_num_threads


@dataclass(frozen=True)
class PackedOperand:
    """B (K x N) in panels. level, tile, kc, units: the kernel they are for; data: the panels."""

    shape: tuple[int, int]
    dtype: np.dtype
    level: str
    tile: TileShape
    kc: int
    units: tuple[DType, DType] | None
    data: np.ndarray

    def __repr__(self) -> str:
        return (
            f"<{self.dtype} operand of shape {self.shape} packed for {self.level},"
            f" panels of {self.tile.columns}>"
        )


def pack(b: Any, *, kernel: str | None = None) -> PackedOperand:
    """B packed for `matmul(a, packed)`, whose bits are those of `matmul(a, b)`.

    b: 2-D array (K, N) of a dtype the engine computes, any strides; it is copied. kernel: as in
    `matmul`, 'LEVEL[:MRxNR][:MC,KC,NC]'; default the best level's. Raises ValueError for another
    number of dimensions or an empty operand, TypeError for another dtype.
    """
    from gemm.backends.cpu.machine import machine

    b = np.asarray(b)
    if b.ndim != 2 or b.size == 0:
        raise ValueError(f"pack takes a 2-D operand with elements, got shape {b.shape}")
    kind = element_type(b.dtype)
    level, shape, named = parse_kernel(kernel)
    if level == "reference":
        raise ValueError("pack: the reference target reads operands where they lie")
    acc = accumulator(kind, kind)
    tile, units = panels(level, kind, kind, kind, acc, shape)
    whole = units[0] if units is not None and tile.block > 1 else None
    group = group_of(tile, kind, units)
    if named is None:
        kc = planning.fit(planning.cache_blocks(tile, machine().caches, whole, group), tile, 1,
                          1, len(b), False, whole).kc  # fmt: skip
    else:
        kc = planning.round_up(max(1, named[1]), 4 if whole is None else whole.group)
    unit = None if units is None else units[1]
    columns = np.minimum(np.arange(planning.round_up(b.shape[1], tile.columns)), b.shape[1] - 1)
    parts = [_panels(b[pc : pc + kc][:, columns], tile, unit) for pc in range(0, len(b), kc)]
    # Edge loads may look beyond the last panel, as in the engine's own scratch.
    data = np.concatenate([*parts, np.zeros(64 * tile.lanes, np.uint8)])
    data.flags.writeable = False
    return PackedOperand(b.shape, b.dtype, level, tile, kc, units, data)


def _panels(block: np.ndarray, tile: TileShape, unit: DType | None) -> np.ndarray:
    """The bytes of one K block: columns are whole panels already."""
    if unit is not None and unit.kind == "c":
        pairs = np.ascontiguousarray(block).view(block.real.dtype).reshape(*block.shape, 2)
        turned = np.stack([-pairs[..., 1], pairs[..., 0]], axis=-1)
        both = np.stack([pairs, turned], axis=1).reshape(2 * len(block), block.shape[1], 2)
        rows = np.ascontiguousarray(both).view(block.dtype)[..., 0]
    elif in_halves(DTYPES[block.dtype.name], unit and (unit, unit)):
        x = np.ascontiguousarray(block).view(np.uint32)
        low = x & np.uint32(0xFFFF)
        bracket = (x + np.uint32(0x8000) & np.uint32(0xFFFF0000)) | low
        low = np.concatenate([low, np.zeros_like(low[: len(low) % 2])])
        rows = np.concatenate([bracket, low[::2] | low[1::2] << np.uint32(16)])
    elif unit is None:
        rows = block.astype(np.dtype(tile.dtype.name))
    else:
        # Neighbours in k become one 32-bit unit.
        element: Any = np.int16 if unit.name == "int16x2" else np.int8
        if unit.name.startswith("bfloat16"):
            element = block.dtype
        each = 4 // np.dtype(element).itemsize
        k = planning.round_up(len(block), unit.group)
        whole = np.zeros((k, block.shape[1]), element)
        whole[: len(block)] = block.astype(element)
        grouped = whole.reshape(-1, each, block.shape[1])
        if unit.name == "bfloat16x2":
            grouped = grouped[:, ::-1]
        rows = np.ascontiguousarray(grouped.swapaxes(1, 2)).view(np.uint32)[..., 0]
    split = rows.reshape(len(rows), -1, tile.columns).swapaxes(0, 1)
    return np.ascontiguousarray(split).reshape(-1).view(np.uint8)


@functools.lru_cache(maxsize=1024)
def _plan(level, tile, units, kind, m, n, k, kc, batch, scratch_home, allowed):
    from gemm.backends.cpu.machine import machine

    spec = KernelSpec("blocked", tile, kind, kind, kind, units=units, ready_b=True)
    workers = workers_for(level, tile.dtype, m * n * k * batch, allowed)
    team = planning.partition(batch, m, n, tile, workers)
    unit = units[0] if units is not None and tile.block > 1 else None
    blocks = planning.fit(planning.cache_blocks(tile, machine().caches, unit, spec.group), tile,
                          -(-m // team[1]), -(-n // team[2]), k, scratch_home, unit)  # fmt: skip
    blocks = planning.replace(blocks, kc=kc)
    return planning.Plan(level, spec, blocks, team, ("B comes packed",))


def product(x1: Any, x2: Any, out: Any, keywords: dict[str, Any]) -> np.ndarray:
    """matmul(x1, packed, out, threads=): x1 (..., K), out (..., N) of the operand's dtype."""
    if not isinstance(x2, PackedOperand):
        raise TypeError("a packed operand is the second of a product: matmul(a, gemm.pack(b))")
    unknown = keywords.keys() - {"threads"}
    if unknown:
        raise TypeError(f"with a packed operand matmul takes threads= only, not {sorted(unknown)}")
    if x2.level not in levels():
        raise ValueError(f"{x2!r}: this machine runs {', '.join(levels())}")
    threads = keywords.get("threads")
    allowed = get_num_threads() if threads is None else checked(threads)
    a = np.asarray(x1)
    if a.dtype != x2.dtype:
        raise TypeError(f"{x2!r} multiplies operands of its dtype, not {a.dtype}")
    k, n = x2.shape
    if a.ndim < 1 or a.shape[-1] != k:
        raise ValueError(f"matmul: {x2!r} needs K = {k}, the first operand has shape {a.shape}")
    shape = (*a.shape[:-1], n)
    if out is None:
        out = np.empty(shape, a.dtype)
    elif not isinstance(out, np.ndarray) or out.dtype != a.dtype or not out.flags.writeable:
        raise TypeError(f"out must be a writeable array of {a.dtype}, got {out!r:.60}")
    elif out.shape != shape:
        raise ValueError(f"out has shape {out.shape}, the product {shape}")
    if out.size:
        target = out if operands.can_write(out, a.dtype, a, x2.data) else np.empty_like(out)
        row = (None,) if a.ndim == 1 else ()
        _run(a[row], x2, target[row], allowed)
        if target is not out:
            np.copyto(out, target)
    return out


def _run(a: np.ndarray, b: PackedOperand, out: np.ndarray, allowed: int) -> None:
    k, n = b.shape
    size = b.units[1].size if b.units else b.tile.dtype.size
    # Bytes of all panels for one unit of k.
    step = planning.round_up(n, b.tile.columns) * size * (b.tile.dtype.components if b.units else 1)
    if in_halves(element_type(b.dtype), b.units):
        step = step * 3 // 2
    scratch_home = out.dtype.name != b.tile.dtype.name or out.strides[-1] != out.itemsize
    batch, rows = batches(out.shape[:-2], a.strides[:-2], (0,) * (a.ndim - 2), out.strides[:-2])
    plan = _plan(b.level, b.tile, b.units, element_type(b.dtype), a.shape[-2], n, k, b.kc, batch,
                 scratch_home, allowed)  # fmt: skip
    view = np.lib.stride_tricks.as_strided(b.data, b.shape, (step, 0), writeable=False)
    execute(plan, a, view, out, batch, rows, scratch_home)
