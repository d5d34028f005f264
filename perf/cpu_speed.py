"""The table of CPU speeds: every dtype and shape class, against NumPy and PyTorch, in one process.

    python -m gemm.perf.cpu_speed [--threads 1 2] [--quick] [--only bfloat16 ...]

Contenders run alternately on fresh random operands; a figure is the ratio of medians. Results
are checked against float64 or exact integers first. The multiply-add ceiling of the run stands
beside each line. Variables that steer OpenBLAS are unset in a fresh process.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

import gemm


@dataclass
class Line:
    """One comparison: ours and a peer's, both callables without arguments."""

    label: str
    dtype: str
    work: float
    ours: Callable[[], object]
    peer: Callable[[], object] | None
    peer_name: str
    check: Callable[[], bool]


def _random(shape, dtype: str, rng):
    if dtype in ("bfloat16",):
        import ml_dtypes

        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    kind = np.dtype(dtype).kind
    if kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -100), min(info.max, 100), shape).astype(dtype)
    x = rng.standard_normal(shape)
    if kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def _right(out, a, b) -> bool:
    """Whether out is a @ b within K eps, or exactly for integers."""
    if out.dtype.kind in "iu":
        exact = a.astype(np.float64) @ b.astype(np.float64)
        return bool(np.array_equal(exact.astype(np.int64).astype(out.dtype), out))
    wide = np.complex128 if out.dtype.kind == "c" else np.float64
    exact = a.astype(wide) @ b.astype(wide)
    bound = np.abs(a.astype(wide)) @ np.abs(b.astype(wide))
    eps = {"float16": 2**-11, "bfloat16": 2**-8}.get(out.dtype.name)
    eps = eps or float(np.finfo(out.dtype).eps)
    single = out.dtype.name not in ("float64", "complex128")
    slack = eps + a.shape[1] * (2.0**-23 if single else 2.0**-52)
    return bool((np.abs(out.astype(wide) - exact) <= slack * bound + 1e-30).all())


def square(dtype: str, n: int, threads: int, rng, out: str | None = None) -> Line:
    """n x n by n x n of one dtype."""
    a, b = _random((n, n), dtype, rng), _random((n, n), dtype, rng)
    c = np.empty((n, n), out or a.dtype)
    options = {"dtype": out} if out else {}
    peer, name = None, ""
    torch = _torch()
    if dtype in ("bfloat16", "float16", "int8") and torch is not None:
        kind = getattr(torch, dtype)
        ta = torch.from_numpy(a.astype(np.float32) if dtype == "bfloat16" else a).to(kind)
        tb = torch.from_numpy(b.astype(np.float32) if dtype == "bfloat16" else b).to(kind)
        peer = (lambda: torch._int_mm(ta, tb)) if dtype == "int8" else (lambda: torch.mm(ta, tb))
        name = "torch"
        if dtype == "float16" and n > 512:
            peer = None
    elif dtype in ("float32", "float64", "complex64", "complex128"):
        peer, name = (lambda: np.matmul(a, b, out=c)), "numpy"
    elif n <= 256:
        peer, name = (lambda: np.matmul(a, b, out=c)), "numpy"

    def ours():
        return gemm.matmul(a, b, out=c, **options)

    def check():
        c.view(np.uint8).fill(0xFF)
        ours()
        return _right(c, a, b)

    work = 2.0 * n**3 * (4 if np.dtype(a.dtype).kind == "c" else 1)
    return Line(f"{dtype} n={n}", dtype, work, ours, peer, name, check)


def shaped(dtype: str, m: int, n: int, k: int, rng, b_order: Literal["C", "F"] = "C") -> Line:
    """m x k by k x n with B in C or Fortran order, against NumPy."""
    a = _random((m, k), dtype, rng)
    b = np.asarray(_random((k, n), dtype, rng), order=b_order)
    c = np.empty((m, n), dtype)

    def check():
        c.fill(np.nan)
        gemm.matmul(a, b, out=c)
        return _right(c, a, b)

    label = f"{dtype} {m}x{k}x{n} {b_order}"
    return Line(
        label, dtype, 2.0 * m * n * k, lambda: gemm.matmul(a, b, out=c),
        lambda: np.matmul(a, b, out=c), "numpy", check,
    )  # fmt: skip


def layout(dtype: str, n: int, kind: str, rng) -> Line:
    """Stepped or transposed operands against the same product of contiguous ones."""
    a, b = _random((n, n), dtype, rng), _random((n, n), dtype, rng)
    c = np.empty((n, n), dtype)
    if kind == "stepped":
        x = _random((2 * n, 2 * n), dtype, rng)[::2, ::2]
        y = _random((2 * n, 2 * n), dtype, rng)[::2, ::2]
    else:
        x, y = (v.T if t == "T" else v for v, t in zip((a, b), kind, strict=True))

    def check():
        c.fill(np.nan)
        gemm.matmul(x, y, out=c)
        return _right(c, x, y)

    return Line(
        f"{dtype} n={n} {kind}", dtype, 2.0 * n**3, lambda: gemm.matmul(x, y, out=c),
        lambda: gemm.matmul(a, b, out=c), "own contiguous", check,
    )  # fmt: skip


