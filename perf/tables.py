"""Results as tables for a terminal (rich) and as Markdown rows for the README."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table

from . import machine
from .peers import OURS

_WORST_FIRST = {"slower": 0, "below floor": 1, "same": 2, "faster": 3}


def quantity(value: float, unit: str) -> str:
    """A time or a size with three digits and a unit that fits."""
    if unit == "B":
        return f"{value / 2**20:.2f} MiB"
    for factor, name in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= factor:
            return f"{value / factor:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"


def percent(share: float | None) -> str:
    """A share as a percentage, or a dash for what was not measured."""
    return "-" if share is None else f"{100 * share:.0f} %"


def ratio(entry: dict[str, Any]) -> str:
    """`1.23 [1.20, 1.26]`, or a dash."""
    r = entry.get("ratio")
    return f"{r['value']:.2f} [{r['low']:.2f}, {r['high']:.2f}]" if r else "-"


def peers_seen(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Peers with at least one figure, in order of appearance."""
    names = dict.fromkeys(n for r in rows for n, c in r["contenders"].items() if "median" in c)
    return [name for name in names if name != OURS]


def kernels(result: dict[str, Any]) -> list[str]:
    """One line a BLAS that was loaded: library, version, kernel, threads."""
    return [
        f"{threads} thread(s): {p.get('internal_api')} {p.get('version')}, "
        f"kernel {p.get('architecture', 'not told')}, {p['num_threads']} threads"
        for threads, pools in result["pools"].items()
        for p in pools
        if p.get("user_api") == "blas"
    ]


def ceilings(result: dict[str, Any]) -> list[str]:
    """The ceilings measured in the run, in words."""
    lines = []
    for threads, found in result["ceilings"].items():
        if not found["bandwidth"]:
            lines.append(f"{threads} thread(s): not measured: {found.get('reason')}")
            continue
        said: dict[str, list[str]] = {}
        for name, rate in found["fma"].items():
            words = f"{rate / 1e9:.0f} GFLOP/s" if isinstance(rate, float) else rate
            said.setdefault(words, []).append(name)
        rates = [f"FMA {', '.join(names)}: {words}" for words, names in said.items()]
        copied = f"copy {found['bandwidth'] / 1e9:.1f} GB/s"
        lines.append(f"{threads} thread(s): " + "; ".join([copied, *rates]))
    return lines


def print_peers(console: Console, result: dict[str, Any]) -> None:
    """The comparison, with reasons for what is missing."""
    rows, facts = result["rows"], result["machine"]
    console.print(machine.summary(facts), highlight=False, soft_wrap=True)
    for note in [*machine.warnings(facts), *kernels(result), *ceilings(result)]:
        console.print("  " + note, highlight=False, soft_wrap=True)
    peers = peers_seen(rows)
    table = Table(title="time of the peer / time of gemm [95 % interval]; above 1 gemm is faster")
    columns = "case", OURS, "GFLOP/s", "of FMA", "of copy", "first call"
    for column in (*columns, *peers):
        left = column == "case"
        table.add_column(column, justify="left" if left else "right", no_wrap=left)
    missing: dict[str, list[str]] = {}
    for one in rows:
        ours = one["contenders"].get(OURS, {"reason": "not asked for"})
        if "reason" in ours:
            missing.setdefault(ours["reason"], []).append(one["name"])
        cells = [one["name"]]
        if "median" in ours:
            rate = f"{ours['gflops']:.3g}" if "gflops" in ours else "-"
            cells += [quantity(ours["median"], one["unit"]), rate]
            cells += [percent(ours.get("of_fma")), percent(ours.get("of_bandwidth"))]
            first = ours.get("first_call")
            cells.append(quantity(first, "s") if first else "-")
        else:
            cells += ["not available"] + ["-"] * 4
        for peer in peers:
            entry = one["contenders"].get(peer, {})
            if "ratio" not in entry and "median" in entry:
                cells.append(quantity(entry["median"], one["unit"]))
            else:
                wrong = "wrong result" in entry.get("reason", "")
                cells.append("wrong result" if wrong else ratio(entry))
        table.add_row(*cells)
    console.print(table)
    for reason, names in missing.items():
        console.print(f"gemm, {len(names)} cases ({names[0]}, ...): {reason}", highlight=False)
    if not result["complete"]:
        console.print("[bold]interrupted: the table holds what was measured until then")


def print_gate(console: Console, result: dict[str, Any]) -> None:
    """Worst first: verdict, ratio with interval, the case's own noise floor."""
    sides = result["sides"]
    title = " -> ".join(side["label"] for side in sides.values())
    table = Table(title=title)
    for column in ("case", "base", "ratio [95 %]", "floor", "p", "verdict"):
        left = column in ("case", "verdict")
        table.add_column(column, justify="left" if left else "right", no_wrap=column == "case")
    judged = [c for c in result["cases"] if c["verdict"]]
    judged.sort(key=lambda c: (_WORST_FIRST[c["verdict"]["kind"]], -c["verdict"]["ratio"]))
    for one in judged:
        v = one["verdict"]
        first = next(iter(one["samples"].values()))
        base = sorted(value for r in first.get("base", next(iter(first.values()))) for value in r)
        style = {"slower": "bold red", "faster": "green"}.get(v["kind"], "")
        table.add_row(
            one["name"],
            quantity(base[len(base) // 2], one["unit"]),
            f"{v['ratio']:.3f} [{v['low']:.3f}, {v['high']:.3f}]",
            f"{100 * v['floor']:.1f} %",
            f"{v['p']:.2g}",
            f"{v['kind']}: {v['sentence']}",
            style=style,
        )
    if judged:
        console.print(table)
    else:
        measured = sum(bool(c["samples"]) for c in result["cases"])
        console.print(f"{title}: {measured} cases measured, with nothing to compare")
    for one in result["cases"]:
        if one["reason"]:
            console.print(f"{one['name']}: {one['reason']}", highlight=False)
    console.print(f"calibration loop: drift {100 * result['drift']:.1f} %")
    for note in [*machine.warnings(result["machine"]), *result["notes"]]:
        console.print(note, highlight=False)
