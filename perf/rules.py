"""The measuring rules. Code that measures calls these; each refuses with the figures that break it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

# Below this share a first sample that is slower than the rest is noise; above, something was built.
_COLD = 20.0


class RuleBroken(RuntimeError):
    """A measurement that would mislead; it is refused and the message says which rule it breaks."""


def warmed_up(calls_before_timing: int) -> None:
    """Compile time is never run time: at least one call comes before the clock starts."""
    if calls_before_timing < 1:
        raise RuleBroken("no warm-up call before timing: compile time would count as run time")


def nothing_compiled(cached_before: int, cached_after: int) -> None:
    """No kernel may enter the kernel cache while the clock runs."""
    if cached_after > cached_before:
        raise RuleBroken(f"{cached_after - cached_before} kernels were compiled inside the timing")


def no_cold_sample(samples: Sequence[float]) -> None:
    """A first sample far above all the others holds a compilation, whoever compiled."""
    if len(samples) >= 4 and samples[0] > _COLD * max(samples[1:]):
        raise RuleBroken(
            f"first sample {samples[0]:.3g} s, slowest of the others {max(samples[1:]):.3g} s: "
            "the call was not warm"
        )


def synchronised(device: str, can_synchronise: bool) -> None:
    """Work on a device is timed only between synchronisations."""
    if device != "cpu" and not can_synchronise:
        raise RuleBroken(f"work on {device} would be timed without synchronising the device")


def rotated(cache: str, bytes_per_set: int, sets: int, cache_bytes: int) -> None:
    """A case that means memory may not be answered from the last-level cache."""
    if cache == "memory" and (sets < 2 or bytes_per_set * (sets - 1) < cache_bytes):
        raise RuleBroken(
            f"cache=memory, but {sets} operand sets of {bytes_per_set} bytes "
            f"can live in a cache of {cache_bytes} bytes"
        )


def threads_as_stated(stated: int, pools: Sequence[dict]) -> None:
    """Every BLAS or OpenMP pool in the process has the stated number of threads."""
    for pool in pools:
        if pool["num_threads"] != stated:
            name = pool.get("prefix", pool.get("user_api"))
            raise RuleBroken(f"{name} runs {pool['num_threads']} threads, the case says {stated}")


def cached_kernels() -> int:
    """Files in the kernel cache that this process uses; grows when something is compiled."""
    folder = os.environ.get("GEMM_CACHE_DIR")
    root = Path(folder) if folder else Path.home() / ".cache" / "gemm"
    try:
        return sum(1 for entry in root.rglob("*") if entry.is_file())
    except OSError:
        return 0
