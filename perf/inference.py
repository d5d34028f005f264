"""Is one revision slower than another? The statistics of the gate, on SciPy's tests.

The unit is a *round*: both revisions started as fresh processes on one processor and sampled
alternately, in random order, a millisecond each. It yields one log ratio a case: the median over
neighbouring samples of head/base. What disturbs a shared processor (its hardware thread's twin, its
clock) lasts longer than two neighbouring samples and is no difference between them: on a virtual
machine whose kernels ran at 1.0 or 1.7 times their best time, in turn, the ratios of rounds spread
by 1..2 %, against 3..25 % of the ratios of the quickest samples of two processors.

Under "nothing changed" the two sides are exchangeable within a round, whatever the noise looks like
over time and however heavy its tails, so the signs of the log ratios are symmetric and Wilcoxon's
signed-rank test on rounds is exact.

1. *Screening*: a case is a candidate when its test is below `screen_alpha` and its median is above
   half the smallest effect. This is lenient; it only saves time.
2. *Confirmation*: candidates alone are measured again in more, fresh rounds. One is an alarm when
   its p is at most `gate_alpha` / number of candidates (Bonferroni) and its median exceeds both the
   smallest effect and the case's own noise floor. No screening sample enters. So the chance that a
   whole gate run alarms falsely is at most `gate_alpha`, for any number of cases.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats


@dataclass(frozen=True)
class Rules:
    """The gate's constants. `resolution`: below this a difference is called none."""

    screen_rounds: int = 8
    confirm_rounds: int = 14
    samples: int = 25
    screen_alpha: float = 0.10
    gate_alpha: float = 0.01
    min_effect: float = 0.05
    resolution: float = 0.02

    def __post_init__(self) -> None:
        if not 0 < self.gate_alpha < 1 or not 0 < self.screen_alpha < 1:
            raise ValueError(f"alphas {self.screen_alpha}, {self.gate_alpha} are not in (0, 1)")
        if not 0 < self.min_effect <= 1:
            raise ValueError(f"smallest effect {self.min_effect} is not in (0, 1]: 0.05 is 5 %")
        if self.screen_rounds < 5 or 2.0**-self.confirm_rounds > self.gate_alpha / 8:
            raise ValueError(
                f"{self.screen_rounds} + {self.confirm_rounds} rounds cannot reach p = "
                f"{self.gate_alpha} / 8 candidates: need at least 5 + "
                f"{math.ceil(math.log2(8 / self.gate_alpha))}"
            )


def round_ratios(base: ArrayLike, head: ArrayLike) -> NDArray:
    """Median log ratios of samples taken in turn: (.., rounds, samples) each -> (.., rounds)."""
    return np.median(np.log(head) - np.log(base), axis=-1)


def p_slower(ratios: ArrayLike) -> NDArray:
    """One-sided p of "not slower" over the last axis: exact Wilcoxon signed-rank.

    Values with ties or zeros (bytes of memory) take the same test with all signs enumerated.
    """
    x = np.asarray(ratios, float)
    if x.ndim > 1:  # continuous by construction: simulations
        return stats.wilcoxon(x, axis=-1, alternative="greater", method="exact").pvalue
    if not np.any(x):
        return np.array(1.0)
    if len(np.unique(np.abs(x))) == len(x) and np.all(x):
        return np.array(stats.wilcoxon(x, alternative="greater", method="exact").pvalue)
    ranks = np.sign(x) * stats.rankdata(np.abs(x))
    return np.array(
        stats.permutation_test(
            (ranks,),
            np.sum,
            permutation_type="samples",
            alternative="greater",
            vectorized=True,
            n_resamples=2 ** len(x),
        ).pvalue
    )


def noise_floor(ratios: ArrayLike) -> NDArray:
    """Smallest log ratio that these rounds can tell from none: two standard errors of their median.

    The spread is the median absolute deviation about the median, so that a real change does not
    enter it and a few disturbed rounds do not either.
    """
    x = np.asarray(ratios, float)
    spread = stats.median_abs_deviation(x, axis=-1, scale="normal")
    return 2 * math.sqrt(math.pi / 2) * spread / math.sqrt(x.shape[-1])


def threshold(ratios: ArrayLike, rules: Rules) -> NDArray:
    """The log ratio that a median must exceed to be an alarm."""
    return np.maximum(math.log1p(rules.min_effect), noise_floor(ratios))


def is_suspect(ratios: ArrayLike, rules: Rules) -> NDArray:
    """Is the median above half the smallest effect? Enough where samples are no neighbours."""
    return np.median(np.asarray(ratios), axis=-1) > math.log1p(rules.min_effect) / 2


def is_candidate(ratios: ArrayLike, rules: Rules) -> NDArray:
    """Screening: worth a second look?"""
    return is_suspect(ratios, rules) & (p_slower(ratios) <= rules.screen_alpha)


def is_alarm(ratios: ArrayLike, candidates: ArrayLike, rules: Rules) -> NDArray:
    """Confirmation on fresh rounds, among `candidates` cases confirmed together."""
    large = np.median(np.asarray(ratios), axis=-1) > threshold(ratios, rules)
    return large & (p_slower(ratios) <= rules.gate_alpha / np.maximum(1, candidates))


def interval(log_ratios: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of the median ratio: exact for any distribution (order statistics).

    Too few values for the confidence asked give their range.
    """
    x = np.asarray(log_ratios, float)
    found = stats.quantile_test(x, q=float(np.median(x)), p=0.5).confidence_interval(confidence)
    low = x.min() if math.isnan(found.low) else found.low
    high = x.max() if math.isnan(found.high) else found.high
    return math.exp(low), math.exp(high)


@dataclass(frozen=True)
class Verdict:
    """What the gate says of one case. `floor` and `ratio - 1` are relative changes."""

    kind: str  # slower | faster | same | below floor
    ratio: float
    low: float
    high: float
    floor: float
    p: float

    @property
    def sentence(self) -> str:
        """The verdict in words, with the figure that matters."""
        percent = f"{100 * (self.ratio - 1):+.1f} %"
        if self.kind == "below floor":
            return (
                f"{percent} measured, below the noise floor of {100 * self.floor:.1f} %: "
                f"{100 * (self.low - 1):+.1f} to {100 * (self.high - 1):+.1f} % is not excluded"
            )
        if self.kind == "same":
            return f"no difference (at most {100 * max(self.high - 1, 1 - self.low):.1f} %)"
        return f"{percent}, confirmed on fresh runs" if self.kind == "slower" else percent


def verdict(ratios: ArrayLike, rules: Rules, alarm: bool) -> Verdict:
    """Classify one case from its rounds. Only `alarm` (confirmed) makes it "slower".

    "same" is a claim and needs evidence: the whole interval lies within `resolution`. What is
    neither shown slower nor shown the same is "below floor", never silence.
    """
    x = np.asarray(ratios, float)
    ratio, (low, high) = math.exp(float(np.median(x))), interval(x)
    floor = math.expm1(float(threshold(x, rules)))
    if alarm:
        kind = "slower"
    elif ratio < 1 / (1 + floor) and high < 1:
        kind = "faster"
    elif high <= 1 + rules.resolution and low >= 1 / (1 + rules.resolution):
        kind = "same"
    else:
        kind = "below floor"
    return Verdict(kind, ratio, low, high, floor, float(p_slower(x)))
