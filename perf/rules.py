"""The measuring rules: code that measures calls them; each refuses with the figures at fault."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# Below this share a first sample that is slower than the rest is noise; above, something was built.
_COLD = 20.0


class RuleBroken(RuntimeError):
    """A measurement that would mislead; it is refused and the message says which rule it breaks."""


def warmed_up(calls_before_timing: int) -> None:
    """Compile time is never run time: at least one call comes before the clock starts."""
    if calls_before_timing < 1:
        raise RuleBroken("no warm-up call before timing: compile time would count as run time")


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


def compiled_kernels() -> int:
    """Kernels that gemm's back ends have compiled in this process so far."""
    return sum(
        len(module.compiled)
        for name, module in list(sys.modules.items())
        if name.startswith("gemm.backends.") and isinstance(getattr(module, "compiled", 0), list)
    )
