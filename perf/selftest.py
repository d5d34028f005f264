"""The gate's honesty, tested on itself: simulated and real runs, unchanged and with faults.

Real runs measure one and the same revision, installed twice, on both sides. A fault prolongs head's
samples of one case by a factor, busy; see `timing.Timed.sample`. A run is whole: screening, fresh
processes in each round, confirmation, exit code; it is short as its cases are few and its rounds
the fewest that can reach the gate's level.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from . import machine, simulate
from .cases import Case, parse
from .gate import NOT_COMPARABLE, REGRESSION, Gate
from .inference import Rules
from .revisions import Side
from .rounds import drift

# Short and unlike: a call of half a microsecond, of some, of tens, of a hundred.
SHORT = parse(
    """
    selftest matmul 8   float64 out=yes
    selftest matmul 64  float32
    selftest matmul 192 float32
    selftest matmul 128 float64
    """
)
SHORT_RULES = Rules(screen_rounds=5, confirm_rounds=10)
SMALL, LARGE = 1.03, 1.10
SAME, FAULT = "nothing changed", "faults"


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
    rules: Rules = SHORT_RULES,
    done: list[dict[str, Any]] | None = None,
    until: float = float("inf"),
    keep: Callable[[list[dict[str, Any]]], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """`runs` comparable A/A gate runs and as many with two faults, in turn; one entry a run.

    done: the entries so far, to which new ones are appended. until: `time.monotonic()` at which no
    further run begins. keep: hears all entries after each run. Runs that the gate refuses (exit
    code 3) are kept and repeated; after three times `runs` of them it is enough.
    """
    done = [] if done is None else done
    while time.monotonic() < until and not hopeless(done, runs):
        counts = {kind: len(comparable(done, kind)) for kind in (SAME, FAULT)}
        tries = {k: sum(run["kind"] == k for run in done) for k in counts if counts[k] < runs}
        if not tries:
            break
        kind = min(tries, key=lambda k: tries[k])
        told(f"{sum(counts.values()) + 1} of {2 * runs} runs, {refused(done)} refused: {kind}")
        turn = sum(run["kind"] == kind for run in done)
        done.append(_run(sides, kind, turn, contender, cases, rules))
        keep(done)
    return done


def _run(
    sides: Sequence[Side],
    kind: str,
    turn: int,
    contender: str,
    cases: Sequence[Case],
    rules: Rules,
) -> dict[str, Any]:
    started = time.monotonic()
    # every case has its turn
    large, small = (cases[(turn + i) % len(cases)].name for i in range(2))
    faults = {large: LARGE, small: SMALL} if kind == FAULT else {}
    gate = Gate(sides, cases, rules, contender, slowdown=faults)
    gate.run()
    return {
        "kind": kind,
        "exit": gate.code,
        "seconds": round(time.monotonic() - started, 2),
        "load": machine.load(),
        "drift": drift(gate.rounds.calibration),
        "notes": gate.notes,
        "large": large if faults else "",
        "small": small if faults else "",
        "confirmed": [r.case.name for r in gate.records if "confirming" in r.phases],
        "verdicts": {name: dataclasses.asdict(v) for name, v in gate.verdicts.items()},
    }


def comparable(done: Sequence[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The runs of one kind that the gate did not refuse."""
    return [run for run in done if run["kind"] == kind and run["exit"] != NOT_COMPARABLE]


def refused(done: Sequence[dict[str, Any]]) -> int:
    """Runs with exit code 3."""
    return sum(run["exit"] == NOT_COMPARABLE for run in done)


def findings(done: Sequence[dict[str, Any]]) -> list[Finding]:
    """What the runs show. Rates are demanded of 20 runs or more."""
    same, fault = comparable(done, SAME), comparable(done, FAULT)
    alarms = sum(run["exit"] == REGRESSION for run in same)
    kinds = [(r["verdicts"][r["large"]]["kind"], r["verdicts"][r["small"]]["kind"]) for r in fault]
    found = sum(large == "slower" for large, _ in kinds)
    small = [kind for _, kind in kinds]
    told = sum(kind in ("below floor", "slower") for kind in small)
    others = sum(
        any(
            verdict["kind"] == "slower" and name not in (run["large"], run["small"])
            for name, verdict in run["verdicts"].items()
        )
        for run in fault
    )
    counts = len(fault) >= 20
    return [
        Finding("real A/A gate runs with an alarm", alarms, len(same), "<= 1 in 100",
                alarms <= max(1, len(same) // 100)),
        Finding(f"real {LARGE} x found", found, len(fault), ">= 95 in 100" if counts else "-",
                found >= 0.95 * len(fault) or not counts),
        Finding(f"real {SMALL} x reported below the noise floor", small.count("below floor"),
                len(fault), "-", True),
        Finding(f"real {SMALL} x missed silently", len(fault) - told, len(fault), "0",
                told == len(fault)),
        Finding("of these runs, an alarm in a case without a fault", others, len(fault),
                "<= 1 in 100", others <= max(1, len(fault) // 100)),
        Finding("runs refused as not comparable (exit code 3)", refused(done), len(done), "-",
                True),
    ]  # fmt: skip


def hopeless(done: Sequence[dict[str, Any]], runs: int) -> bool:
    """Whether the gate refused so many runs that this machine will not do."""
    return not complete(done, runs) and refused(done) > 3 * runs


def complete(done: Sequence[dict[str, Any]], runs: int) -> bool:
    """Whether `done` holds `runs` comparable runs of each kind."""
    return all(len(comparable(done, kind)) >= runs for kind in (SAME, FAULT))


def require_same(state: dict[str, Any], rules: Rules = SHORT_RULES) -> None:
    """ValueError, naming what differs, unless the runs of a stored `state` may be added to here."""
    here = {"identity": machine.identity(), "rules": dataclasses.asdict(rules)}
    there = {"identity": state["machine"]["identity"], "rules": state["rules"]}
    for key, value in here.items():
        if there[key] != value:
            raise ValueError(f"the stored runs have another {key}: {there[key]}, here {value}")
