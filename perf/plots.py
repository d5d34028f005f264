"""The pictures: a roofline and a size sweep, as PNG, and one HTML page that needs no other file."""

from __future__ import annotations

import base64
import html
import io
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend is chosen before)
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

from . import machine, tables  # noqa: E402
from .cases import parse  # noqa: E402
from .peers import OURS  # noqa: E402

_MARKS = "osD^vPX*<>hp"
_COLOURS = plt.get_cmap("tab10").colors  # type: ignore[attr-defined]


def roofline(result: dict[str, Any], threads: int) -> Figure | None:
    """gemm's rate against arithmetic intensity under the run's ceilings; None without points."""
    points: dict[str, list[tuple[float, float]]] = {}
    widest = set()
    for row in result["rows"]:
        ours = row["contenders"].get(OURS, {})
        if row["threads"] == threads and "gflops" in ours and "device=cuda" not in row["case"]:
            point = row["flops"] / row["bytes"], ours["gflops"]
            points.setdefault(row["dtype"], []).append(point)
            widest.add(parse(row["case"])[0].widest)
    if not points:
        return None
    figure, axes = plt.subplots(figsize=(10, 6), layout="constrained")
    every = [x for group in points.values() for x, _ in group]
    found = result["ceilings"].get(str(threads), {})
    bandwidth = (found.get("bandwidth") or 0) / 1e9
    rates = {n: r / 1e9 for n, r in found.get("fma", {}).items() if isinstance(r, float)}
    left, right = min(every), max(every)
    if bandwidth and rates:  # show where the roof bends
        left = min(left, min(rates.values()) / bandwidth)
        right = max(right, max(rates.values()) / bandwidth)
    xs = left / 2, right * 2
    top = max([rate for group in points.values() for _, rate in group] + list(rates.values())) * 1.6
    if bandwidth:
        end = min(xs[1], (max(rates.values()) if rates else top) / bandwidth)
        slope = [xs[0] * bandwidth, end * bandwidth]
        label = f"copy bandwidth {bandwidth:.0f} GB/s"
        axes.plot([xs[0], end], slope, color="0.4", lw=1.5, label=label)
    for rate, names in _roofs(rates, widest):
        start = rate / bandwidth if bandwidth else xs[0]
        axes.plot([start, xs[1]], [rate, rate], color="0.4", lw=1.2, ls="--")
        words = f"multiply-add ceiling {', '.join(names)}: {rate:.0f}"
        axes.annotate(words, (xs[1], rate), (-4, 4), textcoords="offset points", ha="right",
                      color="0.3", fontsize=8,
                      bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5})  # fmt: skip
    for index, (name, group) in enumerate(sorted(points.items())):
        intensity, seen = zip(*group, strict=True)
        axes.scatter(intensity, seen, s=36, color=_COLOURS[index % len(_COLOURS)],
                     marker=_MARKS[index % len(_MARKS)], edgecolor="white", linewidth=0.5,
                     label=name, zorder=3)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlim=xs, ylabel="GFLOP/s",
             xlabel="flop / byte of least traffic")  # fmt: skip
    axes.set_ylim(top=top)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=20))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set_title(f"gemm, {threads} thread{'s' if threads > 1 else ''}")
    axes.grid(True, which="major", color="0.92")
    axes.set_axisbelow(True)
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def _roofs(rates: dict[str, float], wanted: set[str]) -> list[tuple[float, list[str]]]:
    """Ceilings of the wanted dtypes; those within a third share a line: words would overlap."""
    roofs: list[tuple[float, list[str]]] = []
    for name, rate in sorted(rates.items(), key=lambda item: -item[1]):
        if name in wanted:
            if roofs and rate > 0.67 * roofs[-1][0]:
                roofs[-1][1].append(name)
            else:
                roofs.append((rate, [name]))
    return roofs


def sweep(result: dict[str, Any]) -> Figure | None:
    """Rate against n of square products, a panel for each dtype and thread count; or None."""
    panels: dict[tuple[str, int], dict[str, list[tuple[int, float]]]] = {}
    widest = {}
    for row in result["rows"]:
        (case,) = parse(row["case"])
        m, n, k = case.shape[:3]
        plain = case.operation == "matmul" and case.batch == 1 and case.layout == "NN"
        if not plain or not m == n == k or case.device != "cpu" or case.epilogue:
            continue
        if (case.family == "square") == (case.out == "yes"):  # one point a size
            continue
        panel = panels.setdefault((row["dtype"], case.threads), {})
        widest[row["dtype"]] = case.widest
        for name, entry in row["contenders"].items():
            if "gflops" in entry:
                panel.setdefault(name, []).append((n, entry["gflops"]))
    panels = {key: p for key, p in panels.items() if len({n for v in p.values() for n, _ in v}) > 1}
    if not panels:
        return None
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, grid = plt.subplots(
        lines, columns, figsize=(max(7, 4.4 * columns), 3.3 * lines + 0.6), layout="constrained",
        squeeze=False,
    )  # fmt: skip
    colours = dict(zip([OURS, *tables.peers_seen(result["rows"])], _COLOURS, strict=False))
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, ((dtype, threads), panel) in zip(grid.flat, panels.items(), strict=False):
        for name, points in panel.items():
            ns, rates = zip(*sorted(points), strict=True)
            width = 2.2 if name == OURS else 1.2
            axes.plot(ns, rates, marker="o", ms=3.5, lw=width, color=colours[name], label=name)
        rate = result["ceilings"].get(str(threads), {}).get("fma", {}).get(widest[dtype])
        if isinstance(rate, float):
            axes.axhline(rate / 1e9, color="0.5", lw=1, ls="--", label="multiply-add ceiling")
        sizes = sorted({n for points in panel.values() for n, _ in points})
        axes.set(xscale="log", ylim=(0, None), xlabel="n", ylabel="GFLOP/s")
        axes.set_xticks(sizes, [str(n) for n in sizes], fontsize=8, rotation=45)
        axes.minorticks_off()
        axes.set_title(f"{dtype}, {threads} thread{'s' if threads > 1 else ''}", fontsize=10)
        axes.grid(True, color="0.92")
    labels: dict[str, Any] = {}
    for axes in grid.flat:
        handles, names = axes.get_legend_handles_labels()
        labels.update(zip(names, handles, strict=True))
    figure.legend(list(labels.values()), list(labels), loc="outside lower center",
                  ncols=4 if columns == 1 else 7, frameon=False, fontsize=9)  # fmt: skip
    return figure


