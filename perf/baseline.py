"""A stored baseline: raw samples of one commit on one machine, to screen against without a build.

Figures of another day are never proof: two jobs on one machine differ by more than most
regressions. So a baseline only raises suspicion. Suspects are confirmed like the gate's own: the
baseline's commit is built and both revisions are measured together, afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from . import inference, machine, store
from .cases import Case, parse
from .gate import Gate, log_ratios
from .revisions import BadRevision, Side
from .rounds import NotComparable, Record, differences, drift


def read(path: str | Path) -> dict[str, Any]:
    """The baseline in `path`; store.Unreadable with one clear sentence."""
    found = store.read(path, "baseline")
    try:
        for entry in found["cases"]:
            parse(entry["case"])
        _ = found["machine"]["identity"], found["calibration"], found["commit"], found["time"]
    except (KeyError, TypeError, ValueError) as error:
        raise store.Unreadable(f"{path} is damaged: {type(error).__name__} {error}") from None
    return found


def describe(found: dict[str, Any]) -> str:
    """Commit, age, machine and versions in one line."""
    versions = ", ".join(f"{k} {v}" for k, v in found["machine"]["versions"].items())
    return (
        f"baseline {found['commit'][:10]}, {store.age(found['time'])} ({found['time'][:16]}), "
        f"{found['machine']['identity']['cpu']}; {versions}"
    )


def require_comparable(found: dict[str, Any]) -> None:
    """NotComparable, naming what differs, unless it was measured on this machine and Python."""
    here = machine.identity()
    there = found["machine"]["identity"]
    if there != here:
        raise NotComparable(
            f"the baseline comes from another machine or Python: {differences(here, there)}"
        )


def cases_of(found: dict[str, Any], wanted: Sequence[Case]) -> list[Case]:
    """The wanted cases which the baseline holds."""
    names = {entry["name"] for entry in found["cases"]}
    return [case for case in wanted if case.name in names]


def compare(gate: Gate, found: dict[str, Any], build: Callable[[str, str], Side]) -> int:
    """Run `gate`, whose only side is head, against the baseline; returns the exit code."""
    entries = {entry["name"]: entry for entry in found["cases"]}
    with gate.judging():
        require_comparable(found)
        for record in gate.records:
            entry = entries[record.case.name]
            record.number, record.samples = entry["number"], len(entry["samples"][0])
        gate.screen()
        moved = drift([*found["calibration"], *gate.rounds.calibration])
        limit = gate.drift_limit / 2  # nothing cancels between samples of two days
        if moved > limit:
            raise NotComparable(
                f"the calibration loop moved by {100 * moved:.0f} % since the baseline "
                f"(limit {100 * limit:.0f} %)"
            )
        for record in gate.records:
            if "screening" in record.phases:
                record.phases["screening"]["base"] = entries[record.case.name]["samples"]
        suspects = [record for record in gate.records if _suspect(record, gate)]
        if suspects:
            try:
                base = build(found["commit"], "base")
            except BadRevision as error:
                raise NotComparable(f"suspects cannot be confirmed: {error}") from None
            gate.rounds.sides = gate.sides = [base, *gate.sides]
            for record in suspects:
                record.checked = False  # base has yet to show its results
        gate.confirm(suspects)
    return gate.code


def _suspect(record: Record, gate: Gate) -> bool:
    ratios = log_ratios(record, "screening")
    return ratios is not None and bool(inference.is_suspect(ratios, gate.rules))


def write(path: str | Path, gate: Gate) -> None:
    """Store head's screening samples as the new baseline; the caller saw that no alarm rang."""
    head = next(side for side in gate.sides if side.name == "head")
    if not head.commit:
        raise BadRevision("a baseline needs a commit: the working tree has uncommitted changes")
    result = gate.result()
    store.write(
        path,
        {
            "kind": "baseline",
            "commit": head.commit,
            "time": result["machine"]["time"],
            "machine": result["machine"],
            "calibration": [{"head": c["head"]} for c in result["calibration"] if "head" in c],
            "cases": [
                {
                    "name": record.case.name,
                    "case": record.case.line,
                    "number": record.number,
                    "samples": record.phases["screening"]["head"],
                }
                for record in gate.records
                if not record.reason and "screening" in record.phases
            ],
        },
    )
