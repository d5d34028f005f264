"""Kernels are kept between runs (they are keyed by content), in a folder of pytest's own cache."""

import os

import pytest


def pytest_configure(config):
    folder = config.cache.mkdir("gemm-kernels")
    folder.chmod(0o700)
    os.environ["GEMM_CACHE_DIR"] = str(folder)
    for name in ("GEMM_ISA", "GEMM_DOOR", "GEMM_NUM_THREADS", "GEMM_VERBOSE"):
        os.environ.pop(name, None)


@pytest.fixture
def poisoned_scratch(monkeypatch):
    """Scratch comes filled with NaN, and is never reused."""
    import numpy as np

    from gemm import execution, plan

    def take_space(nbytes):
        raw = np.full(nbytes + 4096, 0xFF, np.uint8)
        return nbytes, plan.round_up(raw.ctypes.data, 4096), raw

    monkeypatch.setattr(execution, "take_space", take_space)
    monkeypatch.setattr(execution, "give_space", lambda block: None)
