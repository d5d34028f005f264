"""Every distinct convolution of ResNet-50 and MobileNetV2 against PyTorch and onnxruntime.

``python -m gemm.perf.convolution [--batch 1 8] [--threads 1 2] [--network resnet50 mobilenetv2]``

Both sides have their weights arranged ahead of time where they can. Ours runs in NCHW and in NHWC,
PyTorch (oneDNN) in its better layout, onnxruntime in NCHW. The variants of a layer are interleaved
round by round in one process and the median is taken. Printed: a line a layer, then the geometric
means and the worst layer, which are what the project holds itself to.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Layer:
    """One convolution: channels, filters, square kernel, stride, input extent, groups."""

    channels: int
    filters: int
    kernel: int
    stride: int
    extent: int
    groups: int = 1

    @property
    def padding(self) -> int:
        """The padding that both networks use: half the kernel."""
        return self.kernel // 2

    @property
    def output(self) -> int:
        """Extent of the result."""
        return (self.extent + 2 * self.padding - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        """Multiplications and additions for one image."""
        taps = self.channels // self.groups * self.kernel**2
        return 2 * taps * self.filters * self.output**2

    @property
    def kind(self) -> str:
        """Which rule the layer falls under."""
        if self.groups > 1:
            return "depthwise"
        return "1x1" if self.kernel == 1 else "dense"


def resnet50() -> Iterator[Layer]:
    """The convolutions of ResNet-50 (He et al. 2015) with the stride in the 3x3 layers."""
    yield Layer(3, 64, 7, 2, 224)
    channels, extent = 64, 56
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            step = stride if block == 0 else 1
            yield Layer(channels, width, 1, 1, extent)
            yield Layer(width, width, 3, step, extent)
            yield Layer(width, 4 * width, 1, 1, extent // step)
            if block == 0:
                yield Layer(channels, 4 * width, 1, step, extent)
            channels, extent = 4 * width, extent // step


def mobilenetv2() -> Iterator[Layer]:
    """The convolutions of MobileNetV2 (Sandler et al. 2018), width 1."""
    yield Layer(3, 32, 3, 2, 224)
    channels, extent = 32, 112
    stages = (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    )
    for expansion, filters, blocks, stride in stages:
        for block in range(blocks):
            step = stride if block == 0 else 1
            hidden = channels * expansion
            if expansion > 1:
                yield Layer(channels, hidden, 1, 1, extent)
            yield Layer(hidden, hidden, 3, step, extent, hidden)
            yield Layer(hidden, filters, 1, 1, extent // step)
            channels, extent = filters, extent // step
    yield Layer(320, 1280, 1, 1, 7)


NETWORKS = {"resnet50": resnet50, "mobilenetv2": mobilenetv2}


def distinct(network: str) -> list[Layer]:
    """The layers of a network without repetitions, in order."""
    return list(dict.fromkeys(NETWORKS[network]()))


def _ours(layer: Layer, x: np.ndarray, w: np.ndarray, threads: int) -> dict[str, Callable]:
    import gemm.convolution as convolution

    filters = convolution.pack_filters(w, layer.groups)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    shape = (len(x), layer.filters, layer.output, layer.output)
    first_out = np.empty(shape, x.dtype)
    last_out = np.ascontiguousarray(np.moveaxis(first_out, 1, -1))
    common = (filters, None, layer.stride, layer.padding)

    def run(x: np.ndarray, layout: str, out: np.ndarray, algorithm: str) -> Callable:
        return lambda: convolution.conv2d(
            x, *common, layout=layout, out=out, algorithm=algorithm, threads=threads
        )

    variants = {
        "ours NCHW": run(x, "NCHW", first_out, "auto"),
        "ours NHWC": run(last, "NHWC", last_out, "auto"),
    }
    if layer.kind == "dense":
        for algorithm in ("im2col", "implicit", "indirect"):
            variants[algorithm] = run(last, "NHWC", last_out, algorithm)
    return variants


def _torch(layer: Layer, x: np.ndarray, w: np.ndarray, threads: int) -> dict[str, Callable]:
    import torch

    torch.set_num_threads(threads)
    options = (None, layer.stride, layer.padding, 1, layer.groups)
    variants = {}
    for name, order in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
        a = torch.from_numpy(x).to(memory_format=order)
        b = torch.from_numpy(w).to(memory_format=order)
        reordered = torch.ops.mkldnn._reorder_convolution_weight(
            b.to_mkldnn(),
            [layer.padding] * 2,
            [layer.stride] * 2,
            [1, 1],
            layer.groups,
            list(a.shape),
        )
        pads, steps = [layer.padding] * 2, [layer.stride] * 2

        def plain(a: Any = a, b: Any = b) -> Any:
            with torch.inference_mode():
                return torch.nn.functional.conv2d(a, b, *options)

        def ahead(a: Any = a, b: Any = reordered, pads: Any = pads, steps: Any = steps) -> Any:
            with torch.inference_mode():
                return torch.ops.mkldnn._convolution_pointwise(
                    a, b, None, pads, steps, [1, 1], layer.groups, "none", [], ""
                )

        variants[f"torch {name}"] = plain
        variants[f"torch {name} packed"] = ahead
    return variants


def _onnxruntime(layer: Layer, x: np.ndarray, w: np.ndarray, threads: int) -> dict[str, Callable]:
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        pads=[layer.padding] * 4,
        strides=[layer.stride] * 2,
        group=layer.groups,
    )
    graph = helper.make_graph(
        [node],
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, list("nchw"))],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return {"onnxruntime": lambda: session.run(None, {"x": x})}


def _medians(variants: dict[str, Callable], seconds: float) -> dict[str, float]:
    """Median seconds a call of each variant, interleaved for about ``seconds`` in all."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        call()
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[next(iter(variants))]) < 5:
        for name, call in variants.items():
            start = time.perf_counter()
            call()
            samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in samples.items()}


