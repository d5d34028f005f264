"""Scaling over threads: large float32 and float64 squares beside PyTorch and NumPy.

    python -m gemm.perf.scaling --threads 1 2 4 8 16 --sizes 1024 2048 4096 8192

A row is one dtype, size and thread count. Its contenders run in turn in each round; a ratio is
the median over rounds; the speed-up is against our rate on the fewest threads, at this size or the
largest smaller one that was measured. Every result must have the bits of the other thread counts'
(a checksum) and of one thread's (512 rows): else exit code 1. A row that would take more than
--seconds, judged by a smaller one, is left out.
"""

from __future__ import annotations

import argparse
import sys
import time
import zlib

import numpy as np

import gemm

from . import machine as environment
from .alternate import POOL_SETTLES
from .cpu_speed import set_threads, torch_module

ROUNDS = 3, 7  # at least and at most
SAMPLED = 512  # rows that are compared with one thread's
BRISK = 0.05  # seconds: quicker calls are timed after an untimed one of their own


def contenders(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> dict:
    """{name: a call without arguments}, ours first, into `out`; the others into one of theirs."""
    theirs, torch = np.empty_like(out), torch_module()
    calls = {"gemm": lambda: gemm.matmul(a, b, out=out)}
    calls["NumPy"] = lambda: np.matmul(a, b, out=theirs)
    if torch is not None:
        x, y, z = map(torch.from_numpy, (a, b, theirs))
        calls["PyTorch"] = lambda: torch.mm(x, y, out=z)
    return calls


def sample(calls: dict, seconds: float) -> np.ndarray:
    """Seconds a call, one row a round and one column a contender, for about `seconds` in all."""
    samples: list[list[float]] = []
    deadline = time.perf_counter() + seconds
    least, most = ROUNDS
    while len(samples) < least or (time.perf_counter() < deadline and len(samples) < most):
        times = []
        for name, call in calls.items():
            for warm in (True, False):
                started = time.perf_counter()
                call()
                taken = time.perf_counter() - started
                if warm and taken > BRISK and samples:
                    break
            times.append(taken)
            # OpenBLAS's idle pool spins long after a call, OpenMP's some milliseconds.
            time.sleep(POOL_SETTLES if name == "NumPy" else POOL_SETTLES / 10)
        samples.append(times)
    return np.asarray(samples)


def scale(dtype: str, options: argparse.Namespace) -> bool:
    """Prints the rows of a dtype; whether every result has the same bits."""
    rng = np.random.default_rng(0)
    round_of: dict[int, tuple[int, float]] = {}  # threads: size and seconds of its last round
    base = None  # (size, threads, GFLOP/s) that speed-ups are against
    equal = True
    for n in sorted(options.sizes):
        a, b = (rng.random((n, n), np.dtype(dtype)) for _ in range(2))
        out = np.zeros_like(a)
        calls, step = contenders(a, b, out), max(1, n // SAMPLED)
        alone = gemm.matmul(a[::step], b, threads=1)
        first = None
        for threads in sorted(options.threads):
            size, seconds = round_of.get(threads, (n, 0.0))
            if ROUNDS[0] * seconds * (n / size) ** 3 > options.seconds:
                print(f"{dtype} {n:>6} {threads:>8}  left out: too long", flush=True)
                continue
            set_threads(threads)
            times = sample(calls, options.seconds / 4)
            bits = zlib.crc32(out.data)
            first = bits if first is None else first
            same = bits == first and np.array_equal(out[::step], alone)
            equal &= same
            round_of[threads] = n, float(times.sum(1).min())
            rates = 2e-9 * n**3 / np.median(times, 0)
            if base is None or (threads <= base[1] and n > base[0]):
                base = n, threads, rates[0]
            against = np.median(times[:, 1:] / times[:, :1], 0)
            text = "".join(f"{r:>9.0f}{q:>7.2f}" for r, q in zip(rates[1:], against, strict=True))
            print(f"{dtype} {n:>6} {threads:>8} {rates[0]:>8.0f}{rates[0] / base[2]:>9.2f} of"
                  f" {base[0]:<5}{text}{'' if same else '  OTHER BITS'}", flush=True)  # fmt: skip
    return equal


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gemm.perf.scaling", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1024, 2048])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "float64"])
    parser.add_argument("--seconds", type=float, default=12, help="at most, for each row")
    options = parser.parse_args(arguments)
    if arguments is None:
        environment.restarted("gemm.perf.scaling", max(options.threads))
    print(f"{environment.cpu_name()}, {environment.usable_cpus()} CPUs")
    names = [name for name in ("NumPy", "PyTorch") if name != "PyTorch" or torch_module()]
    for kernel in environment.blas_kernels():
        print("library:", *(f"{key}={value}" for key, value in kernel.items()))
    print(f"{'':7} {'n':>6} {'threads':>8} {'GFLOP/s':>8} {'speed-up':>8} of n  "
          + "".join(f"{name:>9} ratio" for name in names))  # fmt: skip
    equal = [scale(dtype, options) for dtype in options.dtypes]
    print("every result has the same bits" if all(equal) else "RESULTS DIFFER")
    return 0 if all(equal) else 1


if __name__ == "__main__":
    sys.exit(main())
