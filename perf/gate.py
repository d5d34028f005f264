"""The gate: did HEAD get slower than BASE? Screens all cases, confirms alarms on fresh rounds.

Exit codes: 0 no regression, 1 confirmed regression, 2 bad use, 3 not comparable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from . import inference, machine
from .cases import Case
from .inference import Rules, Verdict
from .revisions import Side
from .rounds import NotComparable, Record, Rounds, drift

CLEAN, REGRESSION, BAD_USE, NOT_COMPARABLE, INTERRUPTED = 0, 1, 2, 3, 130
# Neighbouring samples stayed comparable while the pulse moved by 219 %: docs/performance.md.
DRIFT_LIMIT = 2.0


@dataclass
class Gate:
    """One gate run; after `run` (or Ctrl-C in it) `result()` holds all that is known."""

    sides: Sequence[Side]
    cases: Sequence[Case]
    rules: Rules = field(default_factory=Rules)
    contender: str = "gemm"
    slowdown: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.001
    told: Callable[[str], None] = lambda text: None
    drift_limit: float = DRIFT_LIMIT
    records: list[Record] = field(default_factory=list)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    code: int = INTERRUPTED

    def __post_init__(self) -> None:
        self._load = machine.load()  # before we make our own
        self.records = [Record(case) for case in self.cases]
        self.rounds = Rounds(
            self.sides, self.rules.samples, self.seconds, self.contender, self.slowdown, self.told
        )

    def run(self) -> int:
        """Measure and judge; returns the exit code. KeyboardInterrupt passes after judging."""
        with self.judging():
            self.screen()
            self.confirm(self.candidates())
        return self.code

    @contextmanager
    def judging(self) -> Iterator[None]:
        """Whatever ends the measuring within, there is a code and a judgement of what is known."""
        try:
            yield
        except NotComparable as error:
            self.notes.append(str(error))
            self.code = NOT_COMPARABLE
        except KeyboardInterrupt:
            self.notes.append("interrupted: what was complete is judged, nothing is confirmed")
            self._judge([])
            raise

    def screen(self) -> None:
        """Take the first rounds of every case."""
        self.rounds.take(self.records, "screening", self.rules.screen_rounds)

    def candidates(self) -> list[Record]:
        """The cases that the first rounds make suspect."""
        return [record for record in self.records if self._candidate(record)]

    def confirm(self, candidates: Sequence[Record]) -> None:
        """Measure the candidates afresh on both sides, then judge everything."""
        if candidates:
            self.rounds.take(candidates, "confirming", self.rules.confirm_rounds)
        self._judge([r for r in candidates if not r.reason])
        self.code = self._exit_code()

    def _candidate(self, record: Record) -> bool:
        ratios = log_ratios(record, "screening")
        return ratios is not None and bool(inference.is_candidate(ratios, self.rules))

    def _judge(self, confirmed: Sequence[Record]) -> None:
        for record in self.records:
            phase = "confirming" if record in confirmed else "screening"
            ratios = log_ratios(record, phase)
            if ratios is None or len(ratios) < 5:
                continue
            alarm = record in confirmed and bool(
                inference.is_alarm(ratios, len(confirmed), self.rules)
            )
            self.verdicts[record.case.name] = inference.verdict(ratios, self.rules, alarm)

    def _exit_code(self) -> int:
        moved = drift(self.rounds.calibration)
        lost = [r for r in self.records if r.lost]
        if moved > self.drift_limit:
            self.notes.append(
                f"the calibration loop drifted by {100 * moved:.0f} % (limit "
                f"{100 * self.drift_limit:.0f} %): the machine was not steady enough to compare"
            )
            return NOT_COMPARABLE
        if any(v.kind == "slower" for v in self.verdicts.values()):
            return REGRESSION
        for record in lost:
            self.notes.append(f"{record.case.name} can no longer be measured: {record.reason}")
        return NOT_COMPARABLE if lost or not self.verdicts else CLEAN

    def result(self) -> dict[str, Any]:
        """Everything, raw samples included, ready for JSON."""
        return {
            "exit": self.code,
            "complete": self.code != INTERRUPTED,
            "machine": {**machine.facts(), "load": self._load},
            "sides": {s.name: {"label": s.label, "commit": s.commit} for s in self.sides},
            "rules": dataclasses.asdict(self.rules),
            "calibration": self.rounds.calibration,
            "drift": drift(self.rounds.calibration),
            "notes": self.notes,
            "cases": [self._entry(record) for record in self.records],
        }

    def _entry(self, record: Record) -> dict[str, Any]:
        verdict = self.verdicts.get(record.case.name)
        return {
            "name": record.case.name,
            "case": record.case.line,
            "unit": record.case.unit,
            "number": record.number,
            "samples": record.phases,
            "reason": record.reason,
            "verdict": verdict and {**dataclasses.asdict(verdict), "sentence": verdict.sentence},
        }


def log_ratios(record: Record, phase: str) -> Any:
    """Round ratios of a phase, or None without samples of both sides."""
    samples = record.phases.get(phase, {})
    if record.reason or not {"base", "head"} <= set(samples):
        return None
    base, head = samples["base"], samples["head"]
    complete = min(len(base), len(head))
    if record.case.unit == "B":  # a peak may be 0 bytes; a page is the grain
        base, head = ([[v + 4096 for v in row] for row in side] for side in (base, head))
    return inference.round_ratios(base[:complete], head[:complete])
