"""One figure that takes a process of its own: import time, first call, compile time, peak memory.

    python .../perf/harness.py probe import 64 float64     -> one number on stdout, in s or bytes

Times leave out what is not gemm's: the interpreter, `import numpy`, making the operands.
"""

from __future__ import annotations

import sys
import time
from typing import Any


def _peak_bytes() -> int:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(kind: str, n: int, dtype: str) -> float:
    """The figure named `kind` (cases.PROCESS_OPERATIONS) for an n x n product."""
    import numpy as np

    a = np.ones((n, n), dtype)
    if kind == "compile":
        import llvmlite.binding  # noqa: F401  (their import is no compile time)
        import numba  # noqa: F401
    package: Any = None
    if kind in ("compile", "peak-memory"):
        import gemm as package
    if kind == "peak-memory":
        small = np.ones((8, 8), dtype)
        package.matmul(small, small)
        before = _peak_bytes()
        package.matmul(a, a)
        return float(_peak_bytes() - before)
    start = time.perf_counter()
    import gemm

    if kind != "import":
        gemm.matmul(a, a)
    return time.perf_counter() - start


def main(arguments: list[str]) -> None:
    """Print the figure."""
    kind, n, dtype = arguments
    print(repr(measure(kind, int(n), dtype)))
