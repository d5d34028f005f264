"""perf/convolution.py: the layers it names, the rules it sums up, how it goes on from a file."""

import json
from dataclasses import astuple

import pytest

pytest.importorskip("gemm.perf.convolution")

from gemm.perf import convolution as speed  # noqa: E402


@pytest.mark.parametrize(
    ("network", "distinct", "gigaflops"),
    # Operations of one image of 224 x 224, convolutions alone: He et al. give 3.8e9 multiply-adds
    # for the variant with its strides in the 1x1 layers, 4.1e9 is usual for this one; Sandler et
    # al. give 0.3e9.
    [("resnet50", 23, 2 * 4.09), ("mobilenetv2", 30, 2 * 0.3)],
)
def test_layers_are_those_of_the_networks(network, distinct, gigaflops):
    assert len(speed.distinct(network)) == distinct
    total = sum(layer.flops for layer in speed.NETWORKS[network]()) / 1e9
    assert total == pytest.approx(gigaflops, rel=0.02)


def entries():
    dense, depthwise = speed.Layer(64, 64, 3, 1, 56), speed.Layer(32, 32, 3, 1, 112, 32)
    times = {"ours NCHW": 4.0, "ours NHWC": 2.0, "torch NCHW": 3.0, "torch NHWC packed": 2.5}
    times |= {"onnxruntime": 6.0}
    yield dense, {**times, "im2col": 5.0, "indirect": 2.2}
    yield depthwise, {**times, "dense NHWC": 20.0}


def test_summary_says_what_the_rules_ask():
    lines = speed.summary(list(entries()))
    assert "better layout / PyTorch: geometric mean 1.25, worst 1.25 of 2" in lines
    assert "NCHW alone / PyTorch: geometric mean 0.62, worst 0.62 of 2" in lines
    assert "better layout / onnxruntime: geometric mean 3.00, worst 3.00 of 2" in lines
    assert "gathered / im2col, 64 filters: geometric mean 2.50, worst 2.50 of 1" in lines
    assert "depthwise, better layout / PyTorch: geometric mean 1.25, worst 1.25 of 1" in lines
    assert (
        "depthwise / the dense layer it replaces: geometric mean 10.00, worst 10.00 of 1" in lines
    )


def test_report_reads_what_was_stored(tmp_path, capsys, monkeypatch):
    layer = speed.distinct("resnet50")[2]
    key = " ".join(map(str, ("float32", 1, 1, *astuple(layer))))
    store = tmp_path / "times.json"
    store.write_text(json.dumps({key: next(iter(entries()))[1]}))
    monkeypatch.setattr(speed, "_measure", None)  # nothing may be measured
    arguments = ["--network", "resnet50", "--batch", "1", "--threads", "1", "--report"]
    speed.main([*arguments, "--store", str(store)])
    printed = capsys.readouterr().out
    assert "64>64 3x3/1" in printed
    assert "better layout / PyTorch: geometric mean 1.25, worst 1.25 of 1" in printed
