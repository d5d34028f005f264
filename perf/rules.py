"""The measuring rules: code that measures calls them; each refuses with the figures at fault."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# A first sample this many times and seconds above the rest is no noise: something was built in it.
_COLD, _COMPILATION = 20.0, 0.1


class RuleBroken(RuntimeError):
    """A measurement that would mislead; it is refused and the message says which rule it breaks."""


def warmed_up(calls_before_timing: int) -> None:
    """Compile time is never run time: at least one call comes before the clock starts."""
    if calls_before_timing < 1:
        raise RuleBroken("no warm-up call before timing: compile time would count as run time")


def no_cold_sample(samples: Sequence[float], number: int) -> None:
    """A first sample of `number` calls far above all others holds a compilation, whosever."""
    excess = (samples[0] - max(samples[1:], default=samples[0])) * number
    if len(samples) >= 4 and samples[0] > _COLD * max(samples[1:]) and excess > _COMPILATION:
        raise RuleBroken(
            f"first sample {samples[0]:.3g} s a call, slowest of the others "
            f"{max(samples[1:]):.3g} s: the call was not warm"
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


def compiled_kernels() -> int:
    """Kernels that gemm's back ends have compiled in this process so far."""
    return sum(
        len(module.compiled)
        for name, module in list(sys.modules.items())
        if name.startswith("gemm.backends.") and isinstance(getattr(module, "compiled", 0), list)
    )
