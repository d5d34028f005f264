"""`python -m gemm.perf`: exit codes, a real gate over two commits, Ctrl-C on a real run."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemm.perf import revisions
from gemm.perf.__main__ import main
from gemm.perf.revisions import BadRevision

ROOT = Path(__file__).resolve().parents[2]
QUICK = "--match selftest --screen-rounds 5 --confirm-rounds 10 --drift-limit 9".split()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["gate"], "either BASE or --baseline"),
        (["gate", "no-such-revision"], "'no-such-revision' is no commit"),
        (["gate", "HEAD", "--update"], "--update belongs to"),
        (["gate", "--baseline", "missing.json"], "cannot be read"),
        (["gate", "HEAD", "--confirm-rounds", "2"], "rounds cannot reach"),
        (["peers", "--shape", "8x8"], "'8x8'"),
        (["peers", "--file", "missing.txt"], "missing.txt"),
        (["peers", "--match", "nothing has this name"], "no case is left"),
        (["peers", "--family", "squar"], "family 'squar' is none of square, small"),
        (["peers", "--shape", "8", "--threads", "two"], "threads=two"),
        (["peers", "--threads", "two"], "--threads 'two'"),
        (["peers", "--shape", "8", "--option", "epilogue=tan"], "epilogue is one of bias, gelu"),
        (["peers", "--shape", "8", "--rounds", "0"], "at least 5"),
        (["gate", "HEAD", "--min-effect", "5"], "is not in (0, 1]"),
        (["gate", "HEAD", "--drift-limit", "-1"], "is not above 0"),
        (["selftest", "--runs", "-1"], "neither may be negative"),
        (["peers", "--against", "MATLAB"], "peer matlab is none of gemm, NumPy"),
        (["peers", "--readme", "missing.md"], "missing.md"),
        (["report", "missing.json"], "cannot be read"),
    ],
)
def test_bad_use_is_one_line_and_exit_code_2(checkout, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(checkout[0])
    assert main(arguments) == 2
    complaint = capsys.readouterr().err.strip()
    assert words in complaint and len(complaint.splitlines()) == 1


def test_outside_a_repository_is_bad_use(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["gate", "HEAD"]) == 2
    assert "git" in capsys.readouterr().err


def test_users_shape_and_file_are_listed(tmp_path, capsys):
    mine = ["--shape", "1x4096x4096", "--dtype", "bfloat16", "--option", "cache=memory"]
    assert main(["cases", *mine]) == 0
    assert capsys.readouterr().out == "yours matmul 1x4096x4096 bfloat16 cache=memory\n"
    assert main(["cases", "--shape", "8", "--threads", "1,2"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    (tmp_path / "mine").write_text("m matmul 4 int8\n")
    assert main(["cases", "--file", str(tmp_path / "mine")]) == 0
    assert capsys.readouterr().out == "m matmul 4x4x4 int8\n"


def test_a_revision_that_does_not_build_says_so_and_leaves_no_worktree(checkout, tmp_path):
    folder = checkout[0]
    with pytest.raises(BadRevision, match="no commit"):
        revisions.build(folder, "nonsense", tmp_path / "a", "base")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadRevision, match="does not build"):
        revisions._install(tmp_path / "empty", tmp_path / "site", "an empty folder")
    listed = subprocess.run(
        ["git", "-C", str(folder), "worktree", "list"], capture_output=True, text=True
    )
    assert len(listed.stdout.splitlines()) == 1


def test_s05_baseline_then_a_real_regression_over_two_commits(
    checkout, tmp_path, monkeypatch, capsys
):
    folder, good, slow = checkout
    monkeypatch.chdir(folder)
    cases = tmp_path / "cases"
    cases.write_text("selftest matmul 96 float64\nselftest matmul 8 float32\n")
    stored, results = tmp_path / "baseline.json", tmp_path / "results"
    gate = ["gate", "--file", str(cases), "--results", str(results), "--baseline", str(stored)]
    assert main([*gate, *QUICK, "--update", "", good]) == 0
    before = stored.read_bytes()
    assert json.loads(before)["commit"] == good
    capsys.readouterr()
    assert main([*gate, *QUICK, "--update", "", slow]) == 1
    said = capsys.readouterr().out
    assert f"baseline {good[:10]}, new" in said or "minute" in said
    assert "slower" in said and "is left as it was" in said
    assert stored.read_bytes() == before
    result = json.loads(max(results.glob("*-gate.json")).read_text())
    assert result["exit"] == 1 and result["sides"]["base"]["commit"] == good
    kinds = {c["name"]: c["verdict"]["kind"] for c in result["cases"]}
    assert kinds["selftest/matmul/96x96x96/float64"] == "slower"


def test_s07_foreign_baseline_has_its_own_exit_code(checkout, tmp_path, monkeypatch, capsys):
    identity = {"cpu": "another"}
    content = {
        "format": 1, "kind": "baseline", "cases": [], "calibration": [], "commit": "0" * 40,
        "time": "2026-01-01T00:00:00+00:00", "machine": {"identity": identity, "versions": {}},
    }  # fmt: skip
    (tmp_path / "b.json").write_text(json.dumps(content))
    monkeypatch.chdir(checkout[0])
    assert main(["gate", "--baseline", str(tmp_path / "b.json")]) == 3
    said = capsys.readouterr().out
    assert "not comparable" in said and "another" in said and "old" in said


def _environment():
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def _children(pid):
    listing = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    )
    return [int(line) for line in listing.stdout.split()]


def test_ctrl_c_keeps_a_usable_partial_result_and_no_process(tmp_path):
    cases = "\n".join(f"f matmul {n} float32" for n in range(16, 200))
    (tmp_path / "many").write_text(cases)
    command = [sys.executable, "-m", "gemm.perf", "peers", "--file", "many", "--rounds", "60"]
    run = subprocess.Popen(
        command, cwd=tmp_path, env=_environment(), stdout=subprocess.PIPE, text=True,
        # A background job of a shell ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (workers := _children(run.pid)) and time.monotonic() < end:
        time.sleep(0.2)
    time.sleep(4)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 130 and "interrupted" in out
    (kept,) = (tmp_path / "results").glob("*-peers.json")
    result = json.loads(kept.read_text())
    assert not result["complete"] and len(result["rows"]) < 184
    assert workers and not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_a_results_folder_that_cannot_be_written_is_no_disaster(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file where the folder should be")
    arguments = ["peers", "--shape", "8", "--tiny", "--against", "NumPy", "--results", "taken"]
    assert main(arguments) == 0
    said = capsys.readouterr().out
    assert "results are not kept" in said and "8x8x8" in said


@pytest.mark.skipif(os.getuid() == 0, reason="root writes into read-only folders")
def test_a_read_only_results_folder(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sealed").mkdir(mode=0o500)
    assert (
        main(["peers", "--shape", "8", "--tiny", "--against", "NumPy", "--results", "sealed"]) == 0
    )
    assert "results are not kept" in capsys.readouterr().out


def test_without_the_extra_one_line_says_what_to_install(tmp_path):
    (tmp_path / "scipy.py").write_text("raise ImportError('not here', name='scipy')")
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-m", "gemm.perf", "cases"],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip() == "gemm.perf needs scipy: pip install 'gemm[perf]'"
