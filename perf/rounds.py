"""Rounds of interleaved samples: in each, every side is a fresh process and they take turns.

A round draws one processor, on which both sides run their one-thread cases, and the places of the
operands in their pages, the same for both: what another processor's neighbour or another place
would change is then no difference between the sides. The raw samples are kept; nothing is averaged.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import probes
from .cases import PROCESS_OPERATIONS, Case
from .client import Worker, WorkerDied, WorkerFailed
from .contenders import NotAvailable
from .revisions import Side

FEWEST_SAMPLES = 7
Samples = dict[str, list[list[float]]]  # side name -> rounds -> samples


class NotComparable(RuntimeError):
    """The two sides (or a baseline) cannot be compared; the message says what differs."""


class _SideFailed(RuntimeError):
    def __init__(self, side: Side, message: str):
        super().__init__(message)
        self.side = side


@dataclass
class Record:
    """One case: calls a sample, samples a round, what each side gave in each phase, or why none."""

    case: Case
    number: int = 0
    samples: int = 0
    phases: dict[str, Samples] = field(default_factory=dict)
    checked: bool = False
    reason: str = ""
    lost: bool = False  # works at base, not at head

    def add(self, phase: str, samples: dict[str, list[float]]) -> None:
        """Append one round."""
        for side, values in samples.items():
            self.phases.setdefault(phase, {}).setdefault(side, []).append(values)


@dataclass
class Rounds:
    """Takes rounds of `records` on `sides`. `slowdown` maps case names to a fault put into head.

    A round has `samples` samples of about `seconds` a side and case; fewer where one call takes
    longer, but never below 7.
    """

    sides: Sequence[Side]
    samples: int = 25
    seconds: float = 0.001
    contender: str = "gemm"
    slowdown: dict[str, float] = field(default_factory=dict)
    told: Callable[[str], None] = lambda text: None
    calibration: list[dict[str, float]] = field(default_factory=list)
    rng: random.Random = field(default_factory=random.Random)
    _workers: dict[str, Worker] = field(default_factory=dict)
    _threads: int = 1
    _cpu: int | None = None
    _identity: dict[str, Any] = field(default_factory=dict)

    def take(self, records: Iterable[Record], phase: str, rounds: int) -> None:
        """`rounds` rounds of every record that has no reason against it."""
        records = list(records)
        self._threads = max((r.case.threads for r in records), default=1)
        try:
            for number in range(rounds):
                alive = [r for r in records if not r.reason]
                self.rng.shuffle(alive)
                self._stop()
                for record in alive:
                    self.told(f"{phase}, round {number + 1} of {rounds}: {record.case.name}")
                    self._round(record, phase)
        finally:
            self._stop()

    def _order(self) -> list[Side]:
        return self.rng.sample(list(self.sides), len(self.sides))

    def _stop(self) -> None:
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def _start(self) -> None:
        for side in self._order():
            worker = Worker(side.environment(self._threads), self.contender, cwd=str(side.cache))
            self._workers[side.name] = worker
        for side in self.sides:
            self._introduce(side, self._ask(side, "hello"))
        if hasattr(os, "sched_getaffinity"):
            self._cpu = self.rng.choice(sorted(os.sched_getaffinity(0)))
        self.calibration.append(
            {s.name: self._ask(s, "calibrate", cpu=self._cpu)["seconds"] for s in self._order()}
        )

    def _ask(self, side: Side, op: str, **arguments: Any) -> Any:
        try:
            return self._workers[side.name].ask(op, **arguments)
        except (WorkerDied, WorkerFailed) as error:
            raise _SideFailed(side, str(error)) from None

    def _introduce(self, side: Side, hello: dict[str, Any]) -> None:
        if self.contender == "gemm" and not Path(hello["gemm"]).is_relative_to(side.site.resolve()):
            raise NotComparable(
                f"{side.label} was to be measured, but {hello['gemm']} was imported"
            )
        self._identity = self._identity or hello["identity"]
        if hello["identity"] != self._identity:
            raise NotComparable(
                f"machine or libraries changed: {differences(self._identity, hello['identity'])}"
            )

    def _round(self, record: Record, phase: str) -> None:
        case = record.case
        try:
            if case.operation in PROCESS_OPERATIONS:
                self._probe(record, phase)
            else:
                if not self._workers:
                    self._start()
                self._alternate(record, phase)
        except _SideFailed as error:
            record.reason = f"failed at {error.side.name}: {error}"
            record.lost = error.side.name == "head"
            self._stop()

    def _probe(self, record: Record, phase: str) -> None:
        got: dict[str, list[float]] = {}
        for side in self._order():
            try:
                environment = side.environment(record.case.threads)
                if record.case.operation == "first-call-warm" and not record.number:
                    probes.sample(record.case, environment)
                got[side.name] = [probes.sample(record.case, environment)]
            except NotAvailable as error:
                return self._missing(record, side, str(error))
        record.number = 1
        record.add(phase, got)

    def _check(self, record: Record) -> bool:
        """The first time: results are checked and kernels compiled, both sides at once."""
        ask: dict[str, Any] = {"case": record.case.line, "seconds": 0.0, "checked": False}
        with ThreadPoolExecutor(len(self.sides)) as pool:
            answers = [pool.submit(self._ask, side, "ready", **ask) for side in self.sides]
        for side, answer in zip(self.sides, answers, strict=True):
            if "reason" in answer.result():
                self._missing(record, side, answer.result()["reason"])
                return False
        return True

    def _alternate(self, record: Record, phase: str) -> None:
        case = record.case
        if not record.checked:
            if not self._check(record):
                return
            record.checked = True
        place = self.rng.randrange(2**31)
        ask = {"case": case.line, "checked": True, "cpu": self._cpu, "place": place}
        for side in self._order():
            answer = self._ask(side, "ready", seconds=0 if record.number else self.seconds, **ask)
            if "reason" in answer:
                return self._missing(record, side, answer["reason"])
            if not record.number:
                record.number = answer["number"]
        if not record.samples:
            (side, *_) = self.sides
            one = self._ask(side, "sample", case=case.name, number=record.number)["seconds"]
            fits = round(self.samples * self.seconds / (one * record.number))
            record.samples = min(self.samples, max(FEWEST_SAMPLES, fits))
        got: dict[str, list[float]] = {side.name: [] for side in self.sides}
        for _ in range(record.samples):
            for side in self._order():
                slowdown = self.slowdown.get(case.name, 1.0) if side.name == "head" else 1.0
                answer = self._ask(
                    side, "sample", case=case.name, number=record.number, slowdown=slowdown
                )
                got[side.name].append(answer["seconds"])
        record.add(phase, got)

    def _missing(self, record: Record, side: Side, reason: str) -> None:
        record.reason = f"not available at {side.name}: {reason}"
        # the order is random: what base cannot do either is not lost
        record.lost = side.name == "head" and all(
            self._can(record.case, other) for other in self.sides if other.name != "head"
        )

    def _can(self, case: Case, side: Side) -> bool:
        if case.operation in PROCESS_OPERATIONS:
            try:
                probes.sample(case, side.environment(case.threads))
            except NotAvailable:
                return False
            return True
        return "reason" not in self._ask(side, "ready", case=case.line, seconds=0.0, checked=False)


def differences(one: dict[str, Any], other: dict[str, Any]) -> str:
    """The entries in which two identities differ, both values named."""
    keys = [key for key in one if one[key] != other.get(key)]
    return "; ".join(f"{key}: {one[key]} against {other.get(key)}" for key in keys)


def drift(calibration: Sequence[dict[str, float]]) -> float:
    """How much the machine's pulse moved: 90th over 10th percentile, less 1."""
    import numpy as np

    pulses = [seconds for pulse in calibration for seconds in pulse.values()]
    if not pulses:
        return 0.0
    low, high = np.percentile(pulses, [10, 90])
    return float(high / low - 1)
