"""How many threads a product may use: set per thread, by call, or for a block of code.

The default is GEMM_NUM_THREADS, else the cores this process may use (its affinity, bounded by
the cgroup's quota). A product uses fewer when its work does not pay for them.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Iterator

_local = threading.local()
_watchers: list = []
_agreed = True


@functools.cache
def default_threads() -> int:
    """GEMM_NUM_THREADS, else the usable cores."""
    from gemm.backends.cpu.machine import usable_cores

    text = os.environ.get("GEMM_NUM_THREADS", "")
    if text:
        if not text.isdigit() or int(text) < 1:
            raise ValueError(f"GEMM_NUM_THREADS={text!r}: expected a positive integer")
        return int(text)
    return usable_cores()


def get_num_threads() -> int:
    """Threads that products called from this thread may use."""
    return getattr(_local, "threads", None) or default_threads()


def agreed() -> bool:
    """Whether no thread has asked for another number than the default."""
    return _agreed


def watch(function) -> None:
    """`function()` is called when `agreed()` turns false."""
    _watchers.append(function)


def set_num_threads(n: int) -> None:
    """Sets it for the calling thread. n: a positive integer, else TypeError or ValueError."""
    global _agreed
    _local.threads = checked(n)
    if _agreed and n != default_threads():
        _agreed = False
        for watcher in _watchers:
            watcher()


def checked(n: int) -> int:
    """n as a thread count, or TypeError / ValueError."""
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise TypeError(f"threads must be an integer, got {n!r}")
    n = n.__index__()
    if n < 1:
        raise ValueError(f"threads must be at least 1, got {n}")
    return n


@contextlib.contextmanager
def num_threads(n: int) -> Iterator[None]:
    """Within the block, products called from this thread use at most n threads."""
    before = getattr(_local, "threads", None)
    set_num_threads(n)
    try:
        yield
    finally:
        _local.threads = before
