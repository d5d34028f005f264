"""What perf/fusion.py times: fused products, and the passes over memory that they replace.

The passes are NumPy's and PyTorch's own operators, in place where they can be; each pair does the
same arithmetic as the program (tests/epilogues/test_fusion_benchmark.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm.epilogues import stock


@dataclass(frozen=True)
class Pattern:
    """program(operands): the fused one; passes, torch_passes(d, operands): separate operators on
    the product d, of arrays and of tensors; operands(m, n, dtype): arrays by name; moved: elements
    that the separate operators move for each output element."""

    name: str
    program: Callable[[dict[str, Any]], Any]
    passes: Callable[[Any, dict[str, Any]], Any]
    torch_passes: Callable[[Any, dict[str, Any]], Any]
    operands: Callable[[int, int, np.dtype], dict[str, Any]]
    moved: float


def normal(*shape: int, dtype: Any) -> Any:
    return np.random.default_rng(1).standard_normal(shape, np.float32).astype(dtype)


# -- NumPy -----------------------------------------------------------------------------------------


def _residual_norm(d: Any, o: dict[str, Any]) -> Any:
    d += o["residual"]
    square = np.einsum("mn,mn->m", d, d)
    return d, square, d * o["gamma"]


def silu(x: Any) -> Any:
    with np.errstate(over="ignore"):
        return x / (1 + np.exp(-x))


def _gate(d: Any, o: dict[str, Any]) -> Any:
    return silu(d[:, ::2]) * d[:, 1::2]


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


# -- PyTorch ---------------------------------------------------------------------------------------


def _torch() -> Any:
    return sys.modules["torch"]


def _torch_residual_norm(d: Any, o: dict[str, Any]) -> Any:
    d.add_(o["residual"])
    return d, _torch().linalg.vector_norm(d, dim=-1).square_(), d * o["gamma"]


def _torch_gate(d: Any, o: dict[str, Any]) -> Any:
    return _torch().nn.functional.silu(d[:, ::2]) * d[:, 1::2]


def _torch_gate_backward(d: Any, o: dict[str, Any]) -> Any:
    torch = _torch()
    gate, up = o["z"][:, ::2], o["z"][:, 1::2]
    s = torch.sigmoid(gate)
    swish = gate * s
    dz = torch.empty_like(o["z"])
    torch.mul(d, swish, out=dz[:, 1::2])
    torch.mul(d, up * (s + swish * (1 - s)), out=dz[:, ::2])
    return dz, swish * up, torch.linalg.vecdot(o["z"], dz)


def _torch_norm_backward(d: Any, o: dict[str, Any]) -> Any:
    hat = o["x"] * o["r"]
    d_gamma = (d * hat).sum(0)
    d.mul_(o["gamma"]).sub_(hat * o["s"]).mul_(o["r"]).add_(o["gradient"])
    return d, hat * o["gamma"], d_gamma


PATTERNS = (
    Pattern("bias", lambda o: stock.bias(**o), lambda d, o: np.add(d, o["bias"], out=d),
            lambda d, o: d.add_(o["bias"]), lambda m, n, t: {"bias": normal(n, dtype=t)}, 2),
    Pattern("bias relu", lambda o: stock.relu(**o),
            lambda d, o: np.maximum(np.add(d, o["bias"], out=d), 0, out=d),
            lambda d, o: d.add_(o["bias"]).relu_(),
            lambda m, n, t: {"bias": normal(n, dtype=t)}, 4),
    Pattern("residual rmsnorm", lambda o: stock.residual_rmsnorm()(**o), _residual_norm,
            _torch_residual_norm,
            lambda m, n, t: {"residual": normal(m, n, dtype=t), "gamma": normal(n, dtype=t)}, 6),
    Pattern("swiglu", lambda o: stock.swiglu(), _gate, _torch_gate, lambda m, n, t: {}, 4.5),
    Pattern("swiglu backward", lambda o: stock.swiglu_backward()(**o), _gate_backward,
            _torch_gate_backward, lambda m, n, t: {"z": normal(m, 2 * n, dtype=t)}, 22),
    Pattern("rmsnorm backward", lambda o: stock.residual_rmsnorm_backward()(**o), _norm_backward,
            _torch_norm_backward,
            lambda m, n, t: {key: normal(m, n, dtype=t) for key in ("gradient", "x")}
            | {key: normal(m, 1, dtype=t) for key in "rs"} | {"gamma": normal(n, dtype=t)}, 19),
)  # fmt: skip
