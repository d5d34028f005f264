"""Rewrites the README's table of ratios, between two markers, and says where it was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import machine, tables
from .peers import OURS

BEGIN, END = "<!-- peers:begin -->", "<!-- peers:end -->"


class NoMarkers(ValueError):
    """The README has not both markers, in order."""


def markdown(result: dict[str, Any]) -> str:
    """The table and its provenance as Markdown."""
    rows, facts = result["rows"], result["machine"]
    peers = tables.peers_seen(rows)
    revision = facts.get("revision", {})
    commit = revision.get("commit", "unknown")[:10] + (" (dirty)" if revision.get("dirty") else "")
    lines = [
        f"Measured on: {machine.summary(facts)}.",
        f"Revision {commit}, {facts['time'][:10]}; "
        + ", ".join(f"{k} {v}" for k, v in facts["versions"].items() if k != OURS)
        + ".",
        "",
        *[f"- {note}" for note in [*tables.kernels(result), *tables.ceilings(result)]],
        *[f"- note: {note}" for note in machine.warnings(facts)],
        "",
        "Ratios are the peer's time over gemm's, measured alternately in one run, with the 95 % "
        "interval of the median; above 1 gemm is faster. "
        "Command: `python -m gemm.perf peers --readme`.",
        "",
        "| case | gemm GFLOP/s | of FMA ceiling | of copy bandwidth | " + " | ".join(peers) + " |",
        "|---|" + "---:|" * (3 + len(peers)),
    ]
    for row in rows:
        ours = row["contenders"].get(OURS, {})
        if "gflops" not in ours:
            continue
        cells = [row["name"], f"{ours['gflops']:.3g}", tables.percent(ours.get("of_fma"))]
        cells.append(tables.percent(ours.get("of_bandwidth")))
        cells += [tables.ratio(row["contenders"].get(peer, {})) for peer in peers]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _parts(path: str | Path) -> tuple[str, str]:
    text = Path(path).read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise NoMarkers(f"{path} has no {BEGIN} ... {END}")
    return before, after


def require_markers(path: str | Path) -> None:
    """NoMarkers before an hour is spent measuring."""
    _parts(path)


def rewrite(path: str | Path, result: dict[str, Any]) -> None:
    """Put the table between the markers of `path`; NoMarkers if they are missing."""
    before, after = _parts(path)
    new = f"{before}{BEGIN}\n{markdown(result)}\n{END}{after}"
    Path(path).write_text(new, encoding="utf-8")
