"""Suites that others wrote: skips with their reasons, and a count for each suite at the end.

A suite file may have a dict SKIPPED of 'Class.test' or 'test' to the reason.
"""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

_HERE = Path(__file__).parent.name


def pytest_configure(config):
    # Marks that NumPy registers for its own runs.
    for mark in ("slow", "thread_unsafe", "leaks_references", "valgrind_error", "parallel_threads"):
        config.addinivalue_line("markers", f"{mark}: of NumPy's test modules")


def pytest_collection_modifyitems(items):
    for item in items:
        reasons = getattr(getattr(item, "module", None), "SKIPPED", {})
        name = item.nodeid.partition("::")[2].partition("[")[0].replace("::", ".")
        if name in reasons:
            item.add_marker(pytest.mark.skip(reason=reasons[name]))


def pytest_terminal_summary(terminalreporter):
    counts = defaultdict(Counter)
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(outcome, ()):
            file = Path(report.nodeid.partition("::")[0])
            if file.parent.name == _HERE:
                counts[file.stem][outcome] += 1
    if counts:
        terminalreporter.section("suites that others wrote")
        for suite, outcomes in sorted(counts.items()):
            text = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
            terminalreporter.write_line(f"{suite}: {text}")
