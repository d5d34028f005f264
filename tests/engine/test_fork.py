"""A forked child has none of its parent's threads, and must not wait for them (OpenBLAS#294)."""

import os
import subprocess
import sys

import pytest

CODE = """
import os, sys
import numpy as np, gemm
large, medium, small = (np.arange(n * n, dtype=float).reshape(n, n) % 7 for n in (400, 150, 8))
before = [gemm.matmul(x, x) for x in (large, medium, small) for _ in range(20)][::20]
assert gemm.explain(large, large, threads=2).count("threads: 2")
def same():
    return all((gemm.matmul(x, x) == y).all() for x, y in zip((large, medium, small), before))
for generation in range(2):
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(status or (0 if same() else 3))
    if not same():
        os._exit(4)
os._exit(0)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_and_its_child_multiply():
    environment = {**os.environ, "GEMM_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", CODE], timeout=120, env=environment)
    assert done.returncode == 0
