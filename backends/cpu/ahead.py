"""Code that a process may need whatever it multiplies: what `python -m gemm warm` makes beside
the kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..machines.cpus import CPULevel
from . import door_source, team, team_source


def common(level: CPULevel) -> Iterator[tuple[str, Callable]]:
    """(text that names it in the cache, build) of the doors and of the team's functions."""
    yield "door", door_source.make_door
    yield "inner door", door_source.make_inner_door
    calls = team.CALLS.get(level.architecture)
    if calls is not None:
        yield f"team worker {calls.futex}", lambda: team_source.make_worker(calls)
        yield f"team fan-out {calls.futex}", lambda: team_source.make_fan_out(calls)
        yield f"team spin {calls.futex}", team_source.make_spin
