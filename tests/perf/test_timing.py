"""The measuring rules hold: CASES S09 (device synchronised) and S10 (compile time split out)."""

import threading
import time

import pytest

from gemm.perf import alternate, contenders, rules
from gemm.perf.cases import parse
from gemm.perf.rules import RuleBroken
from gemm.perf.timing import Timed, calibration_loop


class Device:
    """Work is queued at once and done 5 ms later, as on a GPU."""

    def __init__(self):
        self.pending = []

    def launch(self):
        work = threading.Thread(target=time.sleep, args=(0.005,))
        work.start()
        self.pending.append(work)

    def synchronize(self):
        while self.pending:
            self.pending.pop().join()


def test_s09_unsynchronised_device_timing_is_refused():
    device = Device()
    with pytest.raises(RuleBroken, match="without synchronising"):
        Timed([device.launch], device="cuda").warm_up()
    unsafe = Timed([device.launch], device="cuda", warm=1)
    with pytest.raises(RuleBroken, match="without synchronising"):
        unsafe.sample(1)


def test_s09_synchronised_timing_sees_the_work():
    device = Device()
    synced = Timed([device.launch], device="cuda", synchronize=device.synchronize)
    synced.warm_up()
    assert synced.sample(1) >= 0.004
    believed_host = Timed([device.launch], warm=1)
    assert believed_host.sample(1) < 0.004  # what S09 would have reported
    device.synchronize()


def test_s10_the_first_call_is_kept_apart():
    seen = []

    def call():
        if not seen:
            time.sleep(0.05)
        seen.append(1)

    timed = Timed([call])
    timed.warm_up()
    samples = [timed.sample(10) for _ in range(5)]
    assert timed.first_call >= 0.05
    assert max(samples) < 0.01


def test_s10_timing_without_warm_up_is_refused():
    with pytest.raises(RuleBroken, match="no warm-up"):
        Timed([int]).sample(1)
    with pytest.raises(RuleBroken, match="not warm"):
        rules.no_cold_sample([1.0, 0.01, 0.01, 0.011], 1)
    rules.no_cold_sample([0.02, 0.01, 0.01, 0.011], 1)
    rules.no_cold_sample([0.005, 1e-5, 1e-5, 1e-5], 10)  # interrupted, too short to have compiled


def test_s10_a_compilation_inside_the_timing_is_refused(monkeypatch):
    timed = Timed([int], warm=1)
    once = iter([3, 4, 4, 4])
    monkeypatch.setattr(rules, "compiled_kernels", lambda: next(once))
    assert timed.sample(1) < 1 and next(once, None) is None  # dropped, then taken again
    always = iter(range(10))
    monkeypatch.setattr(rules, "compiled_kernels", lambda: next(always))
    with pytest.raises(RuleBroken, match="compiled inside the timing"):
        timed.sample(1)


def test_memory_cases_rotate_and_cached_ones_are_refused():
    (case,) = parse("f matmul 1x512x512 float32 cache=memory")
    sets = alternate.operand_sets(case)
    rules.rotated("memory", case.bytes, len(sets), alternate.machine.last_level_cache())
    assert len({s.b.ctypes.data for s in sets}) == len(sets) > 2
    with pytest.raises(RuleBroken, match="can live in a cache"):
        rules.rotated("memory", 1000, 1, 10**6)
    rules.rotated("hot", 1000, 1, 10**6)


def test_thread_counts_are_verified():
    with pytest.raises(RuleBroken, match="runs 2 threads"):
        rules.threads_as_stated(1, [{"prefix": "libblas", "num_threads": 2}])
    alternate.set_threads(1)


def test_rotated_calls_take_turns_and_samples_are_per_call():
    order = []
    timed = Timed([lambda: order.append(0), lambda: order.append(1)], warm=1)
    timed.sample(5)
    assert order == [0, 1, 0, 1, 0]
    sleeper = Timed([lambda: time.sleep(0.002)], warm=1)
    assert 0.002 <= sleeper.sample(3) < 0.02
    assert 1 <= sleeper.number_for(0.008) <= 5


def test_an_injected_slowdown_prolongs_the_sample():
    sleeper = Timed([lambda: time.sleep(0.01)], warm=1)
    plain, slow = sleeper.sample(1), sleeper.sample(1, slowdown=2.0)
    assert slow > 1.6 * 0.01 and plain < slow
    assert calibration_loop() > 0


def test_a_call_beyond_all_patience_is_not_repeated(monkeypatch):
    monkeypatch.setattr(alternate, "_PATIENCE", 0.001)
    calls = []

    def slow(a, b, out=None):
        calls.append(1)
        time.sleep(0.01)
        return a @ b

    class Slow(contenders.NumPy):
        def make(self, case, sets):
            return contenders._on_host([lambda s=s: slow(s.a, s.b) for s in sets])

    (case,) = parse("f matmul 8 float32")
    got = alternate.compare(case, [Slow()], 5, 1e-4)
    assert "too slow to repeat" in got["NumPy"]["reason"] and len(calls) == 1
