"""What importing and a first call load: nothing that compiles, nothing of a GPU or a framework."""

import os
import subprocess
import sys

import pytest

HEAVY = ("numba", "llvmlite", "torch", "onnx", "onnxruntime", "opt_einsum", "cuda", "scipy")


def loaded(code: str, **environment) -> list[str]:
    """Top-level packages of HEAVY that a fresh process has imported after `code`."""
    probe = f"{code}\nimport sys\nprint(*(n for n in {HEAVY!r} if n in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", probe],
        env={**os.environ, **environment}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_import_is_light():
    assert loaded("import gemm") == []
    assert loaded("from gemm import matmul, einsum, dot, tensordot, explain") == []


PRODUCTS = """
import numpy as np, gemm
for dtype in ("float32", "float64"):
    for n in (8, 80):
        a = np.ones((n, n), dtype)
        for _ in range(18):
            assert gemm.matmul(a, a)[0, 0] == n
from gemm.backends.cpu import kernels
"""


def test_a_warm_process_imports_no_compiler():
    subprocess.run([sys.executable, "-c", PRODUCTS], check=True)
    assert loaded(PRODUCTS + "assert not kernels.compiled, kernels.compiled") == []


def test_importing_writes_nothing(tmp_path):
    loaded("import gemm", GEMM_CACHE_DIR=str(tmp_path / "kernels"), HOME=str(tmp_path))
    assert not (tmp_path / "kernels").exists() and not list(tmp_path.iterdir())


def test_import_adds_little_to_numpy():
    """The budget is 30 ms on an idle machine; modules are counted, since time here is shared."""
    code = (
        "import sys, numpy; before = set(sys.modules); import gemm;"
        "print(len(set(sys.modules) - before), sum(n.startswith('gemm') for n in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new, ours = map(int, done.stdout.split())
    assert ours < 50 and new < 110, (new, ours)


def test_verbose_says_what_was_compiled_and_how_long_it_took(tmp_path):
    code = """
from gemm.backends import ceiling
from gemm.microkernels.dtypes import TileShape, float64
from gemm.backends.cpu import kernels
from gemm.backends.cpu.machine import machine
level = machine().levels[0]
kernels.entry(level, ceiling.ChainsSpec(TileShape(1, 1, level.unit.lanes(float64), float64), False))
"""
    command = [sys.executable, "-c", code]
    for value, expected in (("1", True), ("0", False), ("", False)):
        environment = {**os.environ, "GEMM_VERBOSE": value, "GEMM_CACHE_DIR": str(tmp_path / value)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert ("gemm: compiled ceiling float64 for" in done.stderr) == expected
        assert (" s\n" in done.stderr) == expected


@pytest.mark.parametrize("name", ["matmul", "explain", "einsum", "dot", "tensordot"])
def test_names_that_are_also_modules_are_functions(name):
    code = f"import gemm, gemm.{name}; from gemm import {name}; assert callable(gemm.{name})"
    assert loaded(code) == []
