"""The gate's honesty, tested on itself: simulated and real runs, unchanged and with faults.

Real runs measure one and the same installed revision on both sides. A fault prolongs head's samples
of one case by a factor, busy; see `timing.Timed.sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import simulate
from .cases import Case, parse
from .gate import Gate
from .inference import Rules
from .revisions import Side

# Short and unlike: a call of a microsecond, one of tens, one of milliseconds.
SHORT = parse(
    """
    selftest matmul 8   float64 out=yes
    selftest matmul 64  float32
    selftest matmul 192 float32
    selftest matmul 128 float64
    """
)
SMALL, LARGE = 1.03, 1.10


@dataclass(frozen=True)
class Finding:
    """One property: what was counted, out of how many, what is demanded, and whether it holds."""

    what: str
    count: int
    of: int
    demand: str
    holds: bool


def simulated(runs: int = 10_000, faults: int = 1_000) -> list[Finding]:
    """The false-alarm rate and the power on simulated noise."""
    same = simulate.gate_runs(runs)
    large = simulate.gate_runs(faults, slowdown=LARGE, seed=1)
    small = simulate.gate_runs(faults, slowdown=SMALL, seed=2)
    return [
        Finding("simulated A/A gate runs with an alarm", same.false_alarms, runs, "<= 1 %",
                same.false_alarms <= 0.01 * runs),
        Finding("the same, read as any p < 0.05", same.naive, runs, "-", True),
        Finding(f"simulated {LARGE} x found", large.found, faults, ">= 95 %",
                large.found >= 0.95 * faults),
        Finding(f"simulated {SMALL} x reported below the noise floor or as an alarm",
                small.below_floor + small.found, faults, "all",
                small.below_floor + small.found == faults),
    ]  # fmt: skip


def real(
    sides: Sequence[Side],
    runs: int,
    contender: str = "gemm",
    told: Callable[[str], None] = lambda text: None,
    cases: Sequence[Case] = SHORT,
    rules: Rules | None = None,
) -> list[Finding]:
    """`runs` A/A gate runs and as many with two faults; drift of the machine counts as no alarm."""
    rules = rules or Rules()
    alarms = found = below = silent = 0
    for number in range(runs):
        told(f"A/A run {number + 1} of {runs}, {alarms} alarms")
        gate = Gate(sides, cases, rules, contender)
        gate.run()
        alarms += any(v.kind == "slower" for v in gate.verdicts.values())
    large, small = cases[-1].name, cases[1].name
    for number in range(runs):
        told(f"fault run {number + 1} of {runs}, {found} found")
        faults = {large: LARGE, small: SMALL}
        gate = Gate(sides, cases, rules, contender, slowdown=faults)
        gate.run()
        found += gate.verdicts[large].kind == "slower"
        kind = gate.verdicts[small].kind
        below += kind == "below floor"
        silent += kind in ("same", "faster")
    counts = runs >= 20  # a few runs say that it works, not how often it finds
    demand = ">= 95 in 100" if counts else "-"
    enough = found >= 0.95 * runs or not counts
    return [
        Finding("real A/A gate runs with an alarm", alarms, runs, "<= 1 in 100", alarms <= 1),
        Finding(f"real {LARGE} x found", found, runs, demand, enough),
        Finding(f"real {SMALL} x reported below the noise floor", below, runs, "-", True),
        Finding(f"real {SMALL} x missed silently", silent, runs, "0", silent == 0),
    ]
