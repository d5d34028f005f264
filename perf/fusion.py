"""``python -m gemm.perf.fusion``: a fused product against the same product and separate passes.

Each pattern is timed alternately and in one process: the bare product, the product followed by
NumPy's passes (in place where NumPy can), the fused product; with --torch also the product
followed by PyTorch's operators, and PyTorch alone, its product included. Beside the measured ratio
stands the bound: separate passes that move b bytes for each output element cost at least the
fraction b * (P / BW) / (2 K) of the product, P and BW measured here (the rate of the bare product,
the bandwidth of a copy that fits no cache). `reached`: the time saved as a share of that.

Times are medians, ratios the medians of those of each round.

Rule: saved >= 80 % of the bound wherever the bound is at least 5 % of the product.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

import gemm
from gemm.epilogues import stock

from .alternate import POOL_SETTLES
from .fusion_patterns import PATTERNS, Pattern, normal, silu

ENOUGH = 0.8
SMALLEST_BOUND = 0.05


@dataclass(frozen=True)
class Row:
    """One pattern at one size: medians of seconds, and of what each round gives: ratio of
    separate passes to fused, part of the product that was saved."""

    pattern: str
    m: int
    n: int
    k: int
    threads: int
    product: float
    separate: float
    fused: float
    bound: float
    ratio: float
    saved: float
    torch_passes: float | None = None
    torch: float | None = None

    @property
    def reached(self) -> float:
        return self.saved / self.bound

    @property
    def passed(self) -> bool:
        return self.bound < SMALLEST_BOUND or self.reached >= ENOUGH


def bandwidth(megabytes: int) -> float:
    """Bytes a second of a copy, read and written."""
    source = np.zeros(megabytes << 20, np.uint8)
    target = np.ones_like(source)
    best = math.inf
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - start)
    return 2 * source.size / best


def sampled(
    ways: dict[str, Callable[[], Any]], samples: int, settle: float = 0.0
) -> dict[str, list[float]]:
    """Seconds of each way, in rounds in which all take their turn; the first round compiles.

    settle: seconds of rest after a way whose name starts with 'torch', whose idle threads spin.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    for sample in range(samples + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if sample:
                times[name].append(time.perf_counter() - start)
            if settle and name.startswith("torch"):
                time.sleep(settle)
    return times


def _in_torch(
    pattern: Pattern, a: Any, b: Any, d: Any, operands: dict[str, Any], threads: int
) -> dict[str, Callable[[], Any]]:
    import torch

    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    x, y, z = (torch.from_numpy(array) for array in (a, b, d))
    tensors = {name: torch.from_numpy(array) for name, array in operands.items()}

    def own_product():
        gemm.matmul(a, b, d, threads=threads)
        return pattern.torch_passes(z, tensors)

    def all_torch():
        torch.matmul(x, y, out=z)
        return pattern.torch_passes(z, tensors)

    return {"torch passes": own_product, "torch": all_torch}


def measure(
    pattern: Pattern, m: int, n: int, k: int, threads: int, samples: int, rate_of_bytes: float,
    torch: bool = False,
) -> Row:  # fmt: skip
    """All ways, sampled in turn so that a busy machine disturbs them alike."""
    dtype = np.dtype(np.float32)
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    operands = pattern.operands(m, n, dtype)
    program = pattern.program(operands)
    d = np.empty((m, n), dtype)
    # Every way writes to arrays that are there already.
    out: Any = gemm.matmul(a, b, epilogue=program, threads=threads)
    ways: dict[str, Callable[[], Any]] = {
        "product": lambda: gemm.matmul(a, b, d, threads=threads),
        "separate": lambda: pattern.passes(gemm.matmul(a, b, d, threads=threads), operands),
        "fused": lambda: gemm.matmul(a, b, out, epilogue=program, threads=threads),
    }
    if torch:
        ways |= _in_torch(pattern, a, b, d, operands, threads)
    times = sampled(ways, samples, POOL_SETTLES if threads > 1 else 0.0)
    product, separate, fused = (times[name] for name in ("product", "separate", "fused"))
    rate = 2 * m * n * k / median(product)
    return Row(
        pattern.name, m, n, k, threads, median(product), median(separate), median(fused),
        bound=pattern.moved * dtype.itemsize * (rate / rate_of_bytes) / (2 * k),
        ratio=median(x / y for x, y in zip(separate, fused, strict=True)),
        saved=median((x - y) / z for x, y, z in zip(separate, fused, product, strict=True)),
        torch_passes=median(times["torch passes"]) if torch else None,
        torch=median(times["torch"]) if torch else None,
    )  # fmt: skip


@gemm.epilogue
def swiglu_backward_of_stored(acc, z):
    """stock.swiglu_backward without the activation, for a forward pass that stored it."""
    gate, up = z
    s = gemm.sigmoid(gate)
    silu = gate * s
    d_gate = acc * up * (s + silu * (1.0 - s))
    inner = gemm.per_row((gate * d_gate + up * (acc * silu)) * (1.0 / 128), "add", 128)
    return {"out": (d_gate, acc * silu), "inner": inner}


def recomputing(
    tokens: int, width: int, inner: int, layers: int, threads: int, samples: int
) -> str:
    """SwiGLU's backward pass and the weight gradient that needs its activation, through `layers`
    layers, both ways: their activations (tokens x inner) kept since the forward pass, or computed
    again into one array that all of them use."""
    dy, down = normal(tokens, width, dtype="f4"), normal(width, inner, dtype="f4")
    z = [normal(tokens, 2 * inner, dtype="f4") for _ in range(layers)]
    kept = [silu(x[:, ::2]) * x[:, 1::2] for x in z]
    dw = np.empty((inner, width), np.float32)
    again: Any = gemm.matmul(dy, down, epilogue=stock.swiglu_backward()(z=z[0]), threads=threads)
    stored: Any = {key: again[key] for key in ("out", "inner")}

    def from_stored():
        for x, activation in zip(z, kept, strict=True):
            program = swiglu_backward_of_stored(z=x)
            gemm.matmul(dy, down, stored, epilogue=program, threads=threads)
            gemm.matmul(activation.T, dy, dw, threads=threads)

    def from_recomputed():
        for x in z:
            gemm.matmul(dy, down, again, epilogue=stock.swiglu_backward()(z=x), threads=threads)
            gemm.matmul(again["activation"].T, dy, dw, threads=threads)

    times = sampled({"stored": from_stored, "recomputed": from_recomputed}, samples)
    ratio = median(x / y for x, y in zip(times["stored"], times["recomputed"], strict=True))
    return (
        f"backward, {layers} layers, {tokens} tokens, width {width}, inner {inner}, {threads} "
        f"threads: activations stored {1e3 * median(times['stored']):.1f} ms, recomputed "
        f"{1e3 * median(times['recomputed']):.1f} ms, ratio {ratio:.3f}, "
        f"{layers * tokens * inner} elements fewer kept, {tokens * inner} of them in use at a time"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gemm.perf.fusion",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=int, nargs="+", default=[2048], help="M = N")
    parser.add_argument("--k", type=int, nargs="+", default=[128, 512, 1024, 2048])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--match", default="", help="patterns whose name contains this")
    parser.add_argument("--megabytes", type=int, default=256, help="size of the copy that gives BW")
    parser.add_argument("--recompute", action="store_true", help="only: activation kept or not")
    parser.add_argument("--layers", type=int, default=8, help="of the backward pass")
    parser.add_argument("--torch", action="store_true", help="PyTorch's operators too")
    parser.add_argument("--json", help="also write the rows to this file")
    given = parser.parse_args(arguments)
    if given.recompute:
        for size in given.size:
            for threads in given.threads:
                print(recomputing(size, size, size, given.layers, threads, given.samples))
        return 0
    rate_of_bytes = bandwidth(given.megabytes)
    print(f"float32, copy bandwidth {rate_of_bytes / 1e9:.1f} GB/s; times in ms")
    head = (
        f"{'pattern':18} {'M=N':>5} {'K':>5} {'thr':>3} {'product':>9} {'separate':>9} {'fused':>9}"
    )
    print(f"{head} {'ratio':>6} {'bound':>7} {'reached':>8} {'PyTorch passes, all':>20}")
    rows = []
    for size in given.size:
        for k in given.k:
            for threads in given.threads:
                for pattern in (p for p in PATTERNS if given.match in p.name):
                    row = measure(pattern, size, size, k, threads, given.samples, rate_of_bytes,
                                  given.torch)  # fmt: skip
                    rows.append(row)
                    times = " ".join(
                        f"{1e3 * t:9.2f}" for t in (row.product, row.separate, row.fused)
                    )
                    others = "".join(
                        f" {1e3 * t:9.2f}" for t in (row.torch_passes, row.torch) if t is not None
                    )
                    print(
                        f"{row.pattern:18} {size:5} {k:5} {threads:3} {times} {row.ratio:6.2f} "
                        f"{row.bound:7.1%} {row.reached:8.0%}{others}"
                        f"{'' if row.passed else ' below'}"
                    )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
