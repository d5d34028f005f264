"""Gate runs on simulated timing noise, to test the gate's honesty without a machine.

The noise of a shared machine as it is seen: a slow, strongly autocorrelated drift of the whole
machine; a bias of each process that lasts as long as the process (where memory happened to lie);
heavy-tailed noise of each sample; and bursts in which someone else's job slows what runs by a lot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

from . import inference


@dataclass(frozen=True)
class Noise:
    """Relative sizes. Cases differ by a log-normal factor around them (`unlike`)."""

    drift: float = 0.05
    correlation: float = 0.97
    process: float = 0.02
    tail: float = 0.01
    burst: float = 0.4
    burst_rate: float = 0.04
    unlike: float = 0.7


@dataclass(frozen=True)
class Outcome:
    """Of `runs` gate runs: how many alarmed falsely, found the fault, called it below floor."""

    runs: int
    cases: int
    false_alarms: int
    found: int = 0
    below_floor: int = 0
    naive: int = 0


def rounds(
    rng: np.random.Generator, shape: tuple[int, ...], samples: int, noise: Noise, scale: NDArray
) -> NDArray:
    """Round ratios for `shape` = (runs, cases, rounds), with no difference between the sides."""
    runs, cases, count = shape
    full = (runs, count, cases, samples, 2)  # in the order of time, sides adjacent
    steps = rng.standard_normal((runs, count * cases * samples * 2), np.float32)
    drift = lfilter([1], [1, -noise.correlation], steps, axis=-1).reshape(full)
    log = drift * (noise.drift * np.sqrt(1 - noise.correlation**2))
    log += noise.process * rng.standard_normal((runs, count, cases, 1, 2), np.float32)
    # Student's t of 2 degrees: a normal over the root of an exponential
    spread = np.sqrt(rng.standard_exponential(full, np.float32) + np.float32(1e-6))
    log += noise.tail * np.abs(rng.standard_normal(full, np.float32)) / spread
    hit = np.nonzero(rng.random(full, np.float32) < noise.burst_rate)
    log[hit] += noise.burst * rng.standard_exponential(len(hit[0]), np.float32)
    log *= scale[:, None, :, None, None].astype(np.float32)
    # which side comes first is drawn for each pair
    swapped = rng.random(full[:-1], np.float32) < 0.5
    pairs = (log[..., 1] - log[..., 0]) * np.where(swapped, -1, 1)
    return np.median(pairs, axis=-1).transpose(0, 2, 1)


def gate_runs(
    runs: int,
    cases: int = 40,
    rules: inference.Rules | None = None,
    noise: Noise | None = None,
    slowdown: float = 1.0,
    seed: int = 0,
) -> Outcome:
    """Simulate whole gate runs; `slowdown` is injected into case 0 of each.

    `naive` counts the runs in which the plain reading of the same screening rounds (p < 0.05 in any
    case, no confirmation) would have alarmed.
    """
    rules, noise = rules or inference.Rules(), noise or Noise()
    rng = np.random.default_rng(seed)
    false = found = below = naive = 0
    for start in range(0, runs, 100):
        block = min(100, runs - start)
        scale = np.exp(noise.unlike * rng.standard_normal((block, cases)))
        shift = np.zeros(cases)
        shift[0] = np.log(slowdown)
        first = rounds(rng, (block, cases, rules.screen_rounds), rules.samples, noise, scale)
        first += shift[None, :, None]
        candidate = inference.is_candidate(first, rules)
        naive += int((inference.p_slower(first) < 0.05).any(1).sum())
        run, case = np.nonzero(candidate)
        pick = scale[run, case][:, None]
        again = rounds(rng, (len(run), 1, rules.confirm_rounds), rules.samples, noise, pick)[:, 0]
        again += shift[case][:, None]
        alarm = np.zeros_like(candidate)
        if len(run):
            alarm[run, case] = inference.is_alarm(again, candidate.sum(1)[run], rules)
        false += int(alarm[:, 1 if slowdown != 1 else 0 :].any(1).sum())
        if slowdown != 1:
            found += int(alarm[:, 0].sum())
            seen = first[:, 0]
            confirmed = dict(zip(run[case == 0], again[case == 0], strict=True))
            for missed in np.flatnonzero(~alarm[:, 0]):
                ratios = confirmed.get(missed, seen[missed])
                below += inference.verdict(ratios, rules, False).kind == "below floor"
    return Outcome(runs, cases, false, found, below, naive)
