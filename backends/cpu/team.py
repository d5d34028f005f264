"""The team: native threads created once, given jobs in about a microsecond.

Threads are made with pthread_create and run machine code only, so they hold no Python state, do
not keep the interpreter from exiting and take no signals. A caller that finds the team busy, a
forked child, a machine that allows no more threads: each computes with what it has. Off Linux
the shares run one after the other in the caller.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
import threading
import time

import numpy as np

from . import kernels
from . import team_source as source
from .flush import flushed

SPIN_WINDOW = 100e-6  # seconds a worker looks for the next job before it sleeps
MOST = 255  # workers a generation can name
CALLS = {
    "x86_64": source.Calls(futex=202, thread=186, cpu=309, allow=203, allowed=204),
    "aarch64": source.Calls(futex=98, thread=178, cpu=168, allow=122, allowed=123),
}


class Team:
    """A caller and up to `size` threads beside it."""

    def __init__(self, level):
        self.lock = threading.Lock()
        self.size = 0
        self._level = level
        calls = CALLS.get(platform.machine())
        self._refused = sys.platform != "linux" or calls is None
        self._kept: list = []
        if sys.platform != "linux" or calls is None:
            return
        self._calls = calls
        raw = np.zeros(source.SIZE + 128, np.uint8)
        self.memory = raw[-raw.ctypes.data % 128 :][: source.SIZE]
        self.address = self.memory.ctypes.data
        self._libc = ctypes.CDLL(None, use_errno=True)
        syscall = ctypes.cast(self._libc.syscall, ctypes.c_void_p).value
        self._put(source.SYSCALL, syscall)
        self._worker = self._code("team worker", lambda: source.make_worker(calls))
        fan_out = self._code("team fan-out", lambda: source.make_fan_out(calls))
        self._fan_out = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)(fan_out)
        self.fan_out_address = fan_out
        self._put(source.SPINS, self._calibrated())

    def _code(self, text: str, build) -> int:
        return kernels.load(self._level, f"{text} {self._calls.futex}", build, entry="raw")

    def _put(self, offset: int, value: int) -> None:
        self.memory[offset : offset + 8].view(np.int64)[0] = value

    def _get(self, offset: int) -> int:
        return int(self.memory[offset : offset + 8].view(np.int64)[0])

    def _calibrated(self) -> int:
        """Pauses in the spin window."""
        spin = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(
            self._code("team spin", source.make_spin)
        )
        spin(100)
        best = 1.0
        for _ in range(5):
            started = time.perf_counter()
            spin(1000)
            best = min(best, time.perf_counter() - started)
        return max(50, int(SPIN_WINDOW / best * 1000))

    def grow(self, threads: int) -> int:
        """Makes sure of `threads` threads beside the caller if it can; returns how many there are.

        Called with `lock` held.
        """
        threads = min(threads, MOST - 1)
        if self._refused or self.size >= threads:
            return self.size
        # Signals are for Python's threads: new ones inherit a full mask.
        full, old = (ctypes.c_uint64 * 16)(*[0xFFFFFFFFFFFFFFFF] * 16), (ctypes.c_uint64 * 16)()
        self._libc.pthread_sigmask(0, ctypes.byref(full), ctypes.byref(old))
        try:
            while self.size < threads:
                seen = self._get(source.GENERATION)
                start = np.array([self.address, self.size + 1, seen, 0], np.int64)
                self._kept.append(start)
                handle = ctypes.c_uint64()
                status = self._libc.pthread_create(
                    ctypes.byref(handle), None, ctypes.c_void_p(self._worker),
                    ctypes.c_void_p(start.ctypes.data),
                )  # fmt: skip
                if status != 0:
                    self._refused = True
                    kernels.note(f"the system allows {self.size} worker threads, not {threads}")
                    break
                self._libc.pthread_detach(handle)
                self.size += 1
        finally:
            self._libc.pthread_sigmask(2, ctypes.byref(old), None)
        return self.size

    def run(self, entry: int, arguments: int, workers: int, flush: bool = False) -> None:
        """entry(arguments, i) for each i < workers; flush: as in flush.py."""
        if self.size + 1 < workers:
            # A plan made before a fork finds no threads in the child: they are made anew.
            with self.lock:
                self.grow(workers - 1)
        if self.size + 1 >= workers:
            job = (self.address, entry, arguments, workers)
            if flush:
                flushed(self._level)(self.fan_out_address, *job)
            else:
                self._fan_out(*job)
            return
        if flush:
            for worker in range(workers):
                flushed(self._level)(entry, arguments, worker, 0, 0)
            return
        alone = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)(entry)
        for worker in range(workers):
            alone(arguments, worker)

    def forget_threads(self) -> None:
        """In a forked child, which has none of the parent's threads; its memory stays in use."""
        self.size, self.lock = 0, threading.Lock()
        if not self._refused:
            # Also the owner: a thread that was in a product when the process forked.
            for slot in (source.GENERATION, source.DONE, source.SLEEPERS, source.CALLER_SLEEPS,
                         source.OWNER):  # fmt: skip
                self._put(slot, 0)
            self.memory[source.PLACES :] = 0

    def stop(self) -> None:
        """Lets the threads end."""
        if self.size:
            self._put(source.GENERATION, (self._get(source.GENERATION) >> 8) + 1 << 8)
            self._libc.syscall(self._calls.futex, ctypes.c_void_p(self.address), 129, 1 << 20, None)
            self.size = 0


_team: Team | None = None
_making = threading.Lock()


def team(level) -> Team:
    """This process's team."""
    global _team
    if _team is None:
        with _making:
            if _team is None:
                _team = Team(level)
    return _team


def _in_child() -> None:
    global _making
    _making = threading.Lock()
    if _team is not None:
        _team.forget_threads()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


def workers(level, wanted: int) -> int:
    """How many workers a team gives when `wanted` are asked for, the caller among them."""
    if wanted < 2:
        return 1
    mine = team(level)
    if mine.size + 1 < wanted:
        with mine.lock:
            mine.grow(wanted - 1)
    return min(wanted, mine.size + 1)
