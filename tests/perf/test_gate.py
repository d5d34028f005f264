"""The gate's decisions and exit codes, on workers whose speed is known; CASES S01, S05, S07."""

import json

import pytest

from gemm.perf import baseline, gate, machine, rounds, store
from gemm.perf.cases import parse
from gemm.perf.gate import CLEAN, INTERRUPTED, NOT_COMPARABLE, REGRESSION, Gate
from gemm.perf.revisions import BadRevision
from gemm.perf.rounds import FEWEST_SAMPLES

CASES = parse("f matmul 8,16,32,64 float32")
NAMES = [case.name for case in CASES]


def run(sides, cases=CASES, **more):
    one = Gate(sides, cases, contender="NumPy", **more)
    return one, one.run()


def test_nothing_changed_is_clean_and_raw_samples_are_kept(fake, sides):
    one, code = run(sides)
    assert code == CLEAN
    result = json.loads(json.dumps(one.result()))
    samples = result["cases"][0]["samples"]["screening"]
    assert [len(samples[s]) for s in ("base", "head")] == [8, 8]
    # Fewer than asked for where the first call was slow.
    assert FEWEST_SAMPLES <= len(samples["base"][0]) <= one.rules.samples
    assert result["complete"] and result["cases"][0]["number"] == 1


def test_s01_a_hundred_runs_of_the_same_revision_alarm_at_most_once(fake, sides):
    fake.noise = 0.15
    codes = [run(sides, CASES[:2])[1] for _ in range(100)]
    assert codes.count(REGRESSION) <= 1 and set(codes) <= {CLEAN, REGRESSION}


def test_a_regression_is_confirmed_on_fresh_processes(fake, sides):
    fake.plan = {("head", NAMES[2]): 1.10}
    one, code = run(sides)
    assert code == REGRESSION
    assert {n: v.kind for n, v in one.verdicts.items() if v.kind == "slower"} == {
        NAMES[2]: "slower"
    }
    confirmed = [r for r in one.records if "confirming" in r.phases]
    assert NAMES[2] in [r.case.name for r in confirmed]
    assert len(confirmed[0].phases["confirming"]["head"]) == one.rules.confirm_rounds
    assert fake.started == 2 * (one.rules.screen_rounds + one.rules.confirm_rounds)


def test_three_percent_is_below_the_floor_not_silent(fake, sides):
    fake.plan = {("head", NAMES[1]): 1.03}
    one, code = run(sides)
    verdict = one.verdicts[NAMES[1]]
    assert code == CLEAN and verdict.kind == "below floor"
    assert "below the noise floor of 5.0 %" in verdict.sentence


def test_a_suspicion_that_fresh_rounds_do_not_confirm_is_no_alarm(fake, sides):
    class Settles(dict):
        def get(self, key, default=None):
            screening = fake.started <= 2 * 8
            return 1.3 if key == ("head", NAMES[0]) and screening else default

    fake.plan = Settles()
    one, code = run(sides)
    assert "confirming" in one.records[0].phases
    assert code == CLEAN and one.verdicts[NAMES[0]].kind != "slower"


def test_faster_is_no_regression(fake, sides):
    fake.plan = {("head", NAMES[0]): 0.7}
    one, code = run(sides)
    assert code == CLEAN and one.verdicts[NAMES[0]].kind == "faster"


def test_drift_of_the_calibration_loop_is_not_comparable(fake, sides):
    fake.pulses = iter([0.001] * 8 + [0.004] * 8)
    one, code = run(sides)
    assert code == NOT_COMPARABLE and "drifted by 300 %" in one.notes[0]


def test_another_machine_or_library_is_not_comparable(fake, sides):
    fake.identities = {"head": {**machine.identity(), "numpy": "0.1"}}
    one, code = run(sides)
    assert code == NOT_COMPARABLE and "0.1" in one.notes[0]


def test_what_only_base_lacks_is_reported_and_the_rest_judged(fake, sides):
    fake.plan = {("base", NAMES[0]): {"reason": "no such dtype"}}
    one, code = run(sides)
    assert code == CLEAN
    assert one.records[0].reason == "not available at base: no such dtype"
    assert set(one.verdicts) == set(NAMES[1:])


