"""The measuring process: answers requests, one JSON object a line, until its input ends.

It lives in a process of its own so that the yardstick's environment is clean, a crash of any
library costs one case, and two revisions of gemm can be sampled alternately.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from . import alternate, cases, ceilings, contenders, machine, reference, rules
from .timing import calibration_loop


class Session:
    """The state between requests: cases made ready, for one contender (a gate) or many (peers)."""

    def __init__(self, contender: str, send: Callable[[dict], None]):
        self._known = {c.name: c for c in contenders.ALL}
        self._contender = self._known[contender]
        self._prepared: dict[str, contenders.Prepared] = {}
        self._send = send
        self._cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()

    def hello(self) -> dict[str, Any]:
        """Who am I: comparability, and where the measured package came from."""
        import numpy as np

        import gemm

        np.matmul(np.ones((2, 2)), np.ones((2, 2)))
        return {
            "identity": machine.identity(),
            "gemm": os.path.realpath(gemm.__file__),
            "pools": machine.blas_kernels(),
            "steering": machine.steering_variables(dict(os.environ)),
        }

    def calibrate(self, cpu: int | None = None) -> dict[str, Any]:
        """The machine's pulse, on this processor."""
        self._pin(cpu)
        return {"seconds": calibration_loop()}

    def _pin(self, cpu: int | None) -> None:
        if self._cpus:
            os.sched_setaffinity(0, self._cpus if cpu is None else {cpu})

    def ready(
        self,
        case: str,
        seconds: float,
        checked: bool,
        cpu: int | None = None,
        place: int | None = None,
    ) -> dict[str, Any]:
        """Make the case of this table line ready, or say why it cannot be measured.

        Answers the number of calls that make a sample of about `seconds` (0: not asked). A case
        whose result was `checked` in an earlier process is not checked again. A case of one thread
        runs on processor `cpu`; `place` as in operands.make.
        """
        (one,) = cases.parse(case)
        self._pin(cpu if one.threads == 1 else None)
        try:
            sets = alternate.operand_sets(one, place)
            made = alternate.ready(self._contender, one, sets, checked)
            number = made.timed.number_for(seconds) if seconds else 0
        except (contenders.NotAvailable, reference.WrongResult, rules.RuleBroken) as error:
            return {"reason": str(error), "kind": type(error).__name__}
        self._prepared = {one.name: made}  # only one case is alive at a time
        return {"number": number, "first_call": made.timed.first_call}

    def sample(self, case: str, number: int, slowdown: float = 1.0) -> dict[str, Any]:
        """One sample of a case that is ready: seconds a call."""
        return {"seconds": self._prepared[case].timed.sample(number, slowdown)}

    def compare(self, case: str, names: list[str], **options: Any) -> dict[str, Any]:
        """Alternate samples of several contenders."""
        (one,) = cases.parse(case)
        chosen = [self._known[name] for name in names]
        told = lambda name: self._send({"event": name})  # noqa: E731
        try:
            return alternate.compare(one, chosen, told=told, **options)
        except MemoryError as error:  # the operands': no contender is at fault
            return {names[0]: {"reason": str(error), "kind": "NotAvailable"}}

    def ceilings(self, dtypes: list[str], threads: int, tiny: bool) -> dict[str, Any]:
        """Bandwidth and FMA rate."""
        return ceilings.measure(dtypes, threads, tiny)


def main(arguments: list[str]) -> None:
    """Serve requests on stdin; `arguments` may name the contender (gemm)."""
    # Libraries may print: the answers get a descriptor of their own, and fd 1 goes to stderr.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    session = Session(arguments[0] if arguments else "gemm", send)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            send({"ok": getattr(session, request.pop("op"))(**request)})
        except Exception as error:  # the parent reports it and goes on with the next case
            traceback.print_exc()
            send({"error": f"{type(error).__name__}: {error}"})
