"""The plan of a product in words: what would run, and why."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from . import door, engine, planner, slices
from . import operands as operand_rules
from .threads import checked, get_num_threads


def explain(a: Any, b: Any, out: Any = None, **options: Any) -> str:
    """How `matmul(a, b, out)` would be computed: kernel, tile, blocks, path, threads, and why.

    a (..., M, K), b (..., K, N), out (..., M, N) or None: arrays, of which only shapes, strides
    and dtypes are read. options: accumulate, threads and kernel as in `matmul`. Nothing is
    compiled or computed. Raises ValueError for shapes that do not match and for a kernel that
    cannot be had, TypeError for a dtype the engine does not compute.
    """
    a, b = np.asarray(a), np.asarray(b)
    unknown = options.keys() - {"accumulate", "threads", "kernel"}
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
    *batch, m, n = shape
    kernel = options.get("kernel")
    element = engine.element_type(dtype)
    first = engine.element_type(a.dtype) if a.dtype == b.dtype else element
    accumulate = options.get("accumulate")
    acc = engine.accumulator(first, element, accumulate)
    adjacent = out is None or n == 1 or out.strides[-1] == out.itemsize
    if not adjacent and out.strides[-2] == out.itemsize and dtype.kind != "c":
        # Computed as the transposed product, as the engine does it.
        m, n, adjacent = n, m, True
    threads = options.get("threads")
    plan = engine.make_plan(
        first, first, element, acc, m, n, k, int(np.prod(batch, dtype=int)),
        element.name != acc.name or not adjacent,
        get_num_threads() if threads is None else checked(threads),
        kernel, None if kernel else os.environ.get("GEMM_ISA"),
    )  # fmt: skip
    spec, blocks = plan.spec, plan.blocks
    tile = spec.tile
    path, small = _path(a, b, out, dtype, m * n * k, options)
    if small:
        tile = planner.small_tile(plan.level, acc)
        lines = [f"kernel: {plan.level}, small, tiles up to {tile.rows}x{tile.columns}, no blocks"]
    else:
        lines = [
            f"kernel: {plan.level}, {spec.family}, tile {tile.rows}x{tile.columns}, "
            f"accumulates in {acc}",
            f"blocks: MC {blocks.mc}, KC {blocks.kc}, NC {blocks.nc}"
            + ("" if k > blocks.kc else f" (one block of k = {k})"),
        ]
    lines.append(f"path: {path}")
    if a.dtype != dtype or b.dtype != dtype:
        lines.append(f"operands are {a.dtype} and {b.dtype}")
    over_batch, over_m, over_n = plan.team
    lines.append(
        f"threads: {plan.workers}"
        + (f" ({over_batch} over the batch, {over_m} over M, {over_n} over N)"
           if plan.workers > 1 else "")
    )  # fmt: skip
    count = sum(1 for _ in slices.pieces(shape, k, plan.workers))
    if count > 1:
        lines.append(f"slices: {count}, so that an interrupt is answered between them")
    reasons = ("so little work that packing would cost more than it saves",) if small else plan.why
    return [*lines, *(f"why: {reason}" for reason in reasons)]


def _path(a, b, out, dtype, work: int, options) -> tuple[str, bool]:
    """The way into machine code, and whether it is that of the small kernel."""
    if options.get("kernel") or options.get("accumulate"):
        return "from Python (a keyword was given)", False
    plain = all(
        type(x) is np.ndarray and x.ndim == 2 and x.dtype == dtype
        for x in (a, b, *([] if out is None else [out]))
    )
    if not plain:
        return "from Python (not two plain matrices of one dtype)", False
    if work > door.ALONE_WORK:
        return "from Python (large: the way in costs nothing that shows)", False
    if os.environ.get("GEMM_DOOR") == "0" or os.environ.get("GEMM_ISA"):
        return "from Python (the environment closes the door)", False
    served = "open" if door.is_open(dtype.name) else "opens after a few calls"
    if b.strides[1] == b.itemsize and work <= planner.SMALL_WORK:
        return f"through the door ({served}), operands unpacked", True
    return f"through the door ({served})", False
