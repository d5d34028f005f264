"""``python -m gemm.perf.fusion``: a fused product against the same product and separate passes.

Each pattern is timed three ways, alternately and in one process: the bare product, the product
followed by NumPy's passes (in place where NumPy can), and the fused product. Beside the
measured ratio stands the bound: separate passes that move b bytes for each output element cost at
least the fraction b * (P / BW) / (2 K) of the product, P and BW measured here (the rate of the
bare product, the bandwidth of a copy that fits no cache). `reached`: the time saved as a share of
that.

Rule: saved >= 80 % of the bound wherever the bound is at least 5 % of the product.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import gemm
from gemm.epilogues import stock

ENOUGH = 0.8
SMALLEST_BOUND = 0.05


@dataclass(frozen=True)
class Pattern:
    """passes(d, operands): the separate operators on the product d; program: the fused one;
    moved: bytes that the separate operators move for each output element, in elements."""

    name: str
    program: Callable[[dict[str, Any]], Any]
    passes: Callable[[Any, dict[str, Any]], Any]
    operands: Callable[[int, int, np.dtype], dict[str, Any]]
    moved: float


def _normal(*shape: int, dtype: Any) -> Any:
    return np.random.default_rng(1).standard_normal(shape, np.float32).astype(dtype)


def _residual_norm(d: Any, o: dict[str, Any]) -> Any:
    d += o["residual"]
    square = np.einsum("mn,mn->m", d, d)
    return d, square, d * o["gamma"]


def _silu(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def _gate(d: Any, o: dict[str, Any]) -> Any:
    return _silu(d[:, ::2]) * d[:, 1::2]


def _gate_backward(d: Any, o: dict[str, Any]) -> Any:
    gate, up = o["z"][:, ::2], o["z"][:, 1::2]
    with np.errstate(over="ignore"):
        s = 1 / (1 + np.exp(-gate))
    dz = np.empty_like(o["z"])
    np.multiply(d, gate * s, out=dz[:, 1::2])
    np.multiply(d, up * (s + gate * s * (1 - s)), out=dz[:, ::2])
    return dz, gate * s * up, np.einsum("mn,mn->m", o["z"], dz)


def _norm_backward(d: Any, o: dict[str, Any]) -> Any:
    hat = o["x"] * o["r"]
    d_gamma = np.einsum("mn,mn->n", d, hat)
    d *= o["gamma"]
    d -= hat * o["s"]
    d *= o["r"]
    d += o["gradient"]
    return d, hat * o["gamma"], d_gamma


PATTERNS = (
    Pattern("bias", lambda o: stock.bias(**o), lambda d, o: np.add(d, o["bias"], out=d),
            lambda m, n, t: {"bias": _normal(n, dtype=t)}, 2),
    Pattern("bias relu", lambda o: stock.relu(**o),
            lambda d, o: np.maximum(np.add(d, o["bias"], out=d), 0, out=d),
            lambda m, n, t: {"bias": _normal(n, dtype=t)}, 4),
    Pattern("residual rmsnorm", lambda o: stock.residual_rmsnorm()(**o), _residual_norm,
            lambda m, n, t: {"residual": _normal(m, n, dtype=t), "gamma": _normal(n, dtype=t)}, 6),
    Pattern("swiglu", lambda o: stock.swiglu(), _gate, lambda m, n, t: {}, 4.5),
    Pattern("swiglu backward", lambda o: stock.swiglu_backward()(**o), _gate_backward,
            lambda m, n, t: {"z": _normal(m, 2 * n, dtype=t)}, 22),
    Pattern("rmsnorm backward", lambda o: stock.residual_rmsnorm_backward()(**o), _norm_backward,
            lambda m, n, t: {key: _normal(m, n, dtype=t) for key in ("gradient", "x")}
            | {key: _normal(m, 1, dtype=t) for key in "rs"} | {"gamma": _normal(n, dtype=t)}, 19),
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One pattern at one size; seconds are the quickest of all samples."""

    pattern: str
    m: int
    n: int
    k: int
    threads: int
    product: float
    separate: float
    fused: float
    bound: float

    @property
    def ratio(self) -> float:
        return self.separate / self.fused

    @property
    def reached(self) -> float:
        return (self.separate - self.fused) / (self.bound * self.product)

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


