"""The epilogues of the table, as a user writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def _bias(acc, bias):
    return acc + bias


def _relu(acc, bias):
    return max(acc + bias, 0.0)


def _gelu(acc, bias):
    v = acc + bias
    return 0.5 * v * (1.0 + math.erf(v * 0.7071067811865476))


def _silu(acc, bias):
    v = acc + bias
    return v / (1.0 + math.exp(-v))


def define(gemm: Any) -> dict[str, Callable]:
    """Name -> decorated epilogue, by the public decorator of this `gemm`."""
    functions = {"bias": _bias, "relu": _relu, "gelu": _gelu, "silu": _silu}
    return {name: gemm.epilogue(function) for name, function in functions.items()}