def figures(result: dict[str, Any]) -> dict[str, bytes]:
    """All pictures of a peers result as {name: PNG bytes}."""
    counts = sorted({row["threads"] for row in result["rows"]})
    drawn = {f"roofline-{t}": roofline(result, t) for t in counts}
    drawn["sweep"] = sweep(result)
    pictures = {}
    for name, figure in drawn.items():
        if figure is not None:
            buffer = io.BytesIO()
            figure.savefig(buffer, format="png", dpi=120)
            plt.close(figure)
            pictures[name] = buffer.getvalue()
    return pictures


def page(result: dict[str, Any], pictures: dict[str, bytes]) -> str:
    """The HTML report, pictures inside."""
    text, facts = html.escape, result["machine"]
    peers = tables.peers_seen(result["rows"])
    head = "".join(
        f"<th>{text(c)}</th>" for c in ("case", OURS, "GFLOP/s", "of FMA", "of copy", *peers)
    )
    body = []
    for row in result["rows"]:
        ours = row["contenders"].get(OURS, {"reason": "not asked for"})
        cells = [row["name"]]
        reasons: dict[int, str] = {}  # shown where a reader points at the dash
        if "median" in ours:
            cells += [tables.quantity(ours["median"], row["unit"])]
            cells += [f"{ours['gflops']:.3g}" if "gflops" in ours else "-"]
            cells += [tables.percent(ours.get(key)) for key in ("of_fma", "of_bandwidth")]
        else:
            cells += [ours["reason"], "-", "-", "-"]
        for peer in peers:
            entry = row["contenders"].get(peer, {})
            shown = tables.ratio(entry)
            cells.append(shown)
            reasons[len(cells) - 1] = "" if "median" in entry else entry.get("reason", "")
        tag = "".join(
            f'<td title="{text(reasons[i])}">{text(cell)}</td>'
            if reasons.get(i)
            else f"<td>{text(cell)}</td>"
            for i, cell in enumerate(cells)
        )
        body.append(f"<tr>{tag}</tr>")
    notes = [*machine.warnings(facts), *tables.kernels(result), *tables.ceilings(result)]
    revision = facts.get("revision", {})
    where = (
        f"{revision.get('commit', 'no commit')[:10]}{' (dirty)' if revision.get('dirty') else ''}"
    )
    images = "".join(
        f'<h2>{name}</h2><img alt="{name}" src="data:image/png;base64,'
        f'{base64.b64encode(data).decode()}">'
        for name, data in pictures.items()
    )
    items = "".join(f"<li>{text(note)}</li>" for note in notes)
    versions = ", ".join(f"{k} {v}" for k, v in facts["versions"].items())
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>gemm against its peers</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:80em;padding:0 1em}}
table{{border-collapse:collapse;font-size:13px;display:block;overflow-x:auto}}
td,th{{border-bottom:1px solid #ddd;padding:3px 9px;text-align:right}}
td[title]{{color:#888;cursor:help}}
td:first-child,th:first-child{{text-align:left}}img{{max-width:100%}}</style>
<h1>gemm against its peers</h1><p>{text(machine.summary(facts))}</p>
<p>{text(facts["time"])}, revision {text(where)}; {text(versions)}</p><ul>{items}</ul>{images}
<h2>table</h2><p>Time of the peer over time of gemm, 95 % interval; above 1 gemm is faster.
A grey dash says why when pointed at.</p>
<table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></html>
"""


def save(result: dict[str, Any], folder: str | Path, stem: str) -> list[Path]:
    """Write the PNG files and the page beside the result; OSError as the system gives it."""
    pictures = figures(result)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, data in pictures.items():
        written.append(folder / f"{stem}-{name}.png")
        written[-1].write_bytes(data)
    written.append(folder / f"{stem}.html")
    written[-1].write_text(page(result, pictures), encoding="utf-8")
    return written
