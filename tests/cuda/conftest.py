"""GPU tests carry the mark `cuda` and are skipped, with the reason, where no device answers."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(config, items):
    if "cuda" in (config.option.markexpr or ""):
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU: run `pytest -m cuda tests/cuda`")
    for item in items:
        if "cuda" in item.keywords and item.get_closest_marker("cuda"):
            item.add_marker(skip)
