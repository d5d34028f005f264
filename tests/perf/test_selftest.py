"""The self-test's real runs, on workers whose noise is known; one real run, as CI does it."""

import functools
import json
import time

from gemm.perf import gate, machine, selftest, store
from gemm.perf.__main__ import main
from gemm.perf.gate import NOT_COMPARABLE


def by_name(done):
    return {one.what: one for one in selftest.findings(done)}


def test_real_runs_keep_the_promises_and_count_them(fake, sides):
    fake.noise = 0.02
    told, kept = [], []
    done = selftest.real(sides, 20, "NumPy", told.append, keep=lambda runs: kept.append(len(runs)))
    counts = by_name(done)
    assert all(one.holds for one in counts.values())
    assert [run["kind"] for run in done[:4]] == [selftest.SAME, selftest.FAULT] * 2
    assert len(told) == 40 and kept == list(range(1, 41))
    assert counts["real 1.1 x found"].count >= 19 and counts["real 1.1 x found"].of == 20
    assert counts["real 1.03 x missed silently"].count == 0
    faulted = [run["large"] for run in done if run["large"]]
    assert len(set(faulted)) == len(selftest.SHORT)  # every case had the fault in its turn
    assert json.loads(json.dumps(done)) == done


def test_a_gate_that_finds_nothing_fails_its_self_test(fake, sides, monkeypatch):
    monkeypatch.setattr(selftest, "LARGE", 1.0)
    found = selftest.findings(selftest.real(sides, 20, "NumPy"))
    assert [one.holds for one in found if "found" in one.what] == [False]


def test_a_gate_that_cries_wolf_fails_its_self_test(fake, sides):
    fake.plan = {("head", case.name): 1.2 for case in selftest.SHORT}
    found = by_name(selftest.real(sides, 3, "NumPy"))
    alarms = found["real A/A gate runs with an alarm"]
    assert (alarms.count, alarms.of, alarms.holds) == (3, 3, False)


def test_runs_that_the_gate_refuses_are_repeated_and_told(fake, sides):
    fake.pulses = iter([0.001] * 5 + [0.009] * 5)  # the first run alone
    done = selftest.real(sides, 2, "NumPy")
    assert [run["exit"] == NOT_COMPARABLE for run in done] == [True] + [False] * 4
    refused = by_name(done)["runs refused as not comparable (exit code 3)"]
    assert (refused.count, refused.of) == (1, 5)


def test_a_machine_that_is_never_steady_ends_the_self_test(fake, sides):
    class Wild:
        def __init__(self):
            self.value = 0.001

        def __next__(self):
            self.value *= 1.5
            return self.value

    fake.pulses = Wild()
    done = selftest.real(sides, 1, "NumPy")
    assert len(done) == 4 and selftest.hopeless(done, 1) and not selftest.complete(done, 1)


def test_runs_are_added_until_the_time_is_spent(fake, sides):
    done = selftest.real(sides, 2, "NumPy", until=time.monotonic() - 1)
    assert done == []
    done = selftest.real(sides, 1, "NumPy")
    assert selftest.complete(done, 1) and not selftest.complete(done, 2)
    assert selftest.real(sides, 2, "NumPy", done=done) is done
    assert selftest.complete(done, 2) and len(done) == 4


def test_stored_runs_of_another_machine_are_refused(tmp_path, capsys):
    known = machine.facts()
    state = {"kind": "selftest", "machine": known, "rules": {}, "runs": []}
    store.write(tmp_path / "s.json", state)
    assert main(["selftest", "--resume", str(tmp_path / "s.json")]) == 2
    assert "another rules" in capsys.readouterr().err
    known["identity"]["cpu"] = "another CPU"
    store.write(tmp_path / "s.json", state)
    assert main(["selftest", "--resume", str(tmp_path / "s.json")]) == 2
    assert "another CPU" in capsys.readouterr().err


def test_one_real_run_of_each_kind(checkout, tmp_path, monkeypatch, capsys):
    """The command itself, on a stand-in package; no rates from one run, but nothing silent."""
    monkeypatch.chdir(checkout[0])
    state, simulated = str(tmp_path / "s.json"), selftest.simulated
    monkeypatch.setattr(selftest, "simulated", lambda runs, faults: simulated(500, 50))
    # other tests run beside this one
    monkeypatch.setattr(selftest, "Gate", functools.partial(gate.Gate, drift_limit=99))
    arguments = ["selftest", "--short", "--resume", state]
    assert main([*arguments, "--minutes", "0"]) == 0
    assert "not all of 1 + 1" in capsys.readouterr().out
    code = main(arguments)
    said = capsys.readouterr().out
    print(said)
    runs = store.read(state, "selftest")["runs"]
    assert {run["kind"] for run in runs} == {selftest.SAME, selftest.FAULT}
    assert all(set(run["verdicts"]) == {c.name for c in selftest.SHORT} for run in runs)
    assert "real A/A gate runs with an alarm" in said and "simulated A/A" in said
    assert code == 0
