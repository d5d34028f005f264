"""opt_einsum's own test modules with gemm as the backend of every contraction of NumPy arrays.

`optimize=False`, which these tests compare with, does not go through a backend: it stays NumPy's
einsum and is the oracle. Of the many ways to find an order that test_contract.py goes through,
three are kept: the search is opt_einsum's own, and what it finds is mostly the same.
"""

import importlib

import numpy as np
import opt_einsum
import pytest
from opt_einsum.backends import dispatch
from routed import load

import gemm

# Not the function that the package exports under the name of its module.
_contract_module = importlib.import_module("opt_einsum.contract")
_parse_backend = _contract_module.parse_backend


def _backend(arrays, backend):
    named = _parse_backend(arrays, backend)
    return "gemm" if named == "numpy" else named


@pytest.fixture(autouse=True)
def gemm_as_backend(monkeypatch):
    monkeypatch.setattr(_contract_module, "parse_backend", _backend)


def test_gemm_needs_no_registration():
    a, b = np.ones((2, 3)), np.ones((3, 4))
    result = opt_einsum.contract("ab,bc->ca", a, b, backend="gemm")
    np.testing.assert_array_equal(result, np.full((4, 2), 3.0))
    assert dispatch.get_func("tensordot", "gemm") is gemm.tensordot
    assert dispatch.get_func("transpose", "gemm") is gemm.transpose
    assert dispatch.get_func("einsum", "gemm") is gemm.einsum


def _collect(name, prefix):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(opt_einsum.paths, "_PATH_OPTIONS", ["auto", "greedy", "optimal"])
        module = load(f"opt_einsum.tests.{name}")
    return {
        f"test_{prefix}{key.removeprefix('test_')}": value
        for key, value in vars(module).items()
        if key.startswith("test_")
    }


globals().update(_collect("test_contract", "contract_"))
globals().update(_collect("test_edge_cases", "edge_"))
globals().update(_collect("test_input", "input_"))
