"""A real network end to end: ``pytest tests/suites/onnx_model.py``.

The networks are those of the package rapidocr-onnxruntime (a direction classifier, a text detector
and a text recogniser: MobileNet-like, with squeeze-and-excitation, transposed convolutions and
attention). They are looked up without importing the package, so ``pip install --no-deps
rapidocr-onnxruntime`` is enough.
"""

import importlib.util
import os

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

import gemm.onnx  # noqa: E402
from gemm import engine  # noqa: E402

MODELS = {
    "ch_ppocr_mobile_v2.0_cls_infer.onnx": ((2, 3, 48, 192), 54),
    "ch_PP-OCRv4_det_infer.onnx": ((1, 3, 64, 96), 64),
    "ch_PP-OCRv4_rec_infer.onnx": ((1, 3, 48, 64), 51),
}


def _path(name):
    package = importlib.util.find_spec("rapidocr_onnxruntime")
    if package is None:
        pytest.skip("needs the weights of the package rapidocr-onnxruntime")
    return os.path.join(os.path.dirname(package.origin), "models", name)


@pytest.mark.parametrize("name", MODELS)
def test_output_is_that_of_onnxruntime(name, monkeypatch):
    shape, on_engine = MODELS[name]
    path = _path(name)
    x = np.random.default_rng(0).random(shape, dtype=np.float32)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    wanted = session.run(None, {session.get_inputs()[0].name: x})[0]

    ready = gemm.onnx.prepare(onnx.load(path))
    operators = ready.on_engine
    products = {"Conv", "ConvTranspose", "MatMul", "Gemm"}
    assert [on for name, on in operators if name in products] == [True] * on_engine

    calls = []
    product = engine.product

    def counted(a, b, out, **options):
        calls.append(out.shape)
        return product(a, b, out, **options)

    monkeypatch.setattr(engine, "product", counted)
    got = ready.run([x])[0]
    assert len(calls) >= on_engine
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(ready.run([x])[0], got)
