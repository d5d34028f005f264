"""Any number of workers and callers: the same bits, the number asked for, never a hang.

What may abort or hang runs in a process of its own with a time limit.
"""

import ctypes
import ctypes.util
import platform
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from engine.oracle import RUNNABLE, random, same_bits

import gemm
from gemm import engine, planner, threads
from gemm.backends.cpu import machine
from gemm.microkernels.dtypes import DTYPES

BEST = next(iter(RUNNABLE))


def workers(shape, threads_: int | None = None, dtype: str = "float64") -> int:
    """Workers that the plan of (m, n, k) has for a call from this thread."""
    m, n, k = shape
    a, b, out = (np.empty(s, dtype) for s in ((m, k), (k, n), (m, n)))
    allowed = threads.get_num_threads() if threads_ is None else threads_
    return engine.planned(a, b, out, None, allowed, None)[0].workers


def many(count: int, function) -> list:
    """function(i) from `count` Python threads that start together."""
    gate = threading.Barrier(count)

    def start(i):
        gate.wait(60)
        return function(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count)))


# -- callers -------------------------------------------------------------------------------------


def test_t04_python_threads_call_it_together():
    """numba#10565: two callers at once kill the interpreter under the default layer."""
    a, b = random((256, 256), "float32"), random((256, 256), "float32", 1)
    expected = gemm.matmul(a, b, threads=1)
    assert workers((256, 256, 256), 2, "float32") == 2

    def calls(_):
        return all(same_bits(gemm.matmul(a, b, threads=2), expected) for _ in range(100))

    assert all(many(4, calls))


def test_t07_products_of_strided_operands_do_not_share_scratch():
    """numpy#31618: twelve callers with views got each other's numbers."""
    tall = random((2, 65536), "float64").T
    wide = random((65536, 4), "float64", 1)
    small, thin = random((2, 2), "float64", 2), random((4, 2), "float64", 3)
    expected = gemm.matmul(tall, small, threads=1) + gemm.matmul(wide, thin, threads=1)

    def calls(_):
        return all(
            same_bits(gemm.matmul(tall, small) + gemm.matmul(wide, thin), expected)
            for _ in range(12)
        )

    assert all(many(12, calls))


def test_t10_more_callers_than_any_table_has_room_for():
    """OpenBLAS#4216: beyond a compile-time number of callers it crashed."""
    operands = [random((64, 64), "float64", i) for i in range(96)]
    expected = [gemm.matmul(x, x, threads=1) for x in operands]
    got = many(96, lambda i: [gemm.matmul(operands[i], operands[i], threads=2) for _ in range(5)])
    assert all(same_bits(x, expected[i]) for i in range(96) for x in got[i])


PARALLEL_REGION = """
import ctypes
import numba, numpy as np, gemm
rng = np.random.default_rng(0)
a, b = rng.standard_normal((2, 200, 200))
out = np.zeros((16, 200, 200))
expected = gemm.matmul(a, b, threads=1)
wrong = []

@ctypes.CFUNCTYPE(None, ctypes.c_int64)
def product(i):
    try:
        gemm.matmul(a, b, out=out[i], threads=2)
    except BaseException as error:
        wrong.append(error)

@numba.njit(parallel=True, nogil=True)
def region():
    for i in numba.prange(16):
        product(i)

numba.config.THREADING_LAYER = 'workqueue'
for _ in range(3):
    out[...] = 0
    region()
    assert not wrong, wrong
    assert all(x.tobytes() == expected.tobytes() for x in out)
print(numba.threading_layer())
"""


def test_t03_called_from_inside_a_parallel_region_of_numba():
    """numba#8563: a parallel region within another aborted the process."""
    done = run(PARALLEL_REGION)
    assert done.stdout.strip() == "workqueue", done.stderr


def run(code: str, *arguments: str, limit: float = 120, **options):
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True, text=True, timeout=limit, **options,
    )  # fmt: skip


# -- how many ------------------------------------------------------------------------------------


