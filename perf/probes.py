"""Runs the probes: each sample is a fresh process; cold ones get an empty kernel cache."""

from __future__ import annotations

import subprocess
import sys
import tempfile

from .cases import Case
from .client import HARNESS
from .contenders import NotAvailable

_COLD = ("first-call-cold", "compile")


def sample(case: Case, environment: dict[str, str], timeout: float = 300.0) -> float:
    """One sample of a process case, in the case's unit; NotAvailable with the child's last line."""
    if sys.platform == "win32" and case.operation == "peak-memory":
        raise NotAvailable("peak memory is read from getrusage, which Windows has not")
    with tempfile.TemporaryDirectory() as empty:
        if case.operation in _COLD:
            environment = {**environment, "GEMM_CACHE_DIR": empty}
        command = [
            sys.executable,
            str(HARNESS),
            "probe",
            case.operation,
            str(case.shape[0]),
            case.a,
        ]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout
            )
        except subprocess.TimeoutExpired:
            raise NotAvailable(f"no answer within {timeout:.0f} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise NotAvailable(last[0])
    return float(done.stdout)
