"""Forks, limits, workers and exits: right answers or a Python error, never a hang or a dead child.

Each case is a process of its own with a time limit; what it prints is what held.
"""

import os
import subprocess
import sys

import pytest

START = """
import os, sys, threading, time
import numpy as np, gemm
def operand(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, n))
def product(n, threads=2):
    return gemm.matmul(operand(n), operand(n, 1), threads=threads)
def right(n, threads=2):
    return product(n, threads).tobytes() == product(n, 1).tobytes()
"""


def run(code: str, limit: float = 60, **environment):
    """Runs code after START; its exit status is 0, or the test fails with what it said."""
    done = subprocess.run(
        [sys.executable, "-c", START + code],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", **environment},
        capture_output=True, text=True, timeout=limit,
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done.stdout.split()


pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def test_t01_a_fork_just_below_and_above_the_cutoff():
    """OpenBLAS#294: 7 x 7 was fine, 8 x 8, the first size with threads, hung."""
    code = """
from gemm import planner
from gemm.microkernels.dtypes import float64
from gemm.engine import default_level
edge = round((2 * planner.grain(default_level(), float64)) ** (1 / 3))
sizes = (7, 8, edge - 1, edge + 1)
assert all(right(n) for n in sizes)
child = os.fork()
if child == 0:
    os._exit(0 if all(right(n) for n in sizes) else 3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), all(right(n) for n in sizes))
"""
    assert run(code) == ["0", "True"]


def test_t02_the_parent_goes_on_after_an_idle_child():
    """OpenBLAS#5520"""
    code = """
right(200)
child = os.fork()
if child == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), right(200))
"""
    assert run(code) == ["0", "True"]


def test_a_fork_while_other_threads_multiply():
    code = """
for _ in range(40):
    product(150), product(8)  # everything that may be compiled is
stop = False
held = []
def busy():
    while not stop:
        held.append(right(200))
callers = [threading.Thread(target=busy) for _ in range(2)]
for caller in callers:
    caller.start()
states = []
for _ in range(10):
    child = os.fork()
    if child == 0:
        os._exit(0 if right(200) and right(8) else 3)
    states.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
stop = True
for caller in callers:
    caller.join()
print(set(states), all(held) and len(held) > 0)
"""
    assert run(code) == ["{0}", "True"]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_t06_pools_of_workers_after_a_warm_up(method, tmp_path):
    """PteraSoftware#229: forked workers died at their first parallel call, silently."""
    script = tmp_path / "pool.py"
    script.write_text(
        START
        + f"""
if __name__ == "__main__":
    import multiprocessing
    right(200)
    with multiprocessing.get_context({method!r}).Pool(2) as pool:
        print(pool.map_async(right, [8, 200, 201, 90]).get(60))
    print(right(200))
"""
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True, text=True, timeout=90,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert done.stdout == "[True, True, True, True]\nTrue\n", done.stderr


def test_import_in_a_thread_while_another_forks():
    code = """
import importlib
for name in [n for n in sys.modules if n.split('.')[0] == 'gemm']:
    del sys.modules[name]
def first():
    globals()['gemm'] = importlib.import_module('gemm')
    assert right(200)
worker = threading.Thread(target=first)
worker.start()
child = os.fork()
if child == 0:
    os._exit(0)
worker.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), right(200))
"""
    assert run(code) == ["0", "True"]


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root may become another user"
)
@pytest.mark.parametrize("room", [0, 2])
def test_a_process_limit_gives_fewer_threads(room):
    """As an ordinary user, whom the limit binds. `room`: threads that it still allows."""
    code = f"""
import resource
right(200, 1)
product(8)
from gemm.backends.cpu import team
from gemm.engine import levels
level = next(iter(levels().values()))
mine = team.team(level)  # compiled now: nobody has no cache
user = 65000 + os.getpid() % 500  # no other process runs as this one
resource.setrlimit(resource.RLIMIT_NPROC, (1 + {room}, 1 + {room}))
os.setgid(65534)
os.setuid(user)
try:
    threading.Thread(target=lambda: None).start()
    print("python-thread")
except RuntimeError:
    print("no-python-thread")
held = [right(200, count) for count in (2, 8, 2)]
print(all(held), mine.size)
"""
    said = run(code, GEMM_NUM_THREADS="1")  # no thread before the limit
    assert said[1:] == ["True", str(room)], said
    assert said[0] == ("python-thread" if room else "no-python-thread")


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(0)", "raise SystemExit(0)"])
@pytest.mark.parametrize("when", ["idle", "spinning", "a daemon multiplies"])
def test_exit_at_any_moment(end, when):
    code = {
        "idle": "right(200); time.sleep(0.01)\n",
        "spinning": "product(200)\n",
        "a daemon multiplies": (
            "right(8)\n"
            "def forever():\n    while True: product(300)\n"
            "for _ in range(2): threading.Thread(target=forever, daemon=True).start()\n"
            "time.sleep(0.05)\n"
        ),
    }[when]
    assert run(code + "print('end', flush=True)\n" + end) == ["end"]


def test_a_kill_of_the_parent_leaves_nobody():
    """Threads are the process's own: no helper process outlives it."""
    code = """
right(300)
tasks = os.listdir(f'/proc/{os.getpid()}/task')
children = open(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read().split()
print(len(tasks) >= 2, children)
"""
    if not os.path.exists("/proc/self/task"):
        pytest.skip("needs /proc")
    assert run(code) == ["True", "[]"]


def test_r07_fresh_processes_give_the_same_bits():
    """blis#406"""
    code = """
import hashlib
a, b = operand(257)[:, :131].astype('f4'), operand(257, 1)[:131].astype('f4')
print(hashlib.sha256(gemm.matmul(a, b).tobytes() + gemm.matmul(a[:3], b).tobytes()).hexdigest())
"""
    runs = [run(code, GEMM_NUM_THREADS=str(1 + i % 3))[0] for i in range(12)]
    assert len(set(runs)) == 1