def test_t13_the_number_is_of_one_thread_and_one_block():
    default = gemm.get_num_threads()
    with gemm.num_threads(3):
        assert gemm.get_num_threads() == 3
        assert many(1, lambda _: gemm.get_num_threads()) == [default]
        with gemm.num_threads(2):
            assert gemm.get_num_threads() == 2
        assert gemm.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError), gemm.num_threads(5):
            1 / 0  # noqa: B018
        assert gemm.get_num_threads() == 3
    assert gemm.get_num_threads() == default

    def mine(i):
        gemm.set_num_threads(i + 1)
        time.sleep(0.01)
        return gemm.get_num_threads()

    assert many(4, mine) == [1, 2, 3, 4]
    assert gemm.get_num_threads() == default


def test_t13_a_call_is_obeyed_and_leaves_no_trace(monkeypatch):
    """What reaches the team is counted where it is handed over."""
    from gemm.backends.cpu.team import Team

    seen, whole = [], Team.run

    def counted(self, entry, arguments, count, *flush):
        seen.append(count)
        whole(self, entry, arguments, count, *flush)

    monkeypatch.setattr(Team, "run", counted)
    a = random((200, 200), "float64")
    before = gemm.get_num_threads()
    gemm.matmul(a, a, threads=1)
    assert seen == []
    gemm.matmul(a, a, threads=2)
    assert seen == [2]
    with gemm.num_threads(1):
        gemm.matmul(a, a, order="C")
        assert seen == [2]
        gemm.matmul(a, a, threads=2)
    assert seen == [2, 2]
    with pytest.raises(ValueError, match="kernel='none'|kernel=\"none\"|this machine runs"):
        gemm.matmul(a, a, threads=2, kernel="none")
    assert gemm.get_num_threads() == before and seen == [2, 2]


@pytest.mark.parametrize(
    ("n", "error"), [(0, ValueError), (-1, ValueError), (1.5, TypeError), ("2", TypeError),
                     (True, TypeError), (None, TypeError)],
)  # fmt: skip
def test_nonsense_is_refused_and_changes_nothing(n, error):
    before = gemm.get_num_threads()
    with pytest.raises(error, match="threads must be"):
        gemm.set_num_threads(n)
    with pytest.raises(error, match="threads must be"), gemm.num_threads(n):
        pass
    out = np.full((2, 2), 7.0)
    if n is not None:
        with pytest.raises(error, match="threads must be"):
            gemm.matmul(np.ones((2, 2)), np.ones((2, 2)), out=out, threads=n)
    assert gemm.get_num_threads() == before and (out == 7).all()


@pytest.fixture
def fresh_default():
    threads.default_threads.cache_clear()
    yield
    threads.default_threads.cache_clear()


def test_the_environment_sets_the_default(monkeypatch, fresh_default):
    monkeypatch.setenv("GEMM_NUM_THREADS", "5")
    assert threads.default_threads() == 5


@pytest.mark.parametrize("text", ["0", "-2", "two", "1.5", " "])
def test_a_wrong_environment_is_an_error_that_names_it(monkeypatch, fresh_default, text):
    monkeypatch.setenv("GEMM_NUM_THREADS", text)
    with pytest.raises(ValueError, match="GEMM_NUM_THREADS="):
        threads.default_threads()


@pytest.mark.skipif(not hasattr(machine.os, "sched_setaffinity"), reason="no affinity here")
def test_affinity_bounds_the_default():
    code = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import gemm
