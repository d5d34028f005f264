"""A call like one before: fitted once, it fills in addresses and numbers and runs.

What a call looks like (shapes, steps, types, options) is its key; a job is kept for a key when
nothing had to be copied or converted for it. A call whose arrays overlap goes the long way.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from gemm import engine, execution, targets, threads

from .contract import Bound
from .job import Job, bits

KEPT = 512
LARGEST = 1 << 31
known: dict[Any, Repeated] = {}


def again(x1: Any, x2: Any, out: Any, keywords: dict[str, Any]) -> Any:
    """The result of a call like one before, or None."""
    key = key_of(x1, x2, out, keywords)
    if key is None:
        return None
    try:
        found = known.get(key)
    except TypeError:  # an option that is no key
        return None
    return None if found is None else found.again(x1, x2, out, keywords["epilogue"].operands)


def key_of(x1: Any, x2: Any, out: Any, keywords: dict[str, Any]) -> Any:
    """What a plan of this call depends on, or None for a call that is not plain."""
    bound = keywords["epilogue"] if "epilogue" in keywords else None
    if type(bound) is not Bound or type(x1) is not np.ndarray or type(x2) is not np.ndarray:
        return None
    key = [bound.epilogue, x1.shape, x1.strides, x1.dtype, x2.shape, x2.strides, x2.dtype,
           threads.get_num_threads(), targets.environment("GEMM_ISA")]  # fmt: skip
    for name, x in bound.operands.items():
        kind = type(x)
        if kind is np.ndarray:
            key += (name, x.shape, x.strides, x.dtype)
        elif kind is float or kind is int:
            key += (name, kind)
        else:
            return None
    if out is not None:
        for name, x in out.items() if type(out) is dict else (("", out),):
            if type(x) is not np.ndarray:
                return None
            key += (name, x.shape, x.strides, x.dtype, x.flags.writeable)
    if len(keywords) > 1:
        key += [item for item in keywords.items() if item[0] != "epilogue"]
    return tuple(key)


def remember(key: Any, bound: Bound, job: Job, home: np.ndarray, written) -> None:
    """Keeps what ran for `key`, if it ran in one part and not on the reference target."""
    if job.whole is None:
        return
    if len(known) >= KEPT:
        known.clear()
    with contextlib.suppress(TypeError):  # as in `again`
        known[key] = Repeated(bound, job, home, written)
    engine.again = again


class Repeated:
    """A job with the outputs it makes."""

    def __init__(self, bound: Bound, job: Job, home: np.ndarray, written: dict[str, np.ndarray]):
        self.job, self.run, self.address = job, job.whole.run, execution.address_function()
        self.outputs = [(name, x.shape, x.dtype) for name, x in written.items()]
        self.first = self.outputs[0][0]
        self.resident = home is written[self.first]
        # Of a stand-in only the address is used, and that of a product that never rests there.
        self.home = None if self.resident else home
        self.inputs = [(slot, key) for slot, (_, key), _ in job.addresses if type(key) is str]
        self.targets = [(slot, key[1]) for slot, (_, key), _ in job.addresses
                        if type(key) is not str]  # fmt: skip
        self.numbers = [(slot, key, dtype, dtype.kind == "i") for slot, (_, key), dtype in
                        job.numbers]  # fmt: skip
        self.arrays = [key for key, x in bound.operands.items() if type(x) is np.ndarray]

    def again(self, a: np.ndarray, b: np.ndarray, out: Any, operands: dict[str, Any]) -> Any:
        """The results of a call with this key; None where its arrays overlap, or a number does
        not fit: then nothing was done."""
        job, address, new_array = self.job, self.address, execution.new_array
        slots = job.template.copy()
        for slot, key, dtype, whole in self.numbers:
            x = operands[key]
            if whole and type(x) is not np.ndarray and not -LARGEST <= x < LARGEST:
                return None
            slots[slot] = bits(x, dtype)
        given = {} if out is None else out if type(out) is dict else {self.first: out}
        results = {
            name: given[name] if name in given else new_array(shape, dtype)
            for name, shape, dtype in self.outputs
        }
        if given and self._overlap(a, b, given, operands):
            return None
        for slot, key in self.inputs:
            slots[slot] = address(operands[key])
        for slot, key in self.targets:
            slots[slot] = address(results[key])
        states = job.new_states()
        for (slot, _, _), state in zip(job.states, states, strict=True):
            slots[slot] = address(state)
        home = results[self.first] if self.home is None else self.home
        table = job.pack(*slots)
        self.run(address(a), address(b), address(home), execution.content(table))
        return results if len(results) > 1 else results[self.first]

    def _overlap(self, a, b, given: dict[str, np.ndarray], operands: dict[str, Any]) -> bool:
        outs = list(given.values())
        others = [a, b, *(operands[key] for key in self.arrays)]
        share = np.may_share_memory
        return any(share(x, y) for i, x in enumerate(outs) for y in (*others, *outs[i + 1 :]))
