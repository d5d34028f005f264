"""The gate's cases as asv benchmarks, one class a family; a figure is the time of `x N` calls.

asv runs `setup` before each timed call and so would time single calls, of which most are shorter
than what it adds. N follows from the case alone, so that revisions stay comparable.

The harness comes from this checkout and `gemm` from asv's environment, so that one set of
benchmarks measures every revision. A case that a revision cannot do is "n/a" there.
"""

import importlib.util
import itertools
import os
from pathlib import Path

import gemm  # noqa: F401  (an environment without it is an error, not a missing feature)


def _load(name):
    path = Path(__file__).resolve().parents[1] / "harness.py"
    spec = importlib.util.spec_from_file_location("gemm_harness_loader", path)
    loader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loader)
    return loader.load(name)


alternate, cases, contenders, probes = map(_load, ("alternate", "cases", "contenders", "probes"))
CASES = {case.name: case for case in cases.affordable(cases.parse(cases.TABLE))}
CHECKED: set[str] = set()


def _calls(case):
    """About 2 ms at 20 GFLOP/s and 0.3 us a call."""
    return max(1, round(2e-3 / (case.flops / 2e10 + 3e-7)))


class _Family:
    """Base of the families: `setup` checks the result and warms up, as everywhere in gemm.perf."""

    param_names = ["case"]
    # A shared processor runs at one of two speeds for up to seconds: samples of several moments.
    rounds = 6
    repeat = (10, 30, 2.0)

    def setup(self, label):
        name, _, number = label.rpartition(" x ")
        case = CASES[name]
        ours = contenders.Gemm()
        try:
            sets = alternate.operand_sets(case)
            prepared = alternate.ready(ours, case, sets, name in CHECKED)
        except contenders.NotAvailable as error:
            raise NotImplementedError(str(error)) from None
        CHECKED.add(name)
        self.calls = list(itertools.islice(itertools.cycle(prepared.timed.calls), int(number)))

    def time_calls(self, label):
        for call in self.calls:
            call()


def _family(name, members):
    labels = [f"{case.name} x {_calls(case)}" for case in members]
    return type(name.capitalize(), (_Family,), {"params": [labels], "__module__": __name__})


for _name, _members in itertools.groupby(
    (case for case in CASES.values() if case.operation in ("matmul", "conv2d")),
    lambda case: case.family,
):
    globals()[_name.capitalize()] = _family(_name, _members)


class Process:
    """What takes a process of its own: import, first calls, compile time, peak memory."""

    params = [[name for name, case in CASES.items() if case.operation in cases.PROCESS_OPERATIONS]]
    param_names = ["case"]
    unit = "s or bytes"
    timeout = 600

    def track_figure(self, name):
        case, environment = CASES[name], dict(os.environ)
        if case.operation == "first-call-warm":
            probes.sample(case, environment)
        samples = sorted(probes.sample(case, environment) for _ in range(3))
        return samples[1]