def test_what_head_lost_or_crashes_is_not_comparable(fake, sides, died):
    for trouble in ({"reason": "result at (0, 0): got 1, expected 2"}, died):
        fake.plan = {("head", NAMES[0]): trouble}
        one, code = run(sides)
        assert code == NOT_COMPARABLE
        assert any("can no longer be measured" in note for note in one.notes)
        assert set(one.verdicts) == set(NAMES[1:])


def test_the_wrong_package_under_measurement_is_refused(fake, sides):
    one = Gate(sides, CASES)  # contender gemm: its file must lie in the side's folder
    assert one.run() == NOT_COMPARABLE and "was imported" in one.notes[0]


def test_ctrl_c_leaves_what_was_complete(fake, sides):
    def told(text):
        if "round 7 of 8" in text:
            raise KeyboardInterrupt

    one = Gate(sides, CASES, contender="NumPy", told=told)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    result = one.result()
    assert one.code == INTERRUPTED and not result["complete"]
    assert len(result["cases"][0]["samples"]["screening"]["head"]) == 6
    assert all(entry["verdict"] for entry in result["cases"])


def make_baseline(path, sides, fake, **plan):
    one = Gate(sides[1:], CASES, contender="NumPy")
    with one.judging():
        one.screen()
    baseline.write(path, one)
    return baseline.read(path)


def against(found, sides, build):
    one = Gate(sides[1:], CASES, contender="NumPy")
    return one, baseline.compare(one, found, build)


def test_s05_a_slowdown_against_an_old_baseline_is_caught(fake, sides, tmp_path):
    found = make_baseline(tmp_path / "b.json", sides, fake)
    found["time"] = "2026-01-01T00:00:00+00:00"
    assert "old (2026-01-01" in baseline.describe(found)
    assert found["commit"][:10] in baseline.describe(found)
    fake.plan = {("head", NAMES[3]): 1.3}
    one, code = against(found, sides, lambda commit, name: sides[0])
    assert code == REGRESSION and one.verdicts[NAMES[3]].kind == "slower"


def test_an_unchanged_revision_passes_its_baseline_without_a_build(fake, sides, tmp_path):
    def build(commit, name):
        raise AssertionError("nothing to confirm")

    found = make_baseline(tmp_path / "b.json", sides, fake)
    assert against(found, sides, build)[1] == CLEAN


def test_a_suspect_whose_baseline_commit_is_gone_is_not_comparable(fake, sides, tmp_path):
    def build(commit, name):
        raise BadRevision("no such commit")

    found = make_baseline(tmp_path / "b.json", sides, fake)
    fake.plan = {("head", NAMES[3]): 1.5}
    one, code = against(found, sides, build)
    assert code == NOT_COMPARABLE and "cannot be confirmed" in one.notes[0]


def test_s07_a_foreign_baseline_is_not_comparable_and_says_what_differs(fake, sides, tmp_path):
    found = make_baseline(tmp_path / "b.json", sides, fake)
    found["machine"]["identity"]["cpu"] = "another CPU"
    one, code = against(found, sides, None)
    assert code == NOT_COMPARABLE and "another CPU" in one.notes[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "damaged"),
        ("[]", "not a result"),
        ('{"format": 99}', "format 99"),
        ('{"format": 1, "kind": "peers"}', "'peers'"),
        ('{"format": 1, "kind": "baseline", "cases": [{}]}', "damaged"),
    ],
)
def test_a_corrupt_baseline_is_one_clear_sentence(tmp_path, text, words):
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(store.Unreadable, match=words):
        baseline.read(tmp_path / "b.json")


def test_results_that_cannot_be_kept_say_so(tmp_path):
    (tmp_path / "file").write_text("")
    path, trouble = store.keep(tmp_path / "file" / "results", "gate", {})
    assert path is None and "not kept" in trouble


def test_drift_ignores_a_single_disturbed_round():
    pulses = [{"head": 1.0}] * 30 + [{"head": 9.0}]
    assert rounds.drift(pulses) == 0 == rounds.drift([])
    assert gate.DRIFT_LIMIT < 8
