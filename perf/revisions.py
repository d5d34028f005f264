"""Two revisions side by side: a git worktree and an installed copy of each, made without a network.

Each revision is installed with pip as a user would get it (``--no-deps``: both run on the caller's
own NumPy and Numba) into a folder of its own, which its measuring processes have on PYTHONPATH. The
folders' names have one length, because the length of the environment moves the stack and with it
the time of small loops.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from . import machine

WORKING_TREE = "the working tree"


class BadRevision(ValueError):
    """A revision that git does not know or that does not build; the message says which step."""


@dataclass(frozen=True)
class Side:
    """One installed revision. `name` is base or head; `commit` is '' for an uncommitted tree."""

    name: str
    label: str
    commit: str
    site: Path
    cache: Path

    def environment(self, threads: int) -> dict[str, str]:
        """Environment of its measuring processes: its own package, its own kernel cache."""
        extra = {"PYTHONPATH": str(self.site), "GEMM_CACHE_DIR": str(self.cache)}
        return machine.clean_environment(threads, extra)


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except FileNotFoundError:
        raise BadRevision("git is not installed") from None
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        raise BadRevision(f"git {arguments[0]}: {last[0]}") from None


def repository(folder: str | Path = ".") -> Path:
    """Root of the git checkout around `folder`."""
    return Path(_git(Path(folder), "rev-parse", "--show-toplevel"))


def resolve(root: Path, revision: str) -> str:
    """The full commit a revision names; BadRevision if it names none."""
    try:
        return _git(root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    except BadRevision:
        raise BadRevision(f"{revision!r} is no commit of {root}") from None


def _export(root: Path, target: Path) -> None:
    """Copy the working tree as it is: tracked and new files, not the ignored ones."""
    names = _git(root, "ls-files", "-co", "--exclude-standard", "-z").split("\0")
    for name in filter(None, names):
        if (root / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)


def _install(source: Path, site: Path, label: str) -> None:
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    command += ["--no-index", "--disable-pip-version-check", "--target", str(site), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise BadRevision(f"{label} does not build: " + " / ".join(last))


def build(root: Path, revision: str, folder: Path, name: str) -> Side:
    """Install `revision` ('' = the working tree) under `folder`/`name`."""
    source, site, cache = (folder / name / part for part in ("source", "site", "cache"))
    cache.mkdir(parents=True, mode=0o700)
    if revision:
        commit = resolve(root, revision)
        label = f"{revision} ({commit[:10]})"
        _git(root, "worktree", "add", "--detach", "--force", str(source), commit)
    else:
        facts = machine.commit(root)
        commit = "" if facts.get("dirty", True) else facts["commit"]
        label = WORKING_TREE if not commit else f"{WORKING_TREE} (clean, {commit[:10]})"
        _export(root, source)
    try:
        _install(source, site, label)
    finally:
        if revision:
            _git(root, "worktree", "remove", "--force", str(source))
    return Side(name, label, commit, site, cache)


def twins(root: Path, folder: Path) -> list[Side]:
    """The working tree installed twice in `folder`, as base and head; what is there is used again.

    A folder of another checkout or from before a change is the caller's to remove.
    """
    note = folder / "revision.txt"
    if not note.exists():
        shutil.rmtree(folder, ignore_errors=True)
        sides = [build(root, "", folder, name) for name in ("base", "head")]
        note.write_text("\n".join([sides[0].commit, sides[0].label]), encoding="utf-8")
    commit, label = note.read_text(encoding="utf-8").split("\n")
    folder = folder.resolve()
    return [
        Side(name, label, commit, folder / name / "site", folder / name / "cache")
        for name in ("base", "head")
    ]


@contextmanager
def builder(root: Path) -> Iterator:
    """A function (revision, name) -> Side whose folders vanish at the end, Ctrl-C included."""
    with TemporaryDirectory(prefix="gemm-gate-") as folder:
        try:
            yield lambda revision, name: build(root, revision, Path(folder), name)
        finally:
            subprocess.run(["git", "-C", str(root), "worktree", "prune"], capture_output=True)
