"""What the machine can do at most, measured in the same run: memory bandwidth and the FMA rate."""

from __future__ import annotations

import importlib
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from .timing import clock


def copy_bandwidth(threads: int = 1, nbytes: int = 2**27, repeats: int = 7) -> float:
    """Bytes read plus bytes written a second by NumPy copies of `nbytes`, best of `repeats`.

    NumPy copies without the interpreter's lock, so `threads` copies of a share each run together.
    """
    share = nbytes // threads // 8
    pairs = [(np.ones(share), np.zeros(share)) for _ in range(threads)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            start = clock()
            list(pool.map(lambda pair: np.copyto(pair[1], pair[0]), pairs))
            best = min(best, clock() - start)
    return 2 * 8 * share * threads / best


def read_bandwidth(nbytes: int = 2**26) -> float:
    """Bytes a second of one thread whose compiled loop reads `nbytes` once."""
    module = importlib.import_module("gemm.backends.ceiling")
    return float(module.read_bandwidth(nbytes))


def fma_rate(dtype: str, threads: int = 1) -> float | str:
    """Flops a second of a compiled loop of independent FMAs, or why it is not measured."""
    try:
        module = importlib.import_module("gemm.backends.ceiling")
        # many short ones: on a shared machine a few are left alone
        return float(module.fma_rate(dtype, threads=threads, seconds=0.008, repeats=25))
    except ImportError:
        return "not measured: gemm.backends.ceiling is not there"
    except Exception as error:  # a ceiling is a luxury: whatever fails, the table says what
        return f"not measured: {type(error).__name__}: {error}"


def measure(dtypes: list[str], threads: int, tiny: bool = False) -> dict[str, Any]:
    """Both ceilings for this thread count: {'bandwidth': B/s, 'fma': {dtype: flop/s or reason}}."""
    bandwidth = copy_bandwidth(threads, 2**23 if tiny else 2**27, 3 if tiny else 7)
    return {"bandwidth": bandwidth, "fma": {name: fma_rate(name, threads) for name in dtypes}}


def higher(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Of two measurements the higher of each figure; a figure before a reason."""
    if not one or not one["bandwidth"] or not other["bandwidth"]:
        return one if one and one["bandwidth"] else other
    fma = dict(other["fma"])
    for name, rate in one["fma"].items():
        if isinstance(rate, float) and not (isinstance(fma.get(name), float) and fma[name] > rate):
            fma[name] = rate
    return {"bandwidth": max(one["bandwidth"], other["bandwidth"]), "fma": fma}
