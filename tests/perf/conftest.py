"""A worker that is no process, for the gate's logic; a tiny repository for real gates."""

import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest

from gemm.perf import machine, rounds
from gemm.perf.cases import parse
from gemm.perf.client import WorkerDied
from gemm.perf.revisions import Side


class FakeWorker:
    """Answers like a worker whose every sample is 1 ms x log-normal noise x `plan`'s factor.

    plan: {(side, case name): factor, or an exception, or {"reason": ...}}
    """

    plan: dict = {}
    noise = 0.01
    pulses = iter(())
    identities: dict = {}
    started = 0

    def __init__(self, environment, contender="gemm", cwd=None):
        type(self).started += 1
        self.side = Path(environment["GEMM_CACHE_DIR"]).parent.name
        self.rng = np.random.default_rng(type(self).started)

    def ask(self, op, **request):
        return getattr(self, op)(**request)

    def hello(self):
        identity = type(self).identities.get(self.side, machine.identity())
        return {"identity": identity, "gemm": "", "pools": [], "steering": {}}

    def calibrate(self, cpu):
        return {"seconds": next(type(self).pulses, 0.001)}

    def ready(self, case, seconds, checked, cpu=None, place=None):
        planned = type(self).plan.get((self.side, parse(case)[0].name), 1.0)
        if isinstance(planned, Exception):
            raise planned
        return planned if isinstance(planned, dict) else {"number": 1, "first_call": 0.1}

    def sample(self, case, number, slowdown=1.0):
        factor = type(self).plan.get((self.side, case), 1.0) * slowdown
        return {"seconds": 1e-3 * factor * float(np.exp(self.rng.normal(0, type(self).noise)))}

    def close(self):
        pass


@pytest.fixture
def fake(monkeypatch):
    """FakeWorker in place of processes."""

    class Mine(FakeWorker):
        plan, identities = {}, {}

    monkeypatch.setattr(rounds, "Worker", Mine)
    return Mine


@pytest.fixture
def sides(tmp_path):
    """Two sides that are only names."""
    return [
        Side(name, name, "0" * 40, tmp_path / name / "site", tmp_path / name / "cache")
        for name in ("base", "head")
    ]


@pytest.fixture
def died():
    """The error of a worker that crashed."""
    return WorkerDied("measuring process ended (signal 11)")


PACKAGE = """
import numpy as np

def set_num_threads(n):
    pass

def matmul(a, b, out=None, **more):
    for _ in range({repeat}):
        c = np.matmul(a, b, out=out)
    return c
"""


def _git(folder, *arguments):
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *who, *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def checkout(tmp_path_factory):
    """A repository of a stand-in `gemm`: (folder, good commit, commit of 3 x the work)."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "gemm").mkdir()
    (folder / "pyproject.toml").write_text(
        textwrap.dedent("""
        [build-system]
        requires = ["setuptools"]
        build-backend = "setuptools.build_meta"
        [project]
        name = "gemm"
        version = "0.0.1"
        [tool.setuptools]
        packages = ["gemm"]
        """)
    )
    _git(folder, "init", "-q", "-b", "main")
    commits = []
    for repeat in (1, 3):
        (folder / "gemm" / "__init__.py").write_text(PACKAGE.format(repeat=repeat))
        _git(folder, "add", ".")
        _git(folder, "commit", "-qm", f"{repeat} times")
        commits.append(_git(folder, "rev-parse", "HEAD"))
    return folder, *commits
