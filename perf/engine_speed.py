"""The engine's speed on one core, against its own ceiling and NumPy.

    python -m gemm.perf.engine_speed [--level NAME ...] [--rounds N] [--only PART ...]

Parts: micro (the micro-kernel on packed panels in the second-level cache, as a share of the
multiply-add ceiling), square (n = 256 to 2048), layouts (transposed and stepped operands against
contiguous ones), start (import and first call, in fresh processes), call (8 x 8 through the
door). Contenders alternate within a round; figures are medians. Variables that steer OpenBLAS
are unset in a fresh process, and its kernel is named.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import gemm
from gemm import engine, planner
from gemm.backends import ceiling
from gemm.backends.cpu import kernels
from gemm.backends.cpu.machine import machine
from gemm.microkernels.dtypes import DTYPES, TileShape
from gemm.microkernels.outer_product import make_outer_product
from gemm.microkernels.vocabulary import shift, tile_store, tile_zeros

from .machine import restarted

DTYPE_NAMES = ("float32", "float64")
PARTS = ("micro", "square", "layouts", "start", "call")


@dataclass(frozen=True)
class MicroSpec:
    """The micro-kernel as loop 1 runs it: one panel of A, a packed block of B, no edges."""

    tile: TileShape
    unroll: int = 4

    def build(self):
        shape, size = self.tile, self.tile.dtype.size
        rows, columns = shape.rows, shape.columns
        compute = make_outer_product(self.unroll)

        def micro(a, b, c, panels, k, repeats):
            for _ in range(repeats):
                for p in range(panels):
                    at = shift(b, p * columns * k * size)
                    t = compute(
                        tile_zeros(shape), a, size, rows * size, at, columns * size, columns, k
                    )
                    tile_store(c, columns * size, t, rows, columns)

        micro.label = f"micro {shape}"  # type: ignore[attr-defined]
        return micro, (*[shape.dtype] * 3, *["integer"] * 3)


def alternate(calls: list[Callable[[], object]], rounds: int) -> list[float]:
    """Median seconds of each call, one of each a round.

    A call is timed after an untimed one of its own, so that nobody pays for the caches that the
    other contender's packing emptied.
    """
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, column in zip(calls, times, strict=True):
            call()
            started = time.perf_counter()
            call()
            column.append(time.perf_counter() - started)
    return [statistics.median(column) for column in times]


def aligned(count: int, dtype: str) -> np.ndarray:
    """Ones that start on a cache line, as packed panels do."""
    raw = np.ones(count + 64, dtype)
    start = -raw.ctypes.data % 64 // raw.itemsize
    return raw[start : start + count]


def micro(level: str, dtype: str, rounds: int) -> None:
    """The micro-kernel's share of the ceiling; both timed in the same rounds."""
    shape = engine.tile_for(level, DTYPES[dtype], None)
    found = engine.levels()[level]
    blocks = planner.planning.cache_blocks(shape, machine().caches)
    k, panels = blocks.kc, max(1, blocks.nc // shape.columns)
    a, b = aligned(shape.rows * k, dtype), aligned(panels * shape.columns * k, dtype)
    c = aligned(shape.rows * shape.columns, dtype)
    flops = 2 * panels * shape.rows * shape.columns * k
    repeats = max(1, int(2e8 / flops))  # some milliseconds, as long as a measurement of the ceiling
    entry = kernels.entry(found, MicroSpec(shape))
    pointers = [x.ctypes.data for x in (a, b, c)]
    table = np.array([*pointers, panels, k, repeats], np.int64)
    rates, tops = [], []
    entry(table.ctypes.data, 0)
    for _ in range(3 * rounds):
        best = float("inf")
        for _ in range(3):
            started = time.perf_counter()
            entry(table.ctypes.data, 0)
            best = min(best, time.perf_counter() - started)
        rates.append(flops * repeats / best)
        tops.append(ceiling.fma_rate(dtype, level=level, seconds=0.005, repeats=3))
    assert (c == k).all()
    rate, top = statistics.median(rates), statistics.median(tops)
    share = statistics.median(r / t for r, t in zip(rates, tops, strict=True))
    print(
        f"micro   {level:12} {dtype} {shape.rows}x{shape.columns}, {panels} panels of k = {k}: "
        f"{rate / 1e9:.1f} of {top / 1e9:.1f} GFLOP/s, {share:.1%}",
        flush=True,
    )


def square(level: str, dtype: str, rounds: int) -> None:
    """gemm.matmul against NumPy for square matrices."""
    kernel = None if level == engine.default_level() else level
    for n in (256, 512, 1024, 2048):
        rng = np.random.default_rng(n)
        a, b = (rng.standard_normal((n, n)).astype(dtype) for _ in range(2))
        out, theirs = np.empty((n, n), dtype), np.empty((n, n), dtype)

        def ours(a=a, b=b, out=out):
            return gemm.matmul(a, b, out=out, **({"kernel": kernel} if kernel else {}))

        count = rounds if n > 512 else 8 * rounds
        top = ceiling.fma_rate(dtype, level=level, seconds=0.01, repeats=9)
        mine, numpy = alternate([ours, lambda a=a, b=b, c=theirs: np.matmul(a, b, out=c)], count)
        assert np.allclose(out, theirs, rtol=1e-3, atol=1e-2)
        rate = 2 * n**3 / mine
        print(
            f"square  {level:12} {dtype} n = {n}: {rate / 1e9:.1f} GFLOP/s ({rate / top:.0%} of the"
            f" ceiling), NumPy {2 * n**3 / numpy / 1e9:.1f}, ratio {numpy / mine:.3f}",
            flush=True,
        )


def layouts(dtype: str, rounds: int) -> None:
    """Transposed, stepped and reversed operands against contiguous ones, n = 1024."""
    n = 1024
    base = np.random.default_rng(1).standard_normal((2 * n, 2 * n)).astype(dtype)
    plain, other = (np.ascontiguousarray(base[at : at + n, :n]) for at in (0, n))
    out = np.empty((n, n), dtype)
    views = {
        "A transposed": (plain.T, other),
        "B transposed": (plain, other.T),
        "both transposed": (plain.T, other.T),
        "A stepped": (base[::2, ::2], other),
        "B stepped": (plain, base[::2, ::2]),
        "both stepped": (base[::2, ::2], base[1::2, 1::2]),
        "both reversed": (plain[::-1, ::-1], other[::-1, ::-1]),
    }
    for name, (x, y) in views.items():
        contiguous, viewed = alternate(
            [
                lambda: gemm.matmul(plain, other, out=out),
                lambda x=x, y=y: gemm.matmul(x, y, out=out),
            ],
            rounds,
        )
        print(f"layouts {dtype} {name}: {viewed / contiguous:.3f} x contiguous", flush=True)


START = """
import sys, time
start = time.perf_counter()
import numpy as np
numpy = time.perf_counter()
import gemm
imported = time.perf_counter()
a = np.ones((100, 100), sys.argv[1])
b = a.copy()
called = time.perf_counter()
gemm.matmul(a, b)
done = time.perf_counter()
print(imported - numpy, done - called)
"""


def start(dtype: str, rounds: int) -> None:
    """Import beyond NumPy's, first call warm and cold; a fresh process each."""

    def sample(folder: str) -> tuple[float, float]:
        environment = {**os.environ, "GEMM_CACHE_DIR": folder}
        command = [sys.executable, "-c", START, dtype]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        imported, called = map(float, done.stdout.split())
        return imported, called

    with tempfile.TemporaryDirectory() as warm:
        cold = []
        for _ in range(3):
            with tempfile.TemporaryDirectory() as empty:
                cold.append(sample(empty)[1])
        sample(warm)
        imports, calls = zip(*(sample(warm) for _ in range(rounds)), strict=True)
    milliseconds = [statistics.median(x) * 1e3 for x in (imports, calls)]
    print(
        f"start   {dtype} import {milliseconds[0]:.1f} ms beyond NumPy, first call warm "
        f"{milliseconds[1]:.1f} ms, cold {statistics.median(cold):.2f} s",
        flush=True,
    )


def call(dtype: str, rounds: int) -> None:
    """8 x 8 from Python, with and without `out`, alternating blocks of calls."""
    a, b = np.ones((8, 8), dtype), np.ones((8, 8), dtype)
    out = np.empty((8, 8), dtype)
    number = 2000
    for _ in range(40):
        gemm.matmul(a, b)

    def many(function, *arguments):
        for _ in range(number):
            function(*arguments)

    for label, extra in (("with out", (out,)), ("without out", ())):
        mine, numpy = alternate(
            [
                lambda extra=extra: many(gemm.matmul, a, b, *extra),
                lambda extra=extra: many(np.matmul, a, b, *extra),
            ],
            4 * rounds,
        )
        print(
            f"call    8 x 8 {dtype} {label}: {mine / number * 1e9:.0f} ns, NumPy "
            f"{numpy / number * 1e9:.0f} ns, ratio {numpy / mine:.2f}",
            flush=True,
        )


def yardstick() -> str:
    """Which kernel NumPy's BLAS runs here, as threadpoolctl tells."""
    try:
        import threadpoolctl
    except ImportError:
        return "unknown (threadpoolctl is not installed)"
    pools = [p for p in threadpoolctl.threadpool_info() if p["user_api"] == "blas"]
    return ", ".join(f"{p['internal_api']} {p.get('architecture', '')}" for p in pools)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--level", action="append", help="levels to run (default: all here)")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--only", action="append", choices=PARTS)
    options = parser.parse_args()
    restarted("gemm.perf.engine_speed", 1)
    parts = options.only or PARTS
    levels = options.level or [name for name in engine.levels() if engine.levels()[name].fused]
    print(f"{machine().name}; NumPy {np.__version__} on {yardstick()}; one thread")
    # Levels of one vector unit run the same float kernels: the first of each is enough.
    units = {engine.levels()[name].unit: name for name in reversed(levels)}
    for level in reversed(units.values()):
        for dtype in DTYPE_NAMES:
            if "micro" in parts:
                micro(level, dtype, options.rounds)
            if "square" in parts:
                square(level, dtype, options.rounds)
    for dtype in DTYPE_NAMES:
        if "layouts" in parts:
            layouts(dtype, options.rounds)
        if "start" in parts:
            start(dtype, options.rounds)
        if "call" in parts:
            call(dtype, options.rounds)


if __name__ == "__main__":
    main()
