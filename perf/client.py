"""The parent's end of a measuring process: start, ask, survive its death, never leave it behind."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

HARNESS = Path(__file__).with_name("harness.py")


class WorkerDied(RuntimeError):
    """The process ended in the middle of a request; the message says how and at what."""


class WorkerFailed(RuntimeError):
    """The process answered with an exception."""


class Worker:
    """A measuring process with the given environment. Use as a context manager."""

    def __init__(
        self, environment: dict[str, str], contender: str = "gemm", cwd: str | None = None
    ):
        self._log = tempfile.TemporaryFile()
        self._at = ""
        self._process = subprocess.Popen(
            [sys.executable, str(HARNESS), "worker", contender],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            env=environment, cwd=cwd, text=True, encoding="utf-8",
            start_new_session=True,  # Ctrl-C is the parent's to handle
        )  # fmt: skip

    def ask(self, op: str, timeout: float = 600.0, **arguments: Any) -> Any:
        """Send one request and wait; WorkerDied on crash or timeout, WorkerFailed on an error."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(timeout, process.kill)
        timer.daemon = True
        timer.start()
        try:
            process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            process.stdin.flush()
            for line in process.stdout:
                answer = json.loads(line)
                if "event" in answer:
                    self._at = answer["event"]
                elif "error" in answer:
                    raise WorkerFailed(answer["error"])
                else:
                    return answer["ok"]
        except BrokenPipeError:
            pass
        finally:
            timer.cancel()
        raise WorkerDied(self._obituary(timeout))

    def _obituary(self, timeout: float) -> str:
        code = self._process.wait()
        self._log.seek(0)
        last = self._log.read().decode(errors="replace").strip().splitlines()[-1:]
        what = f"signal {-code}" if code < 0 else f"exit code {code}"
        at = f" in {self._at}" if self._at else ""
        return (
            f"measuring process ended{at} ({what}, limit {timeout:.0f} s) {' '.join(last)}".strip()
        )

    def close(self) -> None:
        """End the process and forget its log."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