def batched(dtype: str, count: int, n: int, rng) -> Line:
    """`count` n x n products in one call against NumPy."""
    a, b = _random((count, n, n), dtype, rng), _random((count, n, n), dtype, rng)
    c = np.empty_like(a)

    def check():
        c.fill(np.nan)
        gemm.matmul(a, b, out=c)
        return bool(np.allclose(c, np.matmul(a.astype("f8"), b.astype("f8")), rtol=1e-4))

    return Line(
        f"{dtype} {count} x {n}x{n}", dtype, 2.0 * count * n**3,
        lambda: gemm.matmul(a, b, out=c), lambda: np.matmul(a, b, out=c), "numpy", check,
    )  # fmt: skip


def _torch():
    try:
        import torch
    except ImportError:
        return None
    return torch


def lines(threads: int, quick: bool, rng) -> Iterator[Callable[[], Line]]:
    """Every line of the table, made when its turn comes."""
    sizes = (512, 1024) if quick else (512, 1024, 2048, 4096)
    for dtype in ("float32", "float64"):
        for n in (4, 8, 16, 32, 64, 128, 256, *sizes):
            yield lambda d=dtype, n=n: square(d, n, threads, rng)
    for n in (512, 1024) if quick else (512, 1024, 2048):
        yield lambda n=n: square("bfloat16", n, threads, rng)
        yield lambda n=n: square("int8", n, threads, rng, "int32")
        yield lambda n=n: square("complex64", n, threads, rng)
        yield lambda n=n: square("complex128", n, threads, rng)
    for dtype in ("float16", "int16", "int32", "int64"):
        for n in (256, 1024):
            yield lambda d=dtype, n=n: square(d, n, threads, rng)
    for dtype in ("float32", "float64"):
        for m, n, k, order in (
            (1, 4096, 4096, "C"), (1, 4096, 4096, "F"), (4, 4096, 4096, "C"),
            (4, 4096, 4096, "F"), (16, 2048, 2048, "C"), (16, 2048, 2048, "F"),
            (64, 64, 65536, "C"), (4096, 4096, 16, "C"),
        ):  # fmt: skip
            yield lambda d=dtype, m=m, n=n, k=k, o=order: shaped(d, m, n, k, rng, o)
        for kind in ("TN", "NT", "TT", "stepped"):
            yield lambda d=dtype, kind=kind: layout(d, 1024, kind, rng)
    for n, count in ((3, 1000), (9, 500)):
        yield lambda n=n, count=count: batched("float64", count, n, rng)


def time_pair(line: Line, seconds: float = 0.6) -> tuple[float, float]:
    """(ours, the peer's) median seconds a call, alternately; nan where there is no peer."""
    calls = [line.ours] + ([line.peer] if line.peer else [])
    inner = []
    for call in calls:
        call()
        started = time.perf_counter()
        call()
        once = time.perf_counter() - started
        inner.append(max(1, int(1e-3 / max(once, 1e-7))))
    samples: list[list[float]] = [[] for _ in calls]
    deadline = time.perf_counter() + seconds
    while len(samples[0]) < 5 or (time.perf_counter() < deadline and len(samples[0]) < 200):
        for call, count, kept in zip(calls, inner, samples, strict=True):
            started = time.perf_counter()
            for _ in range(count):
                call()
            kept.append((time.perf_counter() - started) / count)
    medians = [float(np.median(kept)) for kept in samples]
    return medians[0], medians[1] if line.peer else float("nan")


def set_threads(threads: int) -> None:
    """Every pool in the process to `threads`."""
    gemm.set_num_threads(threads)
    torch = _torch()
    if torch is not None:
        torch.set_num_threads(threads)
    try:
        import threadpoolctl
    except ImportError:
        return
    threadpoolctl.threadpool_limits(threads)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m gemm.perf.cpu_speed", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument("--only", nargs="+", help="labels that start with one of these")
    parser.add_argument("--seconds", type=float, default=0.6, help="for each line")
    options = parser.parse_args(arguments)
    from . import machine as environment

    if arguments is None:
        environment.restarted("gemm.perf.cpu_speed", max(options.threads))
    from gemm.backends import ceiling
    from gemm.backends.cpu.machine import machine

    print(
        f"machine: {machine().name}, {machine().cores} cores, {next(iter(machine().levels)).name}"
    )
    try:
        import threadpoolctl

        for pool in threadpoolctl.threadpool_info():
            if pool.get("internal_api") == "openblas":
                print(f"OpenBLAS {pool['version']}, kernel {pool.get('architecture')}")
    except ImportError:
        pass
    rng = np.random.default_rng()
    for threads in options.threads:
        set_threads(threads)
        ceilings = {d: ceiling.fma_rate(d, threads) for d in ("float32", "float64")}
        print(
            f"\n{threads} thread(s); multiply-add ceiling "
            + ", ".join(f"{d} {rate / 1e9:.0f} GFLOP/s" for d, rate in ceilings.items())
        )
        print(f"{'case':<28}{'ours':>10}{'GFLOP/s':>10}{'% f32':>7}  {'ratio':>6}  peer")
        for make in lines(threads, options.quick, rng):
            line = make()
            if options.only and not line.label.startswith(tuple(options.only)):
                continue
            right = line.check()
            ours, peer = time_pair(line, options.seconds)
            rate = line.work / ours
            share = (
                rate / ceilings["float64" if line.dtype in ("float64", "complex128") else "float32"]
            )
            ratio = f"{peer / ours:6.2f}" if line.peer else "     -"
            flag = "" if right else "  WRONG RESULT"
            print(
                f"{line.label:<28}{ours * 1e6:>8.1f}us{rate / 1e9:>10.1f}{100 * share:>7.0f}"
                f"  {ratio}  {line.peer_name}{flag}",
                flush=True,
            )


if __name__ == "__main__":
    main()