def _mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _measure(layer: Layer, batch: int, threads: int, seconds: float) -> dict[str, float]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, layer.channels, layer.extent, layer.extent), np.float32)
    taps = (layer.channels // layer.groups, layer.kernel, layer.kernel)
    w = rng.standard_normal((layer.filters, *taps), np.float32)
    variants = _ours(layer, x, w, threads)
    for peer in (_torch, _onnxruntime):
        try:
            variants.update(peer(layer, x, w, threads))
        except ImportError as error:
            print(f"  left out: {error}")
    return _medians(variants, seconds)


def main() -> None:
    """Measure and print; see the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.0, help="a layer")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} logical cores; milliseconds; ratio = theirs / ours, above 1 is faster")
    for network in arguments.network:
        for batch in arguments.batch:
            for threads in arguments.threads:
                _table(network, batch, threads, arguments.seconds)


def _table(network: str, batch: int, threads: int, seconds: float) -> None:
    print(f"\n{network}, batch {batch}, {threads} threads")
    better: list[float] = []
    depth: list[float] = []
    first, gather = [], []
    for layer in distinct(network):
        times = _measure(layer, batch, threads, seconds)
        theirs = min((t for n, t in times.items() if n.startswith("torch")), default=math.nan)
        ours = min(times["ours NCHW"], times["ours NHWC"])
        (depth if layer.kind == "depthwise" else better).append(theirs / ours)
        first.append(theirs / times["ours NCHW"])
        if "im2col" in times:
            gather.append(times["im2col"] / min(times["implicit"], times["indirect"]))
        columns = "  ".join(f"{name} {1e3 * t:.3f}" for name, t in times.items())
        rate = batch * layer.flops / ours / 1e9
        print(f"{layer}  {rate:.0f} GFLOP/s  ratio {theirs / ours:.2f}\n    {columns}")
    for name, ratios in (
        ("better layout, dense and 1x1", better),
        ("NCHW alone, all layers", first),
        ("depthwise", depth),
        ("gathered against im2col", gather),
    ):
        if ratios:
            print(f"{name}: geometric mean {_mean(ratios):.2f}, worst {min(ratios):.2f}")


if __name__ == "__main__":
    main()
