"""Fixtures of the engine's tests."""

import numpy as np
import pytest


@pytest.fixture
def poisoned_scratch(monkeypatch):
    """Scratch comes filled with NaN, and is never reused."""
    from gemm import execution, plan

    def take_space(nbytes):
        raw = np.full(nbytes + 4096, 0xFF, np.uint8)
        return nbytes, plan.round_up(raw.ctypes.data, 4096), raw

    monkeypatch.setattr(execution, "take_space", take_space)
    monkeypatch.setattr(execution, "give_space", lambda block: None)