def measure(
    pattern: Pattern, m: int, n: int, k: int, threads: int, samples: int, rate_of_bytes: float
) -> Row:
    """All three ways, sampled in turn so that a busy machine disturbs them alike."""
    dtype = np.dtype(np.float32)
    a, b = _normal(m, k, dtype=dtype), _normal(k, n, dtype=dtype)
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
    best = dict.fromkeys(ways, math.inf)
    for sample in range(samples + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if sample:  # the first one compiles
                best[name] = min(best[name], time.perf_counter() - start)
    moved = pattern.moved * dtype.itemsize
    rate = 2 * m * n * k / best["product"]
    bound = moved * (rate / rate_of_bytes) / (2 * k)
    return Row(pattern.name, m, n, k, threads, bound=bound, **best)


@gemm.epilogue
def swiglu_backward_of_stored(acc, z):
    """stock.swiglu_backward without the activation, for a forward pass that stored it."""
    gate, up = z
    s = gemm.sigmoid(gate)
    silu = gate * s
    d_gate = acc * up * (s + silu * (1.0 - s))
    inner = gemm.per_row((gate * d_gate + up * (acc * silu)) * (1.0 / 128), "add", 128)
    return {"out": (d_gate, acc * silu), "inner": inner}


def recomputing(tokens: int, width: int, inner: int, threads: int, samples: int) -> str:
    """SwiGLU's backward pass and the weight gradient that needs its activation, both ways: the
    activation (tokens x inner) kept since the forward pass, or computed again."""
    dy, down = _normal(tokens, width, dtype="f4"), _normal(width, inner, dtype="f4")
    z = _normal(tokens, 2 * inner, dtype="f4")
    kept = _silu(z[:, ::2]) * z[:, 1::2]
    dw = np.empty((inner, width), np.float32)
    again: Any = gemm.matmul(dy, down, epilogue=stock.swiglu_backward()(z=z), threads=threads)
    stored: Any = {key: again[key] for key in ("out", "inner")}

    def from_stored():
        gemm.matmul(dy, down, stored, epilogue=swiglu_backward_of_stored(z=z), threads=threads)
        gemm.matmul(kept.T, dy, dw, threads=threads)

    def from_recomputed():
        gemm.matmul(dy, down, again, epilogue=stock.swiglu_backward()(z=z), threads=threads)
        gemm.matmul(again["activation"].T, dy, dw, threads=threads)

    ways = {"stored": from_stored, "recomputed": from_recomputed}
    best = dict.fromkeys(ways, math.inf)
    for sample in range(samples + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if sample:
                best[name] = min(best[name], time.perf_counter() - start)
    return (
        f"backward, {tokens} tokens, width {width}, inner {inner}, {threads} threads: activation "
        f"stored {1e3 * best['stored']:.1f} ms, recomputed {1e3 * best['recomputed']:.1f} ms, "
        f"ratio {best['stored'] / best['recomputed']:.3f}, {tokens * inner} elements fewer kept"
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
    parser.add_argument("--json", help="also write the rows to this file")
    given = parser.parse_args(arguments)
    if given.recompute:
        for size in given.size:
            for threads in given.threads:
                print(recomputing(size, size, size, threads, given.samples))
        return 0
    rate_of_bytes = bandwidth(given.megabytes)
    print(f"float32, copy bandwidth {rate_of_bytes / 1e9:.1f} GB/s; times in ms")
    head = (
        f"{'pattern':18} {'M=N':>5} {'K':>5} {'thr':>3} {'product':>9} {'separate':>9} {'fused':>9}"
    )
    print(f"{head} {'ratio':>6} {'bound':>7} {'reached':>8}")
    rows = []
    for size in given.size:
        for k in given.k:
            for threads in given.threads:
                for pattern in (p for p in PATTERNS if given.match in p.name):
                    row = measure(pattern, size, size, k, threads, given.samples, rate_of_bytes)
                    rows.append(row)
                    times = " ".join(
                        f"{1e3 * t:9.2f}" for t in (row.product, row.separate, row.fused)
                    )
                    print(
                        f"{row.pattern:18} {size:5} {k:5} {threads:3} {times} {row.ratio:6.2f} "
                        f"{row.bound:7.1%} {row.reached:8.0%} {'' if row.passed else 'below'}"
                    )
    if given.json:
        with open(given.json, "w", encoding="utf-8") as file:
            json.dump([asdict(row) for row in rows], file, indent=1)
    return 0 if all(row.passed for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
