"""Loads a test module of NumPy (or another package) with some of NumPy's names lent to gemm.

Only the names asked for are lent, while the module is imported (its decorators and
`from numpy import ...` bind them then) and while its tests run. All others, the oracles among
them, stay NumPy's.
"""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import numpy as np
import pytest

import gemm


@contextmanager
def routed(*names: str) -> Iterator[None]:
    """np.<name> is gemm.<name> inside; 'linalg.<name>' for those of np.linalg."""
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            ours, theirs = gemm, np
            if name.startswith("linalg."):
                ours, theirs = gemm.linalg, np.linalg
            short = name.removeprefix("linalg.")
            patch.setattr(theirs, short, getattr(ours, short))
        yield


def load(module: str, *names: str) -> ModuleType:
    """A fresh copy of `module`, imported with `names` lent; sys.modules keeps the other one."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.loader is not None, f"{module} is not installed"
    copy = importlib.util.module_from_spec(spec)
    with routed(*names):
        spec.loader.exec_module(copy)
    return copy
