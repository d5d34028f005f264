"""The statistics against distributions whose answer is known; CASES S08."""

import math

import numpy as np
import pytest
from scipy import stats

from gemm.perf import inference, simulate
from gemm.perf.inference import Rules


def rng(seed=0):
    return np.random.default_rng(seed)


def test_p_of_all_rounds_slower_is_exact():
    assert inference.p_slower(np.linspace(0.01, 0.02, 8)) == pytest.approx(2**-8)
    assert inference.p_slower(np.zeros(8)) == 1
    assert inference.p_slower(-np.linspace(0.01, 0.02, 8)) == pytest.approx(1)


@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy"])
def test_p_is_valid_under_no_difference_whatever_the_tails(draw):
    x = getattr(rng(), draw)((20_000, 14))
    p = inference.p_slower(x)
    for level in (0.1, 0.05, 0.01, 0.001):
        wrong = (p <= level).sum()
        assert stats.binomtest(int(wrong), len(p), level, "greater").pvalue > 1e-4


def test_ties_take_the_permutation_form_and_stay_valid():
    draws = rng(1).integers(-2, 3, (400, 9)).astype(float)
    p = np.array([float(inference.p_slower(x)) for x in draws])
    assert (p <= 0.05).mean() <= 0.05 + 3 * math.sqrt(0.05 / 400)


@pytest.mark.parametrize("draw", ["normal", "laplace"])
def test_intervals_cover_the_median(draw):
    found = [inference.interval(getattr(rng(i), draw)(0.1, 1, 15)) for i in range(400)]
    covered = sum(low <= math.exp(0.1) <= high for low, high in found)
    assert covered >= 0.95 * 400 - 3 * math.sqrt(400 * 0.05 * 0.95)


def test_interval_of_few_values_is_their_range():
    low, high = inference.interval([0.0, 0.1, 0.2])
    assert (low, high) == (1.0, pytest.approx(math.exp(0.2)))


def test_noise_floor_is_two_standard_errors_of_the_median_and_shift_invariant():
    x = rng(2).normal(0, 0.03, (4000, 15))
    floor = np.median(inference.noise_floor(x))
    actual = 2 * np.median(x, axis=-1).std()
    assert floor == pytest.approx(actual, rel=0.2)
    np.testing.assert_allclose(inference.noise_floor(x), inference.noise_floor(x + 0.4))


def test_s08_each_case_has_its_own_threshold():
    rules = Rules()
    steady = inference.threshold(rng(3).normal(0, 0.002, 14), rules)
    shaky = inference.threshold(rng(3).normal(0, 0.3, 14), rules)
    assert steady == pytest.approx(math.log1p(rules.min_effect))
    assert shaky > 2 * steady


def test_round_ratios_compare_neighbours_so_that_slow_phases_of_the_machine_cancel():
    phases = np.where(np.arange(25) % 9 < 4, 1.0, 1.7)
    base = np.stack([phases, phases[::-1]])
    np.testing.assert_allclose(inference.round_ratios(base, 1.1 * base), np.log([1.1, 1.1]))
    disturbed = base * np.where(np.arange(25) == 3, 50.0, 1.1)
    np.testing.assert_allclose(inference.round_ratios(base, disturbed), np.log([1.1, 1.1]))


@pytest.mark.parametrize(
    ("shift", "spread", "alarm", "kind"),
    [
        (0.0, 0.001, False, "same"),
        (math.log(1.03), 0.001, False, "below floor"),
        (0.0, 0.1, False, "below floor"),
        (math.log(0.8), 0.01, False, "faster"),
        (math.log(1.2), 0.01, True, "slower"),
    ],
)
def test_verdicts(shift, spread, alarm, kind):
    found = inference.verdict(shift + rng(4).normal(0, spread, 14), Rules(), alarm)
    assert found.kind == kind
    assert found.sentence


def test_a_small_slowdown_is_never_called_the_same():
    for seed in range(200):
        spread = 10 ** rng(seed).uniform(-3.5, -0.5)
        x = math.log(1.03) + rng(seed + 1000).normal(0, spread, 14)
        assert inference.verdict(x, Rules(), False).kind != "same" or np.median(x) < math.log(1.02)


def test_rules_that_cannot_reach_their_level_are_refused():
    with pytest.raises(ValueError, match="rounds cannot reach"):
        Rules(confirm_rounds=6)
    with pytest.raises(ValueError, match="alphas"):
        Rules(gate_alpha=0)


def test_simulated_gate_runs_alarm_at_most_one_in_a_hundred():
    outcome = simulate.gate_runs(4_000)
    print(f"simulated A/A: {outcome.false_alarms} alarms in {outcome.runs} gate runs")
    assert outcome.false_alarms <= 40
    assert outcome.naive > 2000  # the same noise read plainly alarms in most runs


def test_simulated_faults_are_found_or_reported():
    large = simulate.gate_runs(400, slowdown=1.10, seed=1)
    assert large.found >= 0.95 * 400
    small = simulate.gate_runs(200, slowdown=1.03, seed=2)
    assert small.found + small.below_floor == 200


def test_false_alarms_stay_bounded_in_worse_noise():
    worse = simulate.Noise(drift=0.2, correlation=0.995, process=0.08, tail=0.05, burst=2.0)
    assert simulate.gate_runs(2000, noise=worse, seed=3).false_alarms <= 20
