"""The asv suite: its configuration names what is there, and its benchmarks run."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RUN = """
import sys
sys.path.insert(0, {perf!r})
from asv_benchmarks import benchmarks
one = benchmarks.Small()
name = one.params[0][0]
one.setup(name)
one.time_calls(name)
assert len(one.calls) == int(name.split(" x ")[1]) > 100
late = benchmarks.Epilogue() if hasattr(benchmarks, "Epilogue") else benchmarks.Resnet50()
try:
    late.setup(late.params[0][0])
except NotImplementedError:
    print("n/a")
imports = next(n for n in benchmarks.Process.params[0] if "/import/" in n)
print(len(benchmarks.CASES), benchmarks.Process().track_figure(imports))
"""


def test_configuration_points_at_the_suite():
    configuration = json.loads((ROOT / "asv.conf.json").read_text())
    assert (ROOT / configuration["benchmark_dir"] / "benchmarks.py").is_file()
    assert configuration["repo"] == "." and configuration["branches"] == ["main"]


def test_benchmarks_run_against_whatever_gemm_is_installed(checkout, tmp_path):
    """The stand-in lacks convolution and epilogues: n/a there, as in an old revision."""
    done = subprocess.run(
        [sys.executable, "-c", RUN.format(perf=str(ROOT / "perf"))],
        env={**os.environ, "PYTHONPATH": str(checkout[0])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    missing, figures = done.stdout.splitlines()
    count, seconds = figures.split()
    assert missing == "n/a" and int(count) > 50 and 0 < float(seconds) < 60
