"""``python -m gemm.perf``: peers, gate, selftest, cases, report."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

try:
    import matplotlib  # noqa: F401
    import rich  # noqa: F401
    import scipy  # noqa: F401
except ImportError as missing:
    print(f"gemm.perf needs {missing.name}: pip install 'gemm[perf]'", file=sys.stderr)
    raise SystemExit(2) from None

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from . import baseline, cases, contenders, gate, machine, readme, selftest, store, tables
from .inference import Rules
from .peers import Peers
from .revisions import BadRevision, builder, repository, twins
from .rounds import NotComparable

EPILOG = """exit codes of gate: 0 no regression, 1 confirmed regression, 2 bad use,
3 not comparable; 130 after Ctrl-C (what was measured until then is shown and kept). peers and
selftest: 1 when gemm was wrong or crashed, or a promise was broken; selftest: 3 when the gate
refuses most runs, since the machine is not steady"""
README_FAMILIES = ("square", "small", "batched", "vector", "resnet50")


def _chosen(options: argparse.Namespace) -> list[cases.Case]:
    """The cases that the options select; CaseError or OSError with one clear sentence."""
    if options.shape:
        operation = "conv2d" if "*" in options.shape else "matmul"
        extra = " ".join(options.option)
        if options.threads and "threads=" not in extra:
            extra += f" threads={options.threads}"
        chosen = cases.parse(
            f"yours {operation} {options.shape} {options.dtype} {extra}", "--shape"
        )
    else:
        chosen = cases.read(options.file) if options.file else cases.parse(cases.TABLE)
    if options.tiny:
        chosen = list({case.tiny().name: case.tiny() for case in chosen}.values())
    try:
        threads = [int(t) for t in options.threads.split(",")] if options.threads else []
    except ValueError:
        raise cases.CaseError(f"--threads {options.threads!r} is not like 1 or 1,2") from None
    families = list(dict.fromkeys(case.family for case in chosen))
    unknown = [name for name in options.family if name not in families]
    if unknown:
        raise cases.CaseError(f"family {unknown[0]!r} is none of {', '.join(families)}")
    chosen = cases.select(chosen, options.family, options.match, threads)
    if not chosen:
        raise cases.CaseError("no case is left: see python -m gemm.perf cases")
    return chosen


@contextlib.contextmanager
def _progress(console: Console, total: int | None) -> Iterator[Callable[[str], None]]:
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=total)
        yield lambda text: bar.update(task, description=text, advance=1)


def _keep(console: Console, options: argparse.Namespace, kind: str, result: dict) -> Path | None:
    path, trouble = store.keep(options.results, kind, result)
    console.print(trouble or f"raw samples: {path}", highlight=False, soft_wrap=True)
    return path


def _peers(console: Console, options: argparse.Namespace) -> int:
    if options.readme and not options.family:
        options.family = list(README_FAMILIES)
    chosen = _chosen(options)
    if options.readme:
        readme.require_markers(options.readme)
    names = tuple(c.name for c in contenders.ALL)
    if options.against:
        wanted = {name.lower() for name in options.against}
        unknown = wanted - {name.lower() for name in names}
        if unknown:
            raise cases.CaseError(
                f"peer {', '.join(sorted(unknown))} is none of {', '.join(names)}"
            )
        names = ("gemm", *(n for n in names if n.lower() in wanted and n != "gemm"))
    if options.rounds < 5:
        raise cases.CaseError(f"--rounds {options.rounds}: an interval needs at least 5")
    # A tiny run shows that everything works; its figures mean nothing.
    quick = {"rounds": 5, "seconds": 0.001} if options.tiny else {"rounds": options.rounds}
    with _progress(console, len(chosen)) as told:
        run = Peers(chosen, names, tiny=options.tiny, told=told, **quick)
        try:
            run.run()
        except KeyboardInterrupt:
            pass
    result = run.result()
    tables.print_peers(console, result)
    path = _keep(console, options, "peers", result)
    if path and run.answers:
        from . import plots

        for written in plots.save(result, options.results, path.stem):
            console.print(f"written: {written}", highlight=False, soft_wrap=True)
    if not run.complete:
        return gate.INTERRUPTED
    if options.readme:
        readme.rewrite(options.readme, result)
        console.print(f"rewritten: the table in {options.readme}")
    broken = run.broken()
    for name, reason in broken:
        console.print(f"[bold red]broken:[/bold red] {name}: {reason}", highlight=False)
    return int(bool(broken))


def _gate(console: Console, options: argparse.Namespace) -> int:
    if bool(options.base) == bool(options.baseline):
        raise BadRevision("give either BASE or --baseline FILE")
    if options.drift_limit <= 0:
        raise BadRevision(f"--drift-limit {options.drift_limit} is not above 0")
    if options.update and not options.baseline:
        raise BadRevision("--update belongs to --baseline FILE")
    chosen = _chosen(options)
    chosen = chosen if options.all or options.shape or options.file else cases.affordable(chosen)
    root = repository()
    stored = None
    if options.baseline and (Path(options.baseline).exists() or not options.update):
        stored = baseline.read(options.baseline)
        console.print(baseline.describe(stored), highlight=False, soft_wrap=True)
        try:
            baseline.require_comparable(stored)
        except NotComparable as error:
            console.print(f"not comparable: {error}", highlight=False, soft_wrap=True)
            return gate.NOT_COMPARABLE
        chosen = baseline.cases_of(stored, chosen)
        if not chosen:
            raise cases.CaseError("the baseline holds none of these cases")
    rules = Rules(
        screen_rounds=options.screen_rounds,
        confirm_rounds=options.confirm_rounds,
        min_effect=options.min_effect,
    )
    with builder(root) as build, _progress(console, None) as told:
        told("building")
        head = build(options.head, "head")
        if options.update and not head.commit:
            raise BadRevision("--update needs a commit: the working tree has uncommitted changes")
        sides = [head] if options.baseline else [build(options.base, "base"), head]
        run = gate.Gate(
            sides,
            chosen,
            rules,
            options.contender,
            told=told,
            drift_limit=options.drift_limit,
        )
        try:
            if stored:
                baseline.compare(run, stored, build)
            elif options.baseline:
                with run.judging():
                    run.screen()
                run.code = gate.CLEAN
            else:
                run.run()
        except KeyboardInterrupt:
            run.code = gate.INTERRUPTED
    result = run.result()
    tables.print_gate(console, result)
    _keep(console, options, "gate", result)
    if options.update:
        if run.code == gate.CLEAN:
            baseline.write(options.baseline, run)
            console.print(f"baseline written: {options.baseline}")
        else:
            console.print(f"baseline {options.baseline} is left as it was")
    words = {0: "no regression", 1: "regression, confirmed on fresh runs", 3: "not comparable"}
    console.print(f"[bold]{words.get(run.code, 'interrupted')}[/bold] (exit code {run.code})")
    return run.code


def _selftest(console: Console, options: argparse.Namespace) -> int:
    runs = options.runs if options.runs is not None else 1 if options.short else 100
    if runs < 0 or options.minutes < 0:
        raise ValueError(f"--runs {runs} --minutes {options.minutes}: neither may be negative")
    done: list[dict] = []
    if options.resume and Path(options.resume).exists():
        stored = store.read(options.resume, "selftest")
        selftest.require_same(stored)
        done = stored["runs"]
    interrupted = False
    if runs:
        try:
            _real_runs(console, options, runs, done)
        except KeyboardInterrupt:
            interrupted = True
    findings = selftest.findings(done) if runs else []
    finished = selftest.complete(done, runs)
    if finished and not interrupted:
        findings += selftest.simulated(10_000, 200 if options.short else 1_000)
    console.print(machine.summary(machine.facts()), soft_wrap=True)
    for one in findings:
        mark = "no run yet" if not one.of else "holds" if one.holds else "FAILS"
        console.print(f"{one.what}: {one.count} of {one.of} (demanded {one.demand}): {mark}")
    if not finished:
        more = f": --resume {options.resume} goes on" if options.resume else ""
        console.print(f"not all of {runs} + {runs} comparable runs are done{more}")
    if interrupted:
        return gate.INTERRUPTED
    if not all(one.holds for one in findings):
        return 1
    return gate.NOT_COMPARABLE if selftest.hopeless(done, runs) else 0


def _real_runs(console: Console, options: argparse.Namespace, runs: int, done: list[dict]) -> None:
    """Adds real runs to `done`, and to the file of --resume after each."""
    root, known = repository(), machine.facts()
    state = {"kind": "selftest", "machine": known, "rules": asdict(selftest.SHORT_RULES)}

    def keep(all_runs: list[dict]) -> None:
        if options.resume:
            store.write(options.resume, {**state, "runs": all_runs})

    with ExitStack() as stack:
        folder = Path(f"{options.resume}.sides")
        if not options.resume:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="gemm-gate-"))) / "sides"
        told = stack.enter_context(_progress(console, None))
        told("building")
        sides = twins(root, folder)
        until = time.monotonic() + 60 * options.minutes
        selftest.real(sides, runs, options.contender, told, done=done, until=until, keep=keep)


def _cases(console: Console, options: argparse.Namespace) -> int:
    for case in _chosen(options):
        print(case.line)
    return 0


def _report(console: Console, options: argparse.Namespace) -> int:
    from . import plots

    result = store.read(options.result, "peers")
    tables.print_peers(console, result)
    for written in plots.save(result, options.results, Path(options.result).stem):
        console.print(f"written: {written}", highlight=False, soft_wrap=True)
    if options.readme:
        readme.rewrite(options.readme, result)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m gemm.perf", epilog=EPILOG, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    def command(
        name: str, run: Callable, text: str, select: bool = True
    ) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text, epilog=EPILOG)
        one.set_defaults(run=run)
        one.add_argument("--results", default="results", help="folder of JSON, PNG and HTML")
        if select:
            one.add_argument("--family", action="append", default=[], help="only this family")
            one.add_argument("--match", default="", help="only cases with this text in their name")
            one.add_argument("--threads", default="", help="only these thread counts, e.g. 1,2")
            one.add_argument("--file", help="cases from a file, same lines as `cases` prints")
            one.add_argument("--shape", help="one case of yours: MxNxK or NxCxHxW*OxKHxKW")
            one.add_argument("--dtype", default="float32", help="of --shape; A, or A*B->C")
            one.add_argument("--option", action="append", default=[], help="of --shape: key=value")
            one.add_argument("--tiny", action="store_true", help="tiny sizes: does it all work?")
        return one

    one = command("peers", _peers, "time gemm alternately with the peers that are installed")
    one.add_argument("--against", action="append", default=[], metavar="PEER")
    one.add_argument("--rounds", type=int, default=15)
    one.add_argument("--readme", nargs="?", const="README.md", metavar="FILE",
                     help="rewrite the table between the markers of FILE (README.md)")  # fmt: skip
    one = command("gate", _gate, "is HEAD (default: the working tree) slower than BASE?")
    one.add_argument("base", nargs="?", default="", metavar="BASE")
    one.add_argument("head", nargs="?", default="", metavar="HEAD")
    one.add_argument("--baseline", metavar="FILE", help="screen against stored samples, not BASE")
    one.add_argument("--update", action="store_true", help="store head there if no alarm rings")
    one.add_argument("--all", action="store_true", help="large cases, too")
    one.add_argument("--min-effect", type=float, default=Rules.min_effect)
    one.add_argument("--screen-rounds", type=int, default=Rules.screen_rounds)
    one.add_argument("--confirm-rounds", type=int, default=Rules.confirm_rounds)
    one.add_argument("--drift-limit", type=float, default=gate.DRIFT_LIMIT)
    one.add_argument("--contender", default="gemm", help=argparse.SUPPRESS)
    one = command("selftest", _selftest, "does the gate keep its promises here?", select=False)
    one.add_argument("--runs", type=int, help="real runs of each kind (100; 0: simulated only)")
    one.add_argument("--short", action="store_true", help="for CI: 1 real run of each kind")
    one.add_argument("--resume", nargs="?", const="results/selftest.json", metavar="FILE",
                     help="keep the runs there, go on with those that are there")  # fmt: skip
    one.add_argument("--minutes", type=float, default=float("inf"),
                     help="begin no further run after this time")  # fmt: skip
    one.add_argument("--contender", default="gemm", help="gemm or a peer's name")
    command("cases", _cases, "print the cases")
    one = command("report", _report, "draw a stored peers result again", select=False)
    one.add_argument("result", metavar="RESULT.json")
    one.add_argument("--readme", nargs="?", const="README.md", metavar="FILE")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; bad use is one clear line and exit code 2."""
    options = _parser().parse_args(arguments)
    # A pipe or a file has no width of its own; tables stay whole there.
    console = Console(width=None if sys.stdout.isatty() else 250)
    try:
        return options.run(console, options)
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError) as error:  # CaseError, BadRevision, Unreadable, NoMarkers
        print(f"gemm.perf: {error}", file=sys.stderr)
        return gate.BAD_USE
    except KeyboardInterrupt:
        print("gemm.perf: interrupted", file=sys.stderr)
        return gate.INTERRUPTED


if __name__ == "__main__":
    raise SystemExit(main())
