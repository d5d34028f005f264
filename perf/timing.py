"""Warm-up, batching of short calls, one timed sample: every figure of the suite comes from here."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from . import rules

clock = time.perf_counter
_WARM_UP = 0.01
_ATTEMPTS = 3


@dataclass
class Timed:
    """What can be timed: one call an operand set, and how its device is synchronised (or None)."""

    calls: Sequence[Callable[[], object]]
    device: str = "cpu"
    synchronize: Callable[[], object] | None = None
    warm: int = 0
    first_call: float = float("nan")

    def _elapsed(self, number: int) -> float:
        sync = self.synchronize
        if sync is not None:
            sync()
        start = clock()
        for call in islice(cycle(self.calls), number):
            call()
        if sync is not None:
            sync()
        return clock() - start

    def warm_up(self, patience: float = float("inf")) -> None:
        """Call once, then once more for each operand set, then on for some milliseconds.

        The first time holds compilation: it is kept by itself in `first_call`. If it exceeds
        `patience` seconds the rest is left out and the call stays cold.
        """
        rules.synchronised(self.device, self.synchronize is not None)
        self.first_call = self._elapsed(1)
        if self.first_call <= patience:
            self._elapsed(len(self.calls))
            self.warm += 1 + len(self.calls)
            end = clock() + _WARM_UP
            while clock() < end:
                self._elapsed(1)

    def number_for(self, seconds: float) -> int:
        """How many calls make a sample of about `seconds`."""
        rules.warmed_up(self.warm)
        number = 1
        while (elapsed := self._elapsed(number)) < seconds / 4 and number < 10**7:
            number *= 4
        return max(1, round(number * seconds / max(elapsed, 1e-9)))

    def sample(self, number: int, slowdown: float = 1.0) -> float:
        """Seconds a call over `number` calls in a row.

        A sample in which a kernel was compiled is dropped (some are compiled only once a call has
        shown to be frequent); a call that compiles again and again is refused. So is a sample in
        which this thread was preempted, a few times: then what there is counts. `slowdown` above 1
        prolongs the sample by that factor, busy: the self-test's injected fault.
        """
        rules.warmed_up(self.warm)
        rules.synchronised(self.device, self.synchronize is not None)
        for _ in range(_ATTEMPTS):
            before, preempted = rules.compiled_kernels(), preemptions()
            seconds = self._sample(number, slowdown)
            compiled = rules.compiled_kernels() - before
            if not compiled and preemptions() == preempted:
                return seconds
        if compiled:
            raise rules.RuleBroken(f"{compiled} kernels were compiled inside the timing, again")
        return seconds

    def _sample(self, number: int, slowdown: float) -> float:
        enabled = gc.isenabled()
        gc.disable()
        try:
            start = clock()
            elapsed = self._elapsed(number)
            if slowdown > 1:
                while clock() < start + elapsed * slowdown:
                    pass
                elapsed = clock() - start
        finally:
            if enabled:
                gc.enable()
        return elapsed / number


def preemptions() -> int:
    """How often this thread has had to give up its processor (0 where the system does not tell)."""
    if sys.platform == "linux":
        import resource

        return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    return 0


def calibration_loop() -> float:
    """Seconds of a fixed piece of pure interpreter work, mean of 20: the machine's pulse.

    The mean, so that what other programs take from the processor shows in it.
    """

    start = clock()
    for _ in range(20):
        total = 0
        for i in range(5_000):
            total += i * i
    return (clock() - start) / 20
