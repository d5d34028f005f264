"""Shows the machine and the plans, then multiplies, checks and times every dtype against NumPy.

Each result is checked element by element against a product that gemm had no part in: NumPy's in
float64 (or complex128) within the rounding bound, NumPy's own integer loops exactly. Times are
medians of alternating runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

import gemm
from gemm import engine
from gemm.backends import ceiling, devices
from gemm.backends.cpu.machine import machine
from gemm.microkernels.dtypes import DTYPES, DType
from gemm.microkernels.vocabulary import storage
from gemm.threads import get_num_threads, set_num_threads

# What changes OpenBLAS's kernel or blocking, and so what is compared with.
STEERING = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
SIZES = {"float32": 1024, "float64": 1024, "complex64": 512, "complex128": 512, "bfloat16": 512}
OTHERS = 320  # NumPy has plain loops for these


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=int, help="M = N = K for every dtype")
    parser.add_argument(
        "--dtype", action="append", metavar="NAME", help="only this one; repeatable"
    )
    parser.add_argument("--threads", type=int, help="threads of gemm and of NumPy's BLAS")
    parser.add_argument("--repeats", type=int, default=5, help="alternating runs (default: 5)")


def run(options: argparse.Namespace) -> int:
    """0 when every result was right, 1 when one was not, 2 for an option out of range."""
    for name in ("size", "threads", "repeats"):
        value = getattr(options, name)
        if value is not None and value < 1:
            print(f"--{name} must be at least 1, got {value}", file=sys.stderr)
            return 2
    names = options.dtype or [*_supported()]
    for name in names:
        if name not in _supported():
            print(f"--dtype {name!r} is not one of {', '.join(_supported())}", file=sys.stderr)
            return 2
    if any(name in os.environ for name in STEERING):
        return _again_without_steering()
    _show_machine()
    threads = _limit(options.threads)
    print(f"\n{_explained()}\n")
    print(f"{'dtype':14}{'n':>6}{'gemm':>10}{'NumPy':>10}{'ratio':>8}{'ceiling':>9}  result")
    good = True
    for name in names:
        size = options.size or SIZES.get(name, OTHERS)
        line, right = _measured(DTYPES[name], size, threads, options.repeats)
        print(line, flush=True)
        good &= right
    print(
        "\nGFLOP/s (GOP/s for integers); ratio: gemm / NumPy; ceiling: share of the rate of\n"
        f"independent multiply-adds measured in this run. {threads} thread(s)."
    )
    return 0 if good else 1


def _supported() -> list[str]:
    """Names of the element types that can be multiplied here; some need ml_dtypes."""
    names = []
    for name, dtype in DTYPES.items():
        try:
            storage(dtype)
        except ImportError:
            continue
        names.append(name)
    return names


def _again_without_steering() -> int:
    found = [f"{name}={os.environ[name]}" for name in STEERING if name in os.environ]
    print(
        f"{', '.join(found)} was set and is unset for this run: it slows NumPy down\n", flush=True
    )
    import subprocess

    environment = {key: value for key, value in os.environ.items() if key not in STEERING}
    return subprocess.call([sys.executable, "-m", "gemm", *sys.argv[1:]], env=environment)


def _limit(threads: int | None) -> int:
    """Sets gemm's threads, and NumPy's to the same number where threadpoolctl is installed."""
    if threads is not None:
        set_num_threads(threads)
    threads = get_num_threads()
    try:
        import threadpoolctl
    except ImportError:
        print("NumPy: its BLAS runs its own number of threads (threadpoolctl is not installed)")
        return threads
    threadpoolctl.threadpool_limits(threads)
    for pool in threadpoolctl.threadpool_info():
        kind = pool.get("architecture", "")
        print(f"NumPy: {pool['internal_api']} {kind}, {pool['num_threads']} thread(s)")
    return threads


def _show_machine() -> None:
    found = machine()
    levels = ", ".join(level.name for level in found.levels)
    caches = ", ".join(f"L{i} {cache}" for i, cache in enumerate(found.caches, 1))
    assumed = "" if found.caches_known else " (assumed: the system does not tell)"
    print(f"CPU: {found.name}, {found.cores} cores")
    print(f"instruction sets: {levels}; chosen: {engine.default_level()}")
    print(f"caches: {caches}{assumed}")
    print(f"threads: {get_num_threads()}")
    print(f"GPU: {', '.join(devices.names()) or 'none'}")
    print(f"copy bandwidth, one thread: {ceiling.bandwidth() / 1e9:.1f} GB/s")


def _explained() -> str:
    a = np.broadcast_to(np.float32(0), (1024, 1024))
    return "\n\n".join(gemm.explain(x, x) for x in (a, a.astype(np.float64)))


def _measured(dtype: DType, n: int, threads: int, repeats: int) -> tuple[str, bool]:
    """One line of the table, and whether the result was right."""
    rng = np.random.default_rng(7)
    a, b = (_values(rng, (n, n), dtype) for _ in range(2))
    out, theirs = np.empty((n, n), a.dtype), np.empty((n, n), a.dtype)
    gemm.matmul(a, b, out=out)
    right, verdict = _check(dtype, a, b, out)
    ours: Callable[[], object] = lambda: gemm.matmul(a, b, out=out)  # noqa: E731
    calls: list[Callable[[], object]] = [ours]
    try:
        np.matmul(a[:1], b, out=theirs[:1])
        calls.append(lambda: np.matmul(a, b, out=theirs))
    except TypeError:
        pass  # NumPy multiplies no arrays of this type
    times = [statistics.median(column) for column in zip(*_alternate(calls, repeats), strict=True)]
    flops = (8 if dtype.kind == "c" else 2) * n**3
    rates = [flops / seconds / 1e9 for seconds in times]
    line = f"{dtype.name:14}{n:6}{rates[0]:10.1f}"
    line += (
        f"{rates[1]:10.1f}{rates[0] / rates[1]:8.2f}" if len(rates) > 1 else f"{'-':>10}{'-':>8}"
    )
    line += f"{_share(dtype, rates[0], threads):>9}  {verdict}"
    return line, right


def _alternate(calls, repeats: int) -> list[list[float]]:
    rows = []
    for _ in range(repeats):
        row = []
        for call in calls:
            started = time.perf_counter()
            call()
            row.append(time.perf_counter() - started)
        rows.append(row)
    return rows


def _share(dtype: DType, rate: float, threads: int) -> str:
    try:
        return f"{rate * 1e9 / ceiling.fma_rate(dtype.name, threads):.0%}"
    except ValueError:
        return "-"


def _values(rng: np.random.Generator, shape, dtype: DType) -> np.ndarray:
    kind = storage(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(kind)
    if dtype.kind in "iu":
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, dtype=kind, endpoint=True)
    real = rng.uniform(-1, 1, shape)
    if dtype.kind == "c":
        real = real + 1j * rng.uniform(-1, 1, shape)
    return real.astype(kind)


def _check(dtype: DType, a, b, out) -> tuple[bool, str]:
    """Compares with an independent product: exactly, or within the bound of the accumulator."""
    if dtype.kind in "iub":
        expected = np.matmul(a, b)
        wrong = int((out != expected).sum())
        return wrong == 0, "exact" if wrong == 0 else f"WRONG: {wrong} elements differ"
    wide = np.complex128 if dtype.kind == "c" else np.float64
    x, y = a.astype(wide), b.astype(wide)
    expected, size = x @ y, abs(x) @ abs(y)
    accumulator = np.finfo(np.float64 if dtype.bits // dtype.components == 64 else np.float32)
    # The chain's error, that of the reference, and one rounding to the output.
    bound = 2 * a.shape[1] * accumulator.eps * size
    bound += _rounding(dtype, abs(expected) + bound)
    error = abs(out.astype(wide) - expected) / bound
    worst = float(np.max(np.where(np.isnan(error), np.inf, error)))
    good = worst <= 1
    return good, f"within {worst:.3f} of the bound" if good else f"WRONG: {worst:.3g} x the bound"


# Stored type -> (bits of its fraction, exponent of its smallest subnormal).
NARROW = {
    "float16": (10, -24), "bfloat16": (7, -133), "float8_e4m3fn": (3, -9), "float8_e5m2": (2, -16),
}  # fmt: skip


def _rounding(dtype: DType, size: np.ndarray) -> np.ndarray:
    """What the one rounding to the stored type may add to results of this size."""
    fraction, smallest = NARROW.get(dtype.name, (23, -149))
    return np.maximum(2.0**-fraction * size, 2.0**smallest)


__all__ = ["add_options", "run"]
