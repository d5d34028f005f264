"""The self-test's real runs, on workers whose noise is known."""

from gemm.perf import selftest
from gemm.perf.inference import Rules

QUICK = Rules(screen_rounds=6, confirm_rounds=10)


def test_real_runs_keep_the_promises_and_count_them(fake, sides):
    fake.noise = 0.02
    told = []
    findings = selftest.real(sides, 20, "NumPy", told.append, rules=QUICK)
    counts = {one.what: one for one in findings}
    assert all(one.holds and one.of == 20 for one in findings)
    assert counts["real 1.1 x found"].count >= 19
    assert counts["real 1.03 x missed silently"].count == 0
    assert len(told) == 40


def test_a_gate_that_finds_nothing_fails_its_self_test(fake, sides, monkeypatch):
    monkeypatch.setattr(selftest, "LARGE", 1.0)
    findings = selftest.real(sides, 20, "NumPy", rules=QUICK)
    assert [one.holds for one in findings if "found" in one.what] == [False]
