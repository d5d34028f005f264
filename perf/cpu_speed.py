"""The table of CPU speeds: every dtype and shape class with the score it should reach.

    python -m gemm.perf.cpu_speed [--threads 1 2] [--quick] [--only bfloat16 ...] [--part 1/3]

A row's contenders run one after the other in each round, on fresh random operands; its score is
the median over rounds of the ratio within a round (perf/cpu_cases.py says of what), with the
quartiles beside it. Results are checked first, against float64 or exact integers. The
multiply-add ceilings and the bandwidths of copying and reading in the run stand above the table.
Variables that steer OpenBLAS are unset in a fresh process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np

import gemm

from .alternate import POOL_SETTLES
from .cpu_cases import Row, rows, torch_module

WARM = 20  # calls before the first sample: the door opens after 16


def time_together(calls: list[Callable[[], object]], seconds: float) -> np.ndarray:
    """Seconds a call, one row a round, of callables sampled in turn for `seconds` in all."""
    inner = []
    for call in calls:
        call()
        started = time.perf_counter()
        call()
        once = time.perf_counter() - started
        if once < 1e-3:
            for _ in range(WARM):
                call()
        inner.append(max(1, int(5e-4 / max(once, 1e-7))))
    samples: list[list[float]] = []
    deadline = time.perf_counter() + seconds
    while len(samples) < 5 or (time.perf_counter() < deadline and len(samples) < 400):
        kept = []
        for call, count in zip(calls, inner, strict=True):
            if gemm.get_num_threads() > 1:
                time.sleep(POOL_SETTLES)
                call()
            started = time.perf_counter()
            for _ in range(count):
                call()
            kept.append((time.perf_counter() - started) / count)
        samples.append(kept)
    return np.asarray(samples)


def measure(row: Row, seconds: float) -> tuple[float, list[tuple[str, float, float, float | None]]]:
    """(our median seconds, [(peer, score, half the quartile range, least)...])."""
    against = []
    if row.peer is not None:
        against.append((row.peer, row.name, row.scale, row.least))
    if row.also is not None:
        against.append(row.also)
    times = time_together([row.ours, *(peer for peer, *_ in against)], seconds)
    found = []
    for column, (_, name, scale, least) in enumerate(against, 1):
        ratios = scale * times[:, column] / times[:, 0]
        low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75))
        found.append((name, float(middle), float(high - low) / 2, least))
    return float(np.median(times[:, 0])), found


def set_threads(threads: int) -> None:
    """Every pool in the process to `threads`."""
    gemm.set_num_threads(threads)
    torch = torch_module()
    if torch is not None:
        torch.set_num_threads(threads)
    try:
        import threadpoolctl
    except ImportError:
        return
    threadpoolctl.threadpool_limits(threads)


def table(threads: int, options: argparse.Namespace, rng) -> None:
    """Prints the table for a number of threads, and how many rows reach their score."""
    from gemm.backends import ceiling

    set_threads(threads)
    peaks = {d: ceiling.fma_rate(d, threads) for d in ("float32", "float64")}
    rates = ", ".join(f"{d} {rate / 1e9:.0f} GFLOP/s" for d, rate in peaks.items())
    print(f"\n{threads} thread(s); multiply-add ceiling {rates}; one thread copies"
          f" {ceiling.bandwidth() / 1e9:.1f} GB/s (read + written), reads"
          f" {ceiling.read_bandwidth() / 1e9:.1f} GB/s")  # fmt: skip
    print(f"{'case':<28}{'ours':>11}{'GOP/s':>9}{'% peak':>7}   score         wanted")
    part, parts = map(int, options.part.split("/"))
    reached = wanted = 0
    for index, make in enumerate(rows(threads, options.quick, rng)):
        if index % parts != part - 1:
            continue
        row = make()
        if options.only and not row.label.startswith(tuple(options.only)):
            continue
        flag = "" if row.check() else "  WRONG RESULT"
        ours, scores = measure(row, options.seconds)
        rate = row.work / ours
        peak = peaks["float64" if row.dtype in ("float64", "complex128", "int64") else "float32"]
        text = []
        held = False
        for name, score, spread, least in scores:
            held |= least is not None and score >= least and not flag
            goal = "" if least is None else f" >= {least:.2f}"
            text.append(f"{score:5.2f} +-{spread:.2f} {name}{goal}")
        if row.least is not None and scores:
            wanted += 1
            reached += held
            flag = ("  ok" if held else "  BELOW") + flag
        print(f"{row.label:<28}{ours * 1e6:>9.1f}us{rate / 1e9:>9.1f}{100 * rate / peak:>7.0f}"
              f"   {', '.join(text)}{flag}", flush=True)  # fmt: skip
    print(f"{reached} of {wanted} rows reach their score")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gemm.perf.cpu_speed", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--only", nargs="+", help="labels that start with one of these")
    parser.add_argument("--part", default="1/1", help="I/N: every N-th row, from the I-th")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each row")
    options = parser.parse_args(arguments)
    from . import machine as environment

    if arguments is None:
        environment.restarted("gemm.perf.cpu_speed", max(options.threads))
    from gemm.backends.cpu.machine import machine

    level = next(iter(machine().levels)).name
    print(f"machine: {machine().name}, {machine().cores} cores, {level}")
    for kernel in environment.blas_kernels():
        print("BLAS:", *(f"{key}={value}" for key, value in kernel.items()))
    rng = np.random.default_rng()
    for threads in options.threads:
        table(threads, options, rng)


if __name__ == "__main__":
    main()
