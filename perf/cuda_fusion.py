"""Fused products on a GPU against the same product and separate operators, and against cuBLAS
with `torch.compile`, in one run.

    python -m gemm.perf.cuda_fusion [--size 2048 4096 8192] [--k 128 512 1024] [--match rmsnorm]

bfloat16; times are device events, the median of rounds in which all three take turns. Results are
checked first: max |out - exact| < 2 max |unfused bfloat16 - exact| + 1e-6, exact in float32. Beside
each ratio stands the bound b (P / BW) / (2 K): what separate operators that move b bytes an
element can add to the product (docs/fusing.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemm.epilogues import stock

from .cuda_speed import _torch, median_ms, random


@dataclass(frozen=True)
class Pattern:
    """program(operands): the fused one; passes(d, operands): the operators on the product d, with
    the program's outputs in its order; operands(m, n): shapes by name; moved: elements that the
    operators move for each output element; target: of the ratio to cuBLAS and torch.compile."""

    name: str
    program: Callable[[dict[str, Any]], Any]
    passes: Callable[[Any, dict[str, Any]], tuple]
    operands: Callable[[int, int], dict[str, tuple[int, ...]]]
    moved: float
    target: float = 1.0


def _sums(x: Any, block: int = 128) -> Any:
    """Sums over blocks of columns, in float32."""
    m, n = x.shape
    return x.float().reshape(m, n // block, block).sum(-1)


def _bias_gelu(d, o):
    torch = sys.modules["torch"]
    return (torch.nn.functional.gelu(d + o["bias"]),)


def _residual_norm(d, o):
    h = d + o["residual"]
    return h, _sums(h * h) / 128, h * o["gamma"]


def _gate(d, o):
    torch = sys.modules["torch"]
    return (torch.nn.functional.silu(d[:, ::2]) * d[:, 1::2],)


def _gate_backward(d, o):
    torch = sys.modules["torch"]
    gate, up = o["z"][:, ::2], o["z"][:, 1::2]
    s = torch.sigmoid(gate)
    d_gate, d_up = d * up * (s + gate * s * (1 - s)), d * gate * s
    dz = torch.stack([d_gate, d_up], -1).reshape(o["z"].shape)
    return dz, gate * s * up, _sums(gate * d_gate + up * d_up) / 128


def _norm_backward(d, o):
    hat = o["x"] * o["r"]
    gradient = o["gradient"] + (d * o["gamma"] - hat * o["s"]) * o["r"]
    columns = (d * hat).float().reshape(-1, 128, d.shape[1]).sum(1)
    return gradient, hat * o["gamma"], columns


PATTERNS = (
    Pattern("bias gelu", lambda o: stock.gelu(**o), _bias_gelu, lambda m, n: {"bias": (n,)}, 2),
    Pattern("residual rmsnorm", lambda o: stock.residual_rmsnorm(128)(**o), _residual_norm,
            lambda m, n: {"residual": (m, n), "gamma": (n,)}, 4),
    Pattern("swiglu", lambda o: stock.swiglu(), _gate, lambda m, n: {}, 2.5),
    Pattern("swiglu backward", lambda o: stock.swiglu_backward(128)(**o), _gate_backward,
            lambda m, n: {"z": (m, 2 * n)}, 7, 1.4),
    Pattern("rmsnorm backward", lambda o: stock.residual_rmsnorm_backward(128)(**o), _norm_backward,
            lambda m, n: {"gradient": (m, n), "x": (m, n), "r": (m, 1), "s": (m, 1),
                          "gamma": (n,)}, 6, 1.4),
)  # fmt: skip


def outputs(found: Any) -> tuple:
    return tuple(found.values()) if isinstance(found, dict) else (found,)


def wrong(found: tuple, unfused: tuple, exact: tuple) -> str:
    """Which output breaks the rule, with the numbers; empty when none does."""
    for i, (x, y, z) in enumerate(zip(found, unfused, exact, strict=True)):
        ours, theirs = (float((v.float() - z.float()).abs().max()) for v in (x, y))
        if not ours < 2 * theirs + 1e-6:
            return f"output {i}: error {ours:.3g}, unfused {theirs:.3g}"
    return ""


def measure(pattern: Pattern, m: int, n: int, k: int, bandwidth: float) -> bool:
    """Prints one row; True where it is right and no slower than its target."""
    import gemm

    torch = _torch()
    kind = torch.bfloat16
    sets = []
    for _ in range(3):
        given = {name: random(shape, kind) for name, shape in pattern.operands(m, n).items()}
        sets.append((random((m, k), kind), random((k, n), kind), given))
    torch._dynamo.reset()  # each pattern and shape is compiled for itself
    compiled = torch.compile(lambda a, b, o: pattern.passes(a @ b, o), dynamic=False)
    into = [gemm.matmul(a, b, epilogue=pattern.program(o)) for a, b, o in sets]
    a, b, o = sets[0]
    wide = {name: x.float() for name, x in o.items()}
    exact = pattern.passes(a.float() @ b.float(), wide)
    problem = wrong(outputs(into[0]), pattern.passes(a @ b, o), exact)
    if problem:
        print(f"{pattern.name:18} {m}x{n}x{k} WRONG: {problem}")
        return False

    def fused(i):
        a, b, o = sets[i % 3]
        gemm.matmul(a, b, into[i % 3], epilogue=pattern.program(o))

    def separate(i):
        a, b, o = sets[i % 3]
        pattern.passes(gemm.matmul(a, b), o)

    def theirs(i):
        compiled(*sets[i % 3])

    def product(i):
        gemm.matmul(*sets[i % 3][:2])

    ours, apart, other, alone = median_ms([fused, separate, theirs, product])
    rate = 2 * m * n * k / (alone * 1e-3)
    bound = 2 * pattern.moved * (rate / bandwidth) / (2 * k)
    reached = (apart - ours) / (bound * alone)
    good = other / ours >= pattern.target
    print(
        f"{pattern.name:18} {m}x{n}x{k:<6}"
        f" {1e3 * ours:9.1f} {1e3 * apart:9.1f} {1e3 * other:9.1f} us"
        f" {apart / ours:6.2f} {other / ours:6.2f} (target {pattern.target}) bound {bound:6.1%}"
        f" reached {reached:5.0%} {'' if good else 'below'}",
        flush=True,
    )
    return good


def copy_rate() -> float:
    """Bytes a second of a copy on the device, read and written."""
    torch = _torch()
    x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    (ms,) = median_ms([lambda i: y.copy_(x)])
    return 2 * x.numel() / (ms * 1e-3)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gemm.perf.cuda_fusion")
    parser.add_argument("--size", type=int, nargs="+", default=[2048, 4096, 8192], help="M = N")
    parser.add_argument("--k", type=int, nargs="*", default=[128, 512, 1024], help="besides K = M")
    parser.add_argument("--match", default="", help="patterns whose name contains this")
    given = parser.parse_args(arguments)
    bandwidth = copy_rate()
    print(f"bfloat16, copy bandwidth {bandwidth / 1e12:.2f} TB/s")
    print("columns: fused; own product and operators; cuBLAS and torch.compile; both ratios")
    good = True
    for size in given.size:
        for k in (*given.k, size):
            for pattern in (p for p in PATTERNS if given.match in p.name):
                good &= measure(pattern, size, size, k, bandwidth)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
