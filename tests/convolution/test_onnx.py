"""gemm.onnx beyond onnx's own cases: attributes at their limits, zero points, filters kept."""

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402

import gemm.onnx  # noqa: E402


def run(op, inputs, outputs=("y",), **attributes):
    names = [f"x{i}" for i in range(len(inputs))]
    node = helper.make_node(op, names, list(outputs), **attributes)
    return gemm.onnx.run_node(node, inputs)


def test_auto_pad_with_stride_and_dilation():
    x = np.arange(22, dtype="f4").reshape(1, 1, 22)
    w = np.ones((1, 1, 3), "f4")
    y = run("Conv", [x, w], auto_pad="SAME_UPPER", dilations=[2], strides=[2])[0]
    assert y.shape == (1, 1, 11)
    # Four zeros are wanted for stride 1, three for stride 2: the odd one goes after.
    assert y[0, 0, 0] == 0 + 1 + 3
    assert run("Conv", [x, w], auto_pad="SAME_LOWER", dilations=[2], strides=[2])[0][0, 0, 0] == 2


@pytest.mark.parametrize("auto_pad, first", [("SAME_UPPER", 2), ("SAME_LOWER", 1)])
def test_transposed_output_shape_splits_an_odd_total(auto_pad, first):
    x = np.ones((1, 1, 2), "f4")
    w = np.array([[[1, 2, 4, 8]]], "f4")
    whole = np.array([1, 3, 6, 12, 8], "f4")
    y = run("ConvTranspose", [x, w], output_shape=[2], auto_pad=auto_pad)[0]
    start = 3 - first
    assert y.ravel().tolist() == whole[start : start + 2].tolist()


def test_zero_points_of_rows_and_columns():
    rng = np.random.default_rng(0)
    a = rng.integers(0, 256, (2, 3, 5)).astype("u1")
    b = rng.integers(-128, 128, (5, 4)).astype("i1")
    rows = rng.integers(0, 256, (2, 3, 1)).astype("u1")
    columns = rng.integers(-128, 128, 4).astype("i1")
    wanted = (a.astype("i4") - rows) @ (b.astype("i4") - columns)
    np.testing.assert_array_equal(run("MatMulInteger", [a, b, rows, columns])[0], wanted)
    flat = run("MatMulInteger", [a[0], b, rows[0, :, 0], columns])[0]
    np.testing.assert_array_equal(flat, wanted[0])
    one = run("MatMulInteger", [a[0, 0], b, rows[0, 0, 0]])[0]
    np.testing.assert_array_equal(one, (a[0, 0].astype("i4") - rows[0, 0, 0]) @ b)


def test_convinteger_pads_with_the_zero_point():
    x = np.full((1, 1, 3, 3), 7, "u1")
    w = np.ones((2, 1, 3, 3), "i1")
    y = run("ConvInteger", [x, w, np.uint8(7), np.array([0, 1], "i1")], pads=[1, 1, 1, 1])[0]
    assert y.dtype == np.int32
    assert not y.any()


def test_requantisation_rounds_half_to_even_and_saturates():
    a = np.array([[1, 3, 5, 127, -128]], "i1").T
    b = np.array([[1]], "i1")
    half, one = np.float32(0.5), np.float32(1)
    zero = np.int8(0)
    arguments = [a, half, zero, b, one, zero, one, np.int8(1)]
    arguments = [np.asarray(v) for v in arguments]
    assert run("QLinearMatMul", arguments)[0].ravel().tolist() == [1, 3, 3, 65, -63]
    arguments[1] = np.asarray(np.float32(2))
    assert run("QLinearMatMul", arguments)[0].ravel().tolist() == [3, 7, 11, 127, -128]


def conv_model(w):
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 2, "h", "w"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list("nchw"))],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph)


def test_filters_are_kept_and_follow_changes_in_place():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 2, 5, 5)).astype("f4")
    ready = gemm.onnx.prepare(conv_model(rng.standard_normal((3, 2, 3, 3)).astype("f4")))
    w = np.array(ready._evaluator.rt_inits_["w"])
    ready._evaluator.rt_inits_["w"] = w
    first = ready.run(x).y
    np.testing.assert_array_equal(ready.run({"x": x}).y, first)
    w *= 2
    np.testing.assert_array_equal(ready.run([x])[0], 2 * first)
    w[0, 0, 0, 0] += 1
    assert not np.array_equal(ready.run([x])[0], 2 * first)


def test_refusals():
    model = conv_model(np.ones((3, 2, 3, 3), "f4"))
    ready = gemm.onnx.prepare(model)
    with pytest.raises(ValueError, match=r"inputs \['x'\] are missing"):
        ready.run({})
    with pytest.raises(ValueError, match="takes 1 inputs, got 2"):
        ready.run([1, 2])
    with pytest.raises(ValueError, match="'CUDA' is not supported"):
        gemm.onnx.prepare(model, "CUDA")
    assert gemm.onnx.supports_device("CPU")
    assert not gemm.onnx.supports_device("CUDA:1")
    with pytest.raises(onnx.checker.ValidationError):
        model.graph.node[0].op_type = "NoSuchOperator"
        gemm.onnx.prepare(model)
    x = np.ones((1, 2, 5, 5), "f4")
    with pytest.raises(ValueError, match="kernel is larger than the padded input"):
        ready.run(x[:, :, :2])
