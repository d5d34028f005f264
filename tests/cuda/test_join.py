"""Slices of K that one launch sums, as plain Python on a pretended device."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gemm import device
from gemm.microkernels import dtypes as t
from gemm.microkernels.vocabulary import storage

from .pretended import Array, backend_on


def product(a, b, slices: int, units: int):
    device._prepared.clear()
    backend = backend_on("sm_90a")
    backend.on.units = units
    found = device.matmul(backend, Array(a, backend.on), Array(b, backend.on), split_k=slices)
    return found.values, backend.on.launched


@pytest.mark.parametrize("m, n, k, slices", [(5, 40, 512, 3), (70, 72, 640, 2), (8, 8, 64, 1)])
def test_slices_are_summed_in_order(m, n, k, slices):
    rng = np.random.default_rng()
    kind = storage(t.bfloat16)
    a, b = rng.standard_normal((m, k)).astype(kind), rng.standard_normal((k, n)).astype(kind)
    found, launched = product(a, b, slices, 16)
    assert len(launched) == 1
    assert launched[0].joined == (slices > 1)
    length = math.ceil(math.ceil(k / slices) / 64) * 64
    want = np.zeros((m, n), np.float32)
    for start in range(0, k, length):
        part = slice(start, start + length)
        chain = np.zeros((m, n), np.float32)
        for x, y in zip(a[:, part].T, b[part], strict=True):
            # Products of bfloat16 are exact in float32.
            chain = chain + x.astype("f4")[:, None] * y.astype("f4")[None]
        want = want + chain
    np.testing.assert_array_equal(found, want.astype(kind))


def test_more_teams_than_fit_take_two_launches():
    kind = storage(t.bfloat16)
    a = np.ones((70, 256), kind)
    found, launched = product(a, np.ones((256, 72), kind), 4, 2)
    assert len(launched) == 2 and not any(plan.joined for plan in launched)
    assert (found == 256).all()
