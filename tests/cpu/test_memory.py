"""What a call may hold: bounded scratch, nothing that grows, no copy of what only looks large."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gemm
from gemm import execution

CODE = """
import gc, itertools, resource
import numpy as np, gemm

def rss():
    with open('/proc/self/statm') as f:
        return int(f.read().split()[1]) * resource.getpagesize()

rng = np.random.default_rng(0)
whole = {t: rng.standard_normal((64, 64)).astype(t) for t in ('float32', 'float64')}
def calls(count):
    for i in range(count):
        a = whole['float32' if i % 3 else 'float64']
        m, k, n = 1 + i % 37, 1 + i * 7 % 53, 1 + i * 5 % 41
        x, y = a[:m, :k], a[:k, :n]
        kind = i % 8
        if kind == 0:
            gemm.matmul(x, y.T[:, :k].T if n < k else y)
        elif kind == 1:
            gemm.matmul(a, a, threads=1 + i % 2)
        elif kind == 2:
            gemm.matmul(x[::-1], y)
        elif kind == 3:
            gemm.matmul(a.reshape(4, 16, 64), a[:, :n])
        elif kind == 4:
            try:
                gemm.matmul(x, a[:k + 1, :n])
            except ValueError:
                pass
        else:
            gemm.matmul(x, y)

calls(8000)  # the caches of plans are full by then
gc.collect()
before = rss()
calls(COUNT)
gc.collect()
print(rss() - before)
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.parametrize("environment", [{}, {"GEMM_DOOR": "0"}])
def test_nothing_grows_over_many_mixed_calls(environment):
    code = CODE.replace("COUNT", "60000" if not environment else "15000")
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert int(done.stdout) < 1 << 20


@pytest.fixture
def asked(monkeypatch):
    """Bytes of scratch that products ask for."""
    sizes = []
    take = execution.take_space

    def noted(nbytes):
        sizes.append(nbytes)
        return take(nbytes)

    monkeypatch.setattr(execution, "take_space", noted)
    return sizes


def test_scratch_is_bounded_whatever_the_size(asked):
    """A broadcast operand makes a large problem of little memory; `order` keeps off the door."""
    from gemm import planner, targets
    from gemm.backends.cpu.machine import machine
    from gemm.plan import cache_blocks

    f64 = targets.element_type(np.dtype("float64"))
    level = targets.default_level()
    blocks = cache_blocks(planner.tile_for(level, f64, None), machine().caches)
    room = 8 * (blocks.mc * blocks.kc + blocks.kc * blocks.nc + blocks.nc) + (1 << 16)
    for count in (1, 2):
        for m, n, k in ((300, 300, 300), (20, 3000, 900), (3000, 20, 900), (9, 9, 100000)):
            a = np.broadcast_to(np.ones(1), (m, k))
            b = np.broadcast_to(np.ones(1), (k, n))
            gemm.matmul(a, b, order="C", threads=count)
            assert asked and asked.pop() <= count * room
    assert sum(block[0] for block in execution._spare) <= execution.KEPT * 2 * room
    assert len(execution._spare) <= execution.KEPT


def growth(code: str) -> int:
    """By how much the peak resident set rises over `code`, in bytes."""
    whole = f"""
import resource
import numpy as np, gemm
from numpy.lib.stride_tricks import as_strided, sliding_window_view
ones = np.ones((64, 64))
gemm.matmul(ones, ones, order="C")
gemm.matmul(ones[:, ::-1], ones, order="C")
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with open('/proc/self/clear_refs', 'w') as f:
    f.write('5')  # the peak starts again from here
before = peak()
{code}
print(peak() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", whole], capture_output=True, text=True, timeout=120, check=True
    )
    return int(done.stdout)


VIEWS = {
    "one row repeated": "np.broadcast_to(np.ones((1, 500)), (40000, 500))",
    "one number": "np.broadcast_to(np.ones(()), (40000, 500))",
    "sliding windows": "sliding_window_view(np.ones(40499), 500)",
    "overlapping rows backwards": "sliding_window_view(np.ones(40499), 500)[::-1, ::-1]",
    "a batch of one matrix": "np.broadcast_to(np.ones((40, 500)), (1000, 40, 500))",
}


@pytest.mark.skipif(not os.path.exists("/proc/self/clear_refs"), reason="reads /proc")
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_looks_large_is_not_copied(view):
    """160 MB as it looks; the result takes 3 MB."""
    code = f"""
x = {VIEWS[view]}
w = np.ones((500, 9))
got = gemm.matmul(x, w)
assert (got == 500).all()
got = gemm.matmul(w.T, x.swapaxes(-1, -2))
assert (got == 500).all()
"""
    assert growth(code) < 40e6
