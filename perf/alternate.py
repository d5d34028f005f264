"""Measure several contenders on one case, alternately, after each has shown the right answer."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import machine, operands, reference, rules
from .cases import Case
from .contenders import Contender, NotAvailable, Prepared

# An idle pool of some libraries spins this long and would slow the next contender.
POOL_SETTLES = 0.2
_PATIENCE = 10.0


def set_threads(threads: int) -> None:
    """Every BLAS and OpenMP pool loaded so far to `threads`; refuses if one does not obey."""
    try:
        import threadpoolctl
    except ImportError:
        return
    threadpoolctl.threadpool_limits(threads)
    pools = [p for p in machine.blas_kernels() if p.get("internal_api") != "openmp"]
    rules.threads_as_stated(threads, pools)


def operand_sets(case: Case, place: int | None = None) -> list[operands.Operands]:
    """Operand sets of the case, as many as its `cache` option needs; `place` as operands.make."""
    cache = machine.last_level_cache()
    sets = operands.make(case, operands.sets_needed(case, cache), place=place)
    rules.rotated(case.cache, case.bytes, len(sets), cache)
    return sets


def ready(
    contender: Contender, case: Case, sets: Sequence[operands.Operands], checked: bool = False
) -> Prepared:
    """Make, warm up and, unless it was `checked` before, check.

    Raises NotAvailable, reference.WrongResult or rules.RuleBroken.
    """
    prepared = contender.make(case, sets)
    set_threads(case.threads)
    if not prepared.timed.warm:
        prepared.timed.warm_up(patience=_PATIENCE)
    if not prepared.timed.warm:
        seconds = prepared.timed.first_call
        raise NotAvailable(f"too slow to repeat: one call took {seconds:.1f} s")
    if not checked:
        reference.check(case, sets[0], prepared.result())
    return prepared


def compare(
    case: Case,
    contenders: Sequence[Contender],
    rounds: int = 15,
    seconds: float = 0.03,
    budget: float = 20.0,
    told: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Samples (seconds a call) of each contender on `case`, one a round, order drawn each round.

    `budget` seconds bound the rounds (never below 5). Returns {name: {"samples", "first_call",
    "number"}} or {name: {"reason"}}; `told` hears which contender is next, should one crash.
    """
    sets = operand_sets(case)
    result: dict[str, Any] = {}
    prepared: dict[str, tuple[Prepared, int]] = {}
    cost = 0.0
    for contender in contenders:
        told(contender.name)
        try:
            if not contender.available():
                raise NotAvailable("not installed")
            made = ready(contender, case, sets)
            number = made.timed.number_for(seconds)
            cost += (number + 1) * made.timed.sample(1)
        except (NotAvailable, reference.WrongResult, rules.RuleBroken) as error:
            result[contender.name] = {"reason": str(error), "kind": type(error).__name__}
        except Exception as error:  # whatever else a library does costs that library its row
            traceback.print_exc()
            first = str(error).partition("\n")[0]
            result[contender.name] = {"reason": first, "kind": type(error).__name__}
        else:
            prepared[contender.name] = made, number
            result[contender.name] = {
                "samples": [], "number": number, "first_call": made.timed.first_call,
            }  # fmt: skip
    told("")
    rng = np.random.default_rng(len(case.name))
    try:
        for _ in range(max(5, min(rounds, int(budget / max(cost, 1e-9))))):
            for name in rng.permutation(list(prepared)):
                made, number = prepared[name]
                if case.threads > 1:
                    time.sleep(POOL_SETTLES)
                if number > 1:
                    made.timed.sample(1)  # caches and pools as this contender leaves them
                result[name]["samples"].append(made.timed.sample(number))
    except rules.RuleBroken as error:
        return {name: {"reason": str(error), "kind": "RuleBroken"} for name in result}
    for name, (_, number) in prepared.items():
        try:
            rules.no_cold_sample(result[name]["samples"], number)
        except rules.RuleBroken as error:
            result[name] = {"reason": str(error), "kind": "RuleBroken"}
    return result
