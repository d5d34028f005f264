"""How good the analytic choice of tile and blocks is, beside a sweep.

    python -m gemm.perf.tile_sweep [--dtype float32 float64] [--n 1024] [--seconds 0.4]

Every candidate is forced by name and run alternately with the analytic plan; a figure is the
ratio of medians, above 1 where the candidate is faster.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import gemm
from gemm import engine, plan, targets
from gemm.backends.cpu.machine import machine
from gemm.microkernels.selection import candidates, select_tile


def kernels(dtype: str, tiles: int) -> list[str]:
    """Names of kernels to try: the best tiles with the analytic blocks, then other blocks."""
    level = targets.default_level()
    unit, _ = targets.unit_of(level)
    acc = targets.element_type(np.dtype(dtype))
    names = []
    for tile in candidates(unit, acc)[:tiles]:
        blocks = plan.cache_blocks(tile, machine().caches)
        names.append(_name(level, tile, blocks.mc, blocks.kc, blocks.nc))
    tile = select_tile(unit, acc)
    blocks = plan.cache_blocks(tile, machine().caches)
    for kc in (128, 192, 256, 320, 384, 512):
        for mc in (120, 240, 480, blocks.mc):
            mc = max(1, mc // tile.rows) * tile.rows
            names.append(_name(level, tile, mc, kc, blocks.nc))
    return list(dict.fromkeys(names))


def _name(level: str, tile, mc: int, kc: int, nc: int) -> str:
    return f"{level}:{tile.rows}x{tile.columns}:{mc},{kc},{nc // tile.columns * tile.columns}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gemm.perf.tile_sweep", description=__doc__)
    parser.add_argument("--dtype", nargs="+", default=["float32", "float64"])
    parser.add_argument("--n", type=int, default=1024)
    parser.add_argument("--tiles", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.4, help="for each candidate")
    options = parser.parse_args(arguments)
    gemm.set_num_threads(1)
    rng = np.random.default_rng()
    n = options.n
    for dtype in options.dtype:
        a, b = rng.standard_normal((n, n)).astype(dtype), rng.standard_normal((n, n)).astype(dtype)
        out = np.empty((n, n), dtype)
        engine.product(a, b, out)
        reference = out.copy()
        rows = []
        for name in kernels(dtype, options.tiles):
            out.fill(np.nan)
            engine.product(a, b, out, kernel=name)
            same = bool((out == reference).all())
            ours: list[float] = []
            theirs: list[float] = []
            deadline = time.perf_counter() + options.seconds
            while len(ours) < 3 or time.perf_counter() < deadline:
                for kept, kernel in ((ours, None), (theirs, name)):
                    started = time.perf_counter()
                    engine.product(a, b, out, kernel=kernel)
                    kept.append(time.perf_counter() - started)
            rate = 2 * n**3 / float(np.median(theirs)) / 1e9
            rows.append((float(np.median(ours) / np.median(theirs)), rate, name, same))
        print(f"{dtype} n={n}: candidate / analytic plan, GFLOP/s, kernel, same bits")
        for ratio, rate, name, same in sorted(rows, reverse=True):
            print(f"  {ratio:5.2f} {rate:8.1f}  {name}  {same}", flush=True)


if __name__ == "__main__":
    main()
