"""Runs one module of this folder in a process where ``gemm`` is another revision.

    python .../perf/harness.py worker NumPy

This folder is loaded as the package ``gemm_harness``, so that both sides of a comparison are
measured by the same code, while ``import gemm`` finds whatever PYTHONPATH says, with or without a
perf folder of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def load(module: str) -> ModuleType:
    """Import `module` of this folder as ``gemm_harness.<module>``."""
    if "gemm_harness" not in sys.modules:
        folder = Path(__file__).resolve().parent
        spec = importlib.util.spec_from_file_location(
            "gemm_harness", folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None and spec.loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules["gemm_harness"] = package
        spec.loader.exec_module(package)
    return importlib.import_module(f"gemm_harness.{module}")


if __name__ == "__main__":
    del sys.path[0]  # this folder: its module names are not for others to import
    load(sys.argv[1]).main(sys.argv[2:])
