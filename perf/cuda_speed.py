"""Checks and times products of device arrays against cuBLAS, in one run on one GPU.

    python -m gemm.perf.cuda_speed [--only bf16,f32,...]

cuBLAS is called through PyTorch in the same process. Operands are random, fresh for every check,
and several sets rotate through a timing so that no cache holds them all; times are device
events, the median of rounds in which both sides take turns. A result is checked against float64
before it is timed: `out` is poisoned first, and a wrong product makes the run fail.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable

import gemm

ROUNDS = 7
TARGET_MS = 8.0  # device time of one sample
LONG_MS, SETTLE_MS = 1.0, 400.0  # calls as long as this run so long before they are timed


def _torch():
    try:
        import torch
    except ImportError:
        sys.exit("cuda_speed compares with cuBLAS through PyTorch, which is not installed")
    if not torch.cuda.is_available():
        sys.exit("cuda_speed needs a CUDA device")
    return torch


def median_ms(sides: list[Callable[[int], None]]) -> list[float]:
    """Median device time in ms of each side's call(i); sides take turns.

    Where calls are long the chip's power decides its clock, slowly: each side runs untimed until
    the clock is its own, or it would be timed at its neighbour's.
    """
    torch = _torch()

    def sample(call, count: int, ahead: int = 0) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        for i in range(ahead):
            call(i)
        start.record()
        for i in range(count):
            call(i)
        stop.record()
        torch.cuda.synchronize()
        return start.elapsed_time(stop) / count

    counts, ahead = [], []
    for call in sides:
        sample(call, 2)
        once = max(sample(call, 2), 1e-3)
        counts.append(max(2, min(200, round(TARGET_MS / once))))
        ahead.append(round(SETTLE_MS / once) if once > LONG_MS else 0)
    times: list[list[float]] = [[] for _ in sides]
    for _ in range(ROUNDS):
        for side, call in enumerate(sides):
            times[side].append(sample(call, counts[side], ahead[side]))
    return [statistics.median(t) for t in times]


def random(shape, dtype):
    torch = _torch()
    if dtype == torch.int8:
        return torch.randint(-128, 128, shape, device="cuda", dtype=torch.int8)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return torch.randn(shape, device="cuda", dtype=wide).to(dtype)


def column_major(x):
    return x.transpose(-1, -2).contiguous().transpose(-1, -2)


def error(result, a, b) -> float:
    """Relative Frobenius error against float64; infinite where anything was not written."""
    want = a.double() @ b.double()
    found = result.double()
    if not bool(found.isfinite().all()):
        return math.inf
    return float((found - want).norm() / want.norm())


class Report:
    """The table; `failed` counts wrong products, `missed` ratios below target."""

    def __init__(self):
        self.failed, self.missed = 0, 0
        print(f"{'case':44s} {'ours':>10s} {'cuBLAS':>10s} {'rate':>8s} {'ratio':>7s}  target")

    def row(self, name, ours, theirs, work, target, note="") -> float:
        ratio = theirs / ours
        self.missed += ratio < target
        mark = " " if ratio >= target else "<"
        rate = work / ours / 1e9
        print(
            f"{name:44s} {ours * 1e3:8.1f}us {theirs * 1e3:8.1f}us {rate:7.1f}T {ratio:7.3f} {mark}"
            f" {target:.2f}  {note}",
            flush=True,
        )
        return ratio

    def check(self, name, value, limit) -> str:
        if not value <= limit:
            self.failed += 1
            print(f"{name:44s} WRONG: error {value:.3g}, allowed {limit:.3g}", flush=True)
        return f"error {value:.1e}"


def square(report: Report, name, kind, n, target, limit, theirs, turned=False, out=None, **options):
    torch = _torch()
    out = out or kind
    sets = []
    for _ in range(3 if n <= 4096 else 2):
        a, b = random((n, n), kind), random((n, n), kind)
        sets.append(
            (a, column_major(b) if turned else b, torch.empty(n, n, device="cuda", dtype=out))
        )
    a, b, c = sets[0]
    c.fill_(float("nan") if out.is_floating_point else 77)
    gemm.matmul(a, b, c, **options)
    note = report.check(name, error(c, a, b), limit)
    count = len(sets)

    def our_side(i):
        gemm.matmul(*sets[i % count], **options)

    ours, other = median_ms([our_side, lambda i: theirs(*sets[i % count])])
    report.row(f"{name} {n}", ours, other, 2 * n**3, target, note)


def squares(report: Report, wanted) -> None:
    torch = _torch()
    one = torch.ones((), device="cuda")

    def mm(a, b, c):
        torch.mm(a, b, out=c)

    def mm_tf32(a, b, c):
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.mm(a, b, out=c)
        torch.backends.cuda.matmul.allow_tf32 = False

    def scaled(fast):
        def call(a, b, c):
            torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast, out=c)

        return call

    def int_mm(a, b, c):
        torch._int_mm(a, b, out=c)

    f8 = {"out": torch.bfloat16, "turned": True, "scale_a": one, "scale_b": one}
    cases: tuple = (
        ("bf16", torch.bfloat16, 1.0, 4e-3, mm, {}),
        ("bf16 B turned", torch.bfloat16, 1.0, 4e-3, mm, {"turned": True}),
        ("f16", torch.float16, 1.0, 6e-4, mm, {}),
        ("f32", torch.float32, 0.95, 3e-6, mm, {}),
        ("f32 B turned", torch.float32, 0.95, 3e-6, mm, {"turned": True}),
        ("tf32", torch.float32, 0.95, 1e-3, mm_tf32, {"precision": "tf32", "turned": True}),
        ("tf32 B row-major", torch.float32, 0.0, 1e-3, mm_tf32, {"precision": "tf32"}),
        ("tf32x3 (against f32)", torch.float32, 1.8, 3e-6, mm, {"precision": "tf32x3"}),
        ("f64", torch.float64, 0.95, 1e-13, mm, {}),
        ("int8", torch.int8, 0.95, 0.0, int_mm,
         {"out": torch.int32, "turned": True, "dtype": "int32"}),
        ("int8 B row-major", torch.int8, 0.0, 0.0, int_mm, {"out": torch.int32, "dtype": "int32"}),
        ("fp8", torch.float8_e4m3fn, 0.9, 4e-3, scaled(False), f8),
        ("fp8 fast", torch.float8_e4m3fn, 0.9, 4e-3, scaled(True), {**f8, "fast": True}),
    )  # fmt: skip
    for name, dtype, target, limit, theirs, options in cases:
        if not wanted or name.split()[0] in wanted:
            for n in (4096, 8192):
                square(report, name, dtype, n, target, limit, theirs, **options)


PROJECTIONS = ((4096, 4096), (4096, 14336), (14336, 4096))  # K, N of a transformer's layers
TOKENS = (1, 16, 128, 4096, 16384)


def shapes(report: Report) -> None:
    """bf16 over many shapes; bits of a projection must not depend on the token count."""
    torch = _torch()
    cases: list[tuple] = [((m, k), (k, n)) for k, n in PROJECTIONS for m in TOKENS]
    cases += [((1000, 1001), (1001, 999)), ((511, 511), (511, 511)), ((4096, 64), (64, 4096))]
    cases += [((65536, 128), (128, 128)), ((128, 8192), (8192, 128)), ((8192, 8192), (8192, 32))]
    cases += [((2048, 2048), (2048, 2048)), ((1024, 1024), (1024, 1024))]
    cases += [((64, 512, 512), (64, 512, 512))]
    ratios = []
    for left, right in cases:
        size = 2 * (math.prod(left) + math.prod(right))
        count = max(2, min(8, int(2e8 / size) + 1))
        sets = [(random(left, torch.bfloat16), random(right, torch.bfloat16)) for _ in range(count)]
        name = f"bf16 {'x'.join(map(str, left))} @ {'x'.join(map(str, right))}"
        a, b = sets[0]
        found = gemm.matmul(a, b)
        note = report.check(name, error(found, a, b), 4e-3)
        if left[0] in TOKENS and len(left) == 2:
            report.check(name + " rows", float((gemm.matmul(a[:1], b) != found[:1]).sum()), 0)

        def ours(i, sets=sets, count=count):
            gemm.matmul(*sets[i % count])

        def theirs(i, sets=sets, count=count):
            torch.matmul(*sets[i % count])

        mine, other = median_ms([ours, theirs])
        work = 2 * math.prod(left) * right[-1]
        ratios.append(report.row(name, mine, other, work, 0.0, note))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    report.missed += mean < 0.95
    print(f"geometric mean over {len(ratios)} shapes: {mean:.3f} (target 0.95)")


def slices(report: Report) -> None:
    torch = _torch()
    for m, k, slices_of_k in ((32, 65536, 64), (128, 16384, 32)):
        sets = [(random((m, k), torch.bfloat16), random((k, m), torch.bfloat16)) for _ in range(8)]
        a, b = sets[0]
        name = f"split_k={slices_of_k} {m}x{m}x{k}"
        note = report.check(name, error(gemm.matmul(a, b, split_k=slices_of_k), a, b), 4e-3)

        def ours(i, sets=sets, slices_of_k=slices_of_k):
            gemm.matmul(*sets[i % 8], split_k=slices_of_k)

        mine, other = median_ms([ours, lambda i, sets=sets: torch.mm(*sets[i % 8])])
        report.row(name, mine, other, 2 * m * m * k, 0.9, note)


def accuracy(report: Report) -> None:
    """tf32x3 at K = 4096 against the FMA chain, both against float64."""
    torch = _torch()
    a, b = random((1024, 4096), torch.float32), random((4096, 1024), torch.float32)
    chain = error(gemm.matmul(a, b), a, b)
    split = error(gemm.matmul(a, b, precision="tf32x3"), a, b)
    report.check("tf32x3 error / chain error, K = 4096", split / chain, 4.0)
    print(f"K = 4096: chain {chain:.2e}, tf32x3 {split:.2e}, ratio {split / chain:.2f} (target 4)")


def host_cost(report: Report) -> None:
    """Microseconds of the calling thread for one 64 cubed float32 product."""
    torch = _torch()
    a, b = random((64, 64), torch.float32), random((64, 64), torch.float32)

    def once(call) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            call()
        return (time.perf_counter() - start) * 1e3

    sides = (lambda: gemm.matmul(a, b), lambda: torch.mm(a, b))
    for side in sides:
        once(side)
    costs = [[once(side) for side in sides] for _ in range(7)]
    ours, theirs = (statistics.median(c[i] for c in costs) for i in (0, 1))
    report.missed += ours > theirs
    print(f"host cost of one call, 64 cubed: ours {ours:.1f} us, torch.mm {theirs:.1f} us")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="comma-separated: squares' names, shapes, ...")
    wanted = [x for x in parser.parse_args().only.split(",") if x]
    torch = _torch()
    major, minor = torch.cuda.get_device_capability()
    print(f"{torch.cuda.get_device_name()} sm_{major}{minor}, PyTorch {torch.__version__},"
          f" CUDA {torch.version.cuda}")  # fmt: skip
    torch.backends.cuda.matmul.allow_tf32 = False
    report = Report()
    squares(report, wanted)
    for name, part in (("shapes", shapes), ("split", slices), ("accuracy", accuracy),
                       ("host", host_cost)):  # fmt: skip
        if not wanted or name in wanted:
            part(report)
    print(f"{report.failed} wrong, {report.missed} below target")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
