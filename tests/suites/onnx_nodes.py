"""onnx's own test cases for the operators that run on the engine: ``pytest
tests/suites/onnx_nodes.py``.

The node cases are built in memory by the onnx package, the pytorch-converted and pytorch-operator
models lie in it. Batch normalisation is included because gemm.onnx corrects the evaluator there.
"""

import glob
import os
import warnings

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx.backend.test import loader  # noqa: E402

import gemm.onnx  # noqa: E402
from gemm.onnx.operators import OPERATORS  # noqa: E402

OURS = {operator.__name__ for operator in OPERATORS}
RUN = OURS | {"BatchNormalization"}


def _uses(model, names):
    return any(node.op_type in names for node in model.graph.node)


def _node_cases():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # building other operators' cases overflows on purpose
        cases = loader.load_model_tests(kind="node")
    return [case for case in cases if _uses(case.model, RUN)]


def _stored_cases(kind):
    for case in loader.load_model_tests(kind=kind):
        if case.model_dir is not None:
            model = onnx.load(os.path.join(case.model_dir, "model.onnx"))
            if _uses(model, RUN):
                yield case, model


NODES = _node_cases()
STORED = [c for kind in ("pytorch-converted", "pytorch-operator") for c in _stored_cases(kind)]


def _plain(value):
    value = np.asarray(value)
    return value.astype(np.float64) if value.dtype.kind == "V" else value


def _same(got, wanted, case):
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        if isinstance(w, np.ndarray):
            assert (np.asarray(g).dtype, np.shape(g)) == (w.dtype, w.shape)
            np.testing.assert_allclose(_plain(g), _plain(w), rtol=case.rtol, atol=case.atol)


@pytest.mark.parametrize("case", NODES, ids=lambda case: case.name)
def test_node(case):
    ready = gemm.onnx.prepare(case.model)
    assert any(on for _, on in ready.on_engine) or not _uses(case.model, OURS)
    for inputs, outputs in case.data_sets:
        _same(ready.run(inputs), outputs, case)


def _tensor(path):
    with open(path, "rb") as file:
        return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(file.read()))


@pytest.mark.parametrize("case, model", STORED, ids=[case.name for case, _ in STORED])
def test_stored(case, model):
    ready = gemm.onnx.prepare(model)
    for folder in sorted(glob.glob(os.path.join(case.model_dir, "test_data_set*"))):
        inputs, outputs = (
            [_tensor(p) for p in sorted(glob.glob(os.path.join(folder, f"{kind}_*.pb")))]
            for kind in ("input", "output")
        )
        _same(ready.run(inputs), outputs, case)


def test_counts():
    """The suite is not silently empty: onnx 1.20 and later have at least this many cases."""
    found = {name: sum(_uses(c.model, {name}) for c in NODES) for name in OURS}
    least = {
        "Conv": 6,
        "ConvTranspose": 10,
        "ConvInteger": 2,
        "QLinearConv": 1,
        "MatMul": 4,
        "MatMulInteger": 1,
        "QLinearMatMul": 8,
        "Gemm": 11,
        "Einsum": 5,
        "Col2Im": 5,
        "DeformConv": 4,
    }
    assert all(found[name] >= count for name, count in least.items()), found
    assert len(STORED) >= 30
