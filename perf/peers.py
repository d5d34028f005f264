"""gemm against its peers: samples in measuring processes, one a thread count, and what they say.

A measuring process dies with the library that crashes it; its case says so and the next process
goes on with the next case.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import ceilings, contenders, inference, machine, probes
from .cases import PROCESS_OPERATIONS, Case
from .client import Worker, WorkerDied, WorkerFailed

OURS = "gemm"


@dataclass
class Peers:
    """A comparison of `cases`; after `run` (or Ctrl-C in it) `result()` holds all that is known."""

    cases: Sequence[Case]
    names: Sequence[str] = tuple(c.name for c in contenders.ALL)
    rounds: int = 15
    seconds: float = 0.03
    tiny: bool = False
    extra: dict[str, str] = field(default_factory=dict)
    told: Callable[[str], None] = lambda text: None
    answers: list[tuple[Case, dict[str, Any]]] = field(default_factory=list)
    ceilings: dict[str, Any] = field(default_factory=dict)
    pools: dict[str, Any] = field(default_factory=dict)
    complete: bool = False
    _facts: dict[str, Any] = field(default_factory=dict)

    def run(self) -> None:
        """Measure every case; KeyboardInterrupt passes and leaves the rows so far."""
        self._facts = machine.facts()
        # Everyone's first call is cold, except in a tiny run, whose figures mean nothing.
        with tempfile.TemporaryDirectory() as empty:
            cold = {} if self.tiny else {"GEMM_CACHE_DIR": empty}
            self.extra = {**machine.import_path(), **cold, **self.extra}
            self._measure()
        self.complete = True

    def _measure(self) -> None:
        timed = [c for c in self.cases if c.operation not in PROCESS_OPERATIONS]
        for threads in sorted({c.threads for c in timed}):
            self._with_threads(threads, [c for c in timed if c.threads == threads])
        for case in self.cases:
            if case.operation in PROCESS_OPERATIONS:
                self.told(case.name)
                self.answers.append((case, self._probe(case)))

    def _with_threads(self, threads: int, cases: list[Case]) -> None:
        environment = machine.clean_environment(threads, self.extra)
        dtypes = list(dict.fromkeys(c.widest for c in cases if c.device == "cpu"))
        self._ceilings(environment, threads, dtypes)
        worker = Worker(environment)
        try:
            for case in cases:
                self.told(case.name)
                try:
                    answer = worker.ask(
                        "compare",
                        case=case.line,
                        names=list(self.names),
                        rounds=self.rounds,
                        seconds=self.seconds,
                    )
                except (WorkerDied, WorkerFailed) as error:
                    answer = {OURS: {"reason": str(error), "kind": type(error).__name__}}
                    worker.close()
                    worker = Worker(environment)
                self.answers.append((case, answer))
        finally:
            worker.close()
        self._ceilings(environment, threads, dtypes)

    def _ceilings(self, environment: dict[str, str], threads: int, dtypes: list[str]) -> None:
        """Measured before and after the cases, the higher counts: other load only lowers them."""
        known = self.ceilings.get(str(threads), {})
        with Worker(environment) as worker:
            try:
                self.pools[str(threads)] = worker.ask("hello")["pools"]
                found = worker.ask("ceilings", dtypes=dtypes, threads=threads, tiny=self.tiny)
            except (WorkerDied, WorkerFailed) as error:
                found = {"bandwidth": None, "fma": {}, "reason": str(error)}
        self.ceilings[str(threads)] = ceilings.higher(known, found)

    def _probe(self, case: Case) -> dict[str, Any]:
        environment = machine.clean_environment(case.threads, self.extra)
        try:
            if case.operation == "first-call-warm":
                probes.sample(case, environment)
            count = 1 if self.tiny else 5
            samples = [probes.sample(case, environment) for _ in range(count)]
            answer: dict[str, Any] = {OURS: {"samples": samples, "number": 1}}
        except contenders.NotAvailable as error:
            answer = {OURS: {"reason": str(error), "kind": "NotAvailable"}}
        return answer

    def rows(self) -> list[dict[str, Any]]:
        """The figures of every case measured so far."""
        ceiling = self.ceilings
        return [row(case, got, ceiling.get(str(case.threads), {})) for case, got in self.answers]

    def broken(self) -> list[tuple[str, str]]:
        """(case, reason) where gemm gave a wrong result or crashed; what it has not is no fault.

        In a tiny run, which asks whether everything works, a CPU case that it has not is one, too.
        """
        faults = []
        for case, answer in self.answers:
            ours = answer.get(OURS, {})
            absent = ours.get("kind") == "NotAvailable"
            if "reason" in ours and (not absent or (self.tiny and case.device == "cpu")):
                faults.append((case.name, _reason(ours)))
        return faults

    def result(self) -> dict[str, Any]:
        """Everything, raw samples included, ready for JSON."""
        return {
            "complete": self.complete,
            "machine": self._facts,
            "pools": self.pools,
            "ceilings": self.ceilings,
            "rows": self.rows(),
        }


def row(case: Case, answer: dict[str, Any], ceiling: dict[str, Any]) -> dict[str, Any]:
    """One case's figures: median, rate, shares of the ceilings; ratios of peers with intervals.

    A ratio is the peer's time over gemm's in the same round: above 1, gemm is faster.
    """
    found: dict[str, Any] = {}
    ours = answer.get(OURS, {}).get("samples")
    for name, got in answer.items():
        if "reason" in got:
            found[name] = {"reason": _reason(got)}
            continue
        median = statistics.median(got["samples"])
        entry: dict[str, Any] = {**got, "median": median}
        if case.operation not in PROCESS_OPERATIONS:
            entry["gflops"] = case.flops / median / 1e9
            entry.update(_shares(case, median, ceiling))
        if ours and name != OURS:
            logs = np.log(got["samples"]) - np.log(ours)
            low, high = inference.interval(logs)
            entry["ratio"] = {"value": float(np.exp(np.median(logs))), "low": low, "high": high}
        found[name] = entry
    return {
        "name": case.name,
        "case": case.line,
        "family": case.family,
        "threads": case.threads,
        "dtype": case.dtype,
        "flops": case.flops,
        "bytes": case.bytes,
        "unit": case.unit,
        "contenders": found,
    }


def _reason(got: dict[str, Any]) -> str:
    words = {"NotAvailable": "not available", "WrongResult": "wrong result, not timed"}
    return f"{words.get(got['kind'], got['kind'])}: {got['reason']}"


def _shares(case: Case, seconds: float, ceiling: dict[str, Any]) -> dict[str, float]:
    shares: dict[str, float] = {}
    if case.device != "cpu" or "fma" not in ceiling:
        return shares
    fma = ceiling["fma"].get(case.widest)
    if isinstance(fma, float):
        shares["of_fma"] = case.flops / seconds / fma
    if ceiling["bandwidth"]:
        shares["of_bandwidth"] = case.bytes / seconds / ceiling["bandwidth"]
    return shares
