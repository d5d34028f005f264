"""The plan of a product in words: what would run, and why."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import door, engine, slices, symmetric
from . import operands as operand_rules
from .threads import checked, get_num_threads


def explain(a: Any, b: Any, out: Any = None, **options: Any) -> str:
    """How `matmul(a, b, out)` would be computed: kernel, tile, blocks, path, threads, and why.

    a (..., M, K), b (..., K, N), out (..., M, N) or None: arrays, of which only shapes, strides
    and dtypes are read. options: accumulate, threads, kernel, subnormals as in `matmul`. Nothing is
    compiled or computed. Raises ValueError for shapes that do not match and for a kernel that
    cannot be had, TypeError for a dtype the engine does not compute.
    """
    a, b = np.asarray(a), np.asarray(b)
    unknown = options.keys() - {"accumulate", "threads", "kernel", "subnormals"}
    if unknown:
        raise TypeError(f"explain() got an unexpected keyword argument {min(unknown)!r}")
    if a.ndim < 1 or b.ndim < 1:
        raise ValueError(f"a product needs at least 1-D operands, got {a.shape} and {b.shape}")
    m, k = (1, a.shape[0]) if a.ndim == 1 else a.shape[-2:]
    inner, n = (b.shape[0], 1) if b.ndim == 1 else b.shape[-2:]
    if k != inner:
        raise ValueError(f"shapes {a.shape} and {b.shape} do not match: {k} columns, {inner} rows")
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, m, n)
    dtype = operand_rules.common_dtype(a.dtype, b.dtype) if out is None else out.dtype
    lines = [f"({m} x {k}) @ ({k} x {n}){_times(batch)} -> {dtype}"]
    if 0 in shape:
        return "\n".join([*lines, "nothing to do: the output is empty"])
    if not operand_rules.is_engine_dtype(dtype):
        return "\n".join([*lines, f"computed by NumPy: the engine has no kernel for {dtype}"])
    return "\n".join([*lines, *_plan_lines(a, b, out, shape, k, dtype, options)])


def _times(batch: tuple[int, ...]) -> str:
    return f", {'x'.join(map(str, batch))} times" if batch else ""


def _plan_lines(a, b, out, shape, k: int, dtype, options) -> list[str]:
    path = _path(a, b, out, dtype, shape, k, options)
    if a.dtype != b.dtype and not operand_rules.widens(a.dtype, b.dtype, dtype):
        a, b = _like(a, dtype), _like(b, dtype)
    threads = options.get("threads")
    allowed = get_num_threads() if threads is None else checked(threads)
    accumulate, kernel = options.get("accumulate"), options.get("kernel")
    parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    if a.ndim == b.ndim == 1:
        total = _like(np.empty(()), dtype)
        plan = engine.inner_planned(a, b, total, False, accumulate, allowed, kernel)[0]
    else:
        x = _core(a, shape[:-2], 0)
        y = _core(b, shape[:-2], 1)
        target = _like(np.empty(()), dtype, shape) if out is None else out.reshape(shape)
        if not engine.narrow(x, y, target, accumulate, kernel) and engine.turned(target, k):
            x, y, target = y.swapaxes(-1, -2), x.swapaxes(-1, -2), target.swapaxes(-1, -2)
        parts = list(slices.of(x, y, target, allowed))
        plan = engine.planned(*parts[0], accumulate, allowed, kernel)[0]
        if kernel is None and symmetric.applies(x, y, target):
            plan = symmetric.planned(x, target, accumulate, allowed)
    tile, blocks = plan.spec.tile, plan.blocks
    lines = [
        f"kernel: {plan.level}, {plan.spec.family}, tile {tile.rows}x{tile.columns}, "
        f"accumulates in {tile.dtype}"
    ]
    if plan.spec.family == "blocked":
        one = "" if k > blocks.kc else f" (one block of k = {k})"
        lines.append(f"blocks: MC {blocks.mc}, KC {blocks.kc}, NC {blocks.nc}{one}")
    lines.append(f"path: {path}")
    over_batch, over_m, over_n = plan.team
    share = f" ({over_batch} over the batch, {over_m} over M, {over_n} over N)"
    lines.append(f"threads: {plan.workers}{share if plan.workers > 1 else ''}")
    if engine.flushes(options.get("subnormals"), dtype):
        lines.append(
            "subnormals: flushed; operands and results of each step that are subnormal are 0"
        )
    if len(parts) > 1:
        lines.append(f"slices: {len(parts)}, so that an interrupt is answered between them")
    return [*lines, *(f"why: {reason}" for reason in plan.why)]


def _like(x: np.ndarray, dtype, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of this dtype with C-contiguous strides and no memory behind them to speak of."""
    shape = x.shape if shape is None else shape
    steps = [dtype.itemsize * int(np.prod(shape[i + 1 :], dtype=int)) for i in range(len(shape))]
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), shape, steps)


def _core(x: np.ndarray, batch: tuple[int, ...], side: int) -> np.ndarray:
    """x with two core axes and all batch axes."""
    if x.ndim == 1:
        x = x[:, None] if side else x[None, :]
    return np.broadcast_to(x, (*batch, *x.shape[-2:]))


def _path(a, b, out, dtype, shape, k: int, options) -> str:
    """The way into machine code."""
    if any(options.values()):
        return "from Python (a keyword was given)"
    if os.environ.get("GEMM_DOOR") == "0" or os.environ.get("GEMM_ISA"):
        return "from Python (the environment closes the door)"
    plain = all(
        type(x) is np.ndarray and x.ndim < 3 and x.dtype == dtype
        for x in (a, b, *([] if out is None else [out]))
    )
    kind = "inner door" if a.ndim == b.ndim == 1 else "door"
    if not plain or (kind == "inner door" and out is not None):
        return "from Python (not two plain arrays of one dtype, of one or two dimensions)"
    if kind == "door" and shape[0] * shape[1] * k > door.ALONE_WORK:
        return "from Python (large: the way in costs nothing that shows)"
    state = "open" if door.is_open(dtype.name, kind) else "which opens after a few calls"
    return f"through the door ({state})"