print(gemm.get_num_threads())
"""
    environment = {k: v for k, v in machine.os.environ.items() if k != "GEMM_NUM_THREADS"}
    assert run(code, env=environment).stdout == "1\n"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "200000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "1600000 100000"}, 8),
        ({"cpu.cfs_quota_us": "300000", "cpu.cfs_period_us": "100000"}, 3),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_quota_bounds_the_default(monkeypatch, files, cores):
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(machine, "_read", lambda path: files.get(path.name, ""))
    assert machine.usable_cores() == cores


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_p10_small_work_never_pays_for_threads(dtype):
    for n in (1, 10, 16, 23, 40):
        assert workers((n, n, n), 64, dtype) == 1
    acc = DTYPES[dtype]
    grain = planner.grain(BEST, acc)
    assert planner.workers_for(BEST, acc, 2 * grain - 1, 64) == 1
    assert planner.workers_for(BEST, acc, 2 * grain, 2) == 2


def test_p10_the_cutoff_is_the_machines():
    """A share is worth so much time, so wider vectors and more ports ask for more work."""
    from gemm.targets import described

    f32, f64 = DTYPES["float32"], DTYPES["float64"]
    assert planner.grain(BEST, f32) == 2 * planner.grain(BEST, f64)
    for name, level in described().items():
        a_second = planner.CLOCK * level.unit.ports * level.unit.lanes(f64)
        assert planner.grain(name, f64) == int(planner.SHARE * a_second)


# -- what a call leaves behind -------------------------------------------------------------------


def test_an_idle_team_costs_no_cpu_time():
    code = """
import time
import numpy as np, gemm
a = np.ones((300, 300))
for _ in range(10):
    gemm.matmul(a, a, threads=2)
time.sleep(0.05)
before = time.process_time()
time.sleep(0.3)
print(time.process_time() - before)
"""
    assert float(run(code).stdout) < 0.01


CROWDED = """
import os, time
import numpy as np, gemm
cpus = sorted(os.sched_getaffinity(0))
before = set(os.listdir('/proc/self/task'))
a = np.ones((400, 400))
gemm.matmul(a, a, threads=2)
(worker,) = map(int, set(os.listdir('/proc/self/task')) - before)

def seen():  # the CPU where the worker ran last
    return int(open(f'/proc/self/task/{worker}/stat').read().rsplit(')', 1)[1].split()[36])

os.sched_setaffinity(0, cpus[:1])
for _ in range(5):
    for allowed in (cpus[:1], cpus):
        os.sched_setaffinity(worker, allowed)
        assert (gemm.matmul(a, a, threads=2) == 400).all()
        assert os.sched_getaffinity(worker) == set(allowed)
        assert (seen() == cpus[0]) == (allowed != cpus), allowed
        time.sleep(0.02)  # it sleeps
"""


@pytest.mark.skipif(
    sys.platform != "linux" or machine.usable_cores() < 2, reason="needs two CPUs to choose from"
)
def test_a_worker_does_not_wake_on_the_callers_cpu():
    """Nor is it lost where it may run nowhere else, and its affinity is its own afterwards."""
    done = run(CROWDED)
    assert done.returncode == 0, done.stderr


def _mxcsr() -> int:
    """Rounding, flush and mask bits of the calling thread; the sticky flags left out."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    block = (ctypes.c_uint32 * 16)()
    libm.fegetenv(block)
    return block[7] & ~0x3F


X86 = platform.machine() in ("x86_64", "AMD64") and sys.platform == "linux"


@pytest.mark.skipif(not X86, reason="reads the control word as glibc on x86-64 lays it out")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_p13_the_control_word_is_as_before(dtype):
    import ml_dtypes

    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    before = _mxcsr()
    assert before & 0x9FC0 == 0x1F80  # the masks set, nothing flushed
    a = np.ones((90, 90)).astype(kind)
    for count in (1, 2):
        gemm.matmul(a, a, threads=count)
        assert _mxcsr() == before
    assert 1e-310 * float(a[0, 0].astype(float)) == 1e-310


@pytest.mark.skipif(not X86, reason="FE_UPWARD is x86-64's number here")
def test_workers_run_under_the_callers_rounding_mode():
    """Threads of the team exist before the caller chooses: they must not keep their own mode."""
    libm = ctypes.CDLL(ctypes.util.find_library("m"))
    upward = 0x800
    a, b = random((200, 200), "float64"), random((200, 200), "float64", 1)
    nearest = gemm.matmul(a, b, threads=2)
    assert libm.fesetround(upward) == 0
    try:
        alone = gemm.matmul(a, b, threads=1)
        together = gemm.matmul(a, b, threads=2)
        assert libm.fegetround() == upward
    finally:
        libm.fesetround(0)
    assert same_bits(together, alone)
    assert not same_bits(alone, nearest)
    assert same_bits(gemm.matmul(a, b, threads=2), nearest)
