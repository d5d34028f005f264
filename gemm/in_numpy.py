"""use_in_numpy: lend NumPy's names to this package for the length of a with block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np

from gemm import linalg
from gemm.dot import dot, inner, vdot
from gemm.einsum import einsum
from gemm.matmul import matmul, matvec, vecdot, vecmat
from gemm.tensordot import tensordot

Routes = list[tuple[ModuleType, str, Callable[..., Any]]]

_ROUTES: Routes = [
    (np, "matmul", matmul),
    (np, "vecdot", vecdot),
    (np, "matvec", matvec),
    (np, "vecmat", vecmat),
    (np, "dot", dot),
    (np, "vdot", vdot),
    (np, "inner", inner),
    (np, "tensordot", tensordot),
    (np, "einsum", einsum),
    (np.linalg, "matmul", linalg.matmul),
    (np.linalg, "vecdot", linalg.vecdot),
    (np.linalg, "tensordot", linalg.tensordot),
    (np.linalg, "multi_dot", linalg.multi_dot),
    (np.linalg, "matrix_power", linalg.matrix_power),
]

_lock = threading.Lock()
_entered = 0
_replaced: Routes = []


@contextmanager
def use_in_numpy() -> Iterator[None]:
    """Route np.matmul, np.dot, np.einsum and the like to this package inside a with block.

    The names np.{matmul, vecdot, matvec, vecmat, dot, vdot, inner, tensordot, einsum} and
    np.linalg.{matmul, vecdot, tensordot, multi_dot, matrix_power} are replaced for the whole
    process, and what was there before comes back on leaving, also by an exception. Blocks may
    nest and overlap between threads: the names come back when the last one is left.

    Not reached: the `@` operator and `ndarray.dot` (they call NumPy's C code), and names that
    other modules have imported already (`from numpy import dot`).
    """
    global _entered
    with _lock:
        if not _entered:
            _route()
        _entered += 1
    try:
        yield
    finally:
        with _lock:
            _entered -= 1
            if not _entered:
                _restore()


def _route() -> None:
    try:
        # opt_einsum binds NumPy's functions when it is imported: not inside the block.
        import opt_einsum  # noqa: F401
    except ImportError:  # einsum itself says so when it needs it
        pass
    for module, name, function in _ROUTES:
        if hasattr(module, name):  # older NumPy lacks some
            _replaced.append((module, name, getattr(module, name)))
            setattr(module, name, function)


def _restore() -> None:
    while _replaced:
        module, name, original = _replaced.pop()
        setattr(module, name, original)
