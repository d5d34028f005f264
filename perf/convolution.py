"""Every distinct convolution of ResNet-50 and MobileNetV2 against PyTorch and onnxruntime.

    python -m gemm.perf.convolution [--network resnet50 mobilenetv2] [--batch 1 8] [--threads 1 2]
        [--dtype float32 int8] [--seconds 1] [--limit 170] [--store FILE.json] [--report]

Both sides have their weights arranged ahead of time where they can, and both allocate their
results. Ours runs in NCHW and in NHWC, PyTorch (oneDNN) too, and the better counts for each;
onnxruntime runs in NCHW. The variants of a layer are interleaved round by round in one process and
the median is taken. Before it is timed, each result is compared with the first peer's. Memory stays
with the process (`KEPT`), or some variant would pay for the pages that another one gave back. With
several threads each variant waits until the pools of the others sleep, and warms up its own.

With --store results are kept and layers that are there already are not measured again, so that a
run may be cut into pieces (--limit: seconds after which no layer is begun). --report only prints.
Printed: a line a layer, then the geometric means and the worst layer of every rule that the project
holds itself to.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
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


Calls = dict[str, Callable[[], Any]]


def _operands(layer: Layer, batch: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((batch, layer.channels, layer.extent, layer.extent), np.float32)
    taps = (layer.channels // layer.groups, layer.kernel, layer.kernel)
    return x, rng.standard_normal((layer.filters, *taps), np.float32)


def _ours(layer: Layer, x: np.ndarray, w: np.ndarray, threads: int) -> Calls:
    import gemm.convolution as convolution

    filters = convolution.pack_filters(w, layer.groups)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))

    def run(x: np.ndarray, layout: str, algorithm: str = "auto") -> Callable[[], Any]:
        return lambda: convolution.conv2d(
            x, filters, None, layer.stride, layer.padding, layout=layout, algorithm=algorithm,
            threads=threads,
        )  # fmt: skip

    variants = {"ours NCHW": run(x, "NCHW"), "ours NHWC": run(last, "NHWC")}
    if layer.kind == "dense":
        for algorithm in ("im2col", "indirect"):
            variants[algorithm] = run(last, "NHWC", algorithm)
    if layer.kind == "depthwise" and layer.filters <= 160:
        # The dense layer that it replaces.
        whole = np.zeros((layer.filters, layer.channels, layer.kernel, layer.kernel), np.float32)
        dense = convolution.pack_filters(whole)
        variants["dense NHWC"] = lambda: convolution.conv2d(
            last, dense, None, layer.stride, layer.padding, layout="NHWC", threads=threads
        )
    return variants


def _torch(layer: Layer, x: np.ndarray, w: np.ndarray, threads: int) -> Calls:
    import torch

    torch.set_num_threads(threads)
    pads, steps = [layer.padding] * 2, [layer.stride] * 2
    options = (None, layer.stride, layer.padding, 1, layer.groups)
    variants: Calls = {}
    for name, order in (("NCHW", torch.contiguous_format), ("NHWC", torch.channels_last)):
        a = torch.from_numpy(x).to(memory_format=order)
        b = torch.from_numpy(w).to(memory_format=order)
        # What torch.compile does with frozen weights.
        reordered = torch.ops.mkldnn._reorder_convolution_weight(
            b, pads, steps, [1, 1], layer.groups, list(a.shape)
        )

        def plain(a: Any = a, b: Any = b) -> Any:
            with torch.inference_mode():
                return torch.nn.functional.conv2d(a, b, *options)

        def ahead(a: Any = a, b: Any = reordered) -> Any:
            with torch.inference_mode():
                return torch.ops.mkldnn._convolution_pointwise(
                    a, b, None, pads, steps, [1, 1], layer.groups, "none", [], ""
                )

        variants[f"torch {name}"] = plain
        variants[f"torch {name} packed"] = ahead
    return variants


def _session(nodes: list, inputs: dict, constants: dict, threads: int) -> Calls:
    import onnx
    import onnxruntime
    from onnx import helper, numpy_helper

    infos = [
        helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
        )
        for name, value in inputs.items()
    ]
    kind = next(iter(inputs.values())).dtype
    graph = helper.make_graph(
        nodes, "layer", infos,
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(kind), list("nchw"))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return {"onnxruntime": lambda: session.run(None, inputs)[0]}


def _attributes(layer: Layer) -> dict[str, Any]:
    return {
        "pads": [layer.padding] * 4, "strides": [layer.stride] * 2, "group": layer.groups,
        "kernel_shape": [layer.kernel] * 2,
    }  # fmt: skip


def _onnxruntime(layer: Layer, x: np.ndarray, w: np.ndarray, threads: int) -> Calls:
    from onnx import helper

    node = helper.make_node("Conv", ["x", "w"], ["y"], **_attributes(layer))
    return _session([node], {"x": x}, {"w": w}, threads)


ZEROS = 128, 120  # zero points of the 8-bit input and output


def _quantised(layer: Layer, batch: int, threads: int) -> Calls:
    """uint8 by int8 to uint8, requantised in the write-back, against QLinearConv."""
    from onnx import helper

    import gemm
    from gemm import convolution
    from gemm.epilogues import as_type, nearest

    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (batch, layer.channels, layer.extent, layer.extent), np.uint8)
    taps = (layer.channels // layer.groups, layer.kernel, layer.kernel)
    w = rng.integers(-127, 128, (layer.filters, *taps), np.int8)
    scale = np.float32(1 / (128 * math.sqrt(math.prod(taps))))

    @gemm.epilogue
    def requantised(acc, scale, zero):
        return as_type(min(max(nearest(acc * scale) + zero, 0.0), 255.0), "uint8")

    filters = convolution.pack_filters(w, layer.groups)
    last = np.ascontiguousarray(np.moveaxis(x, 1, -1))
    bound = requantised(scale=scale, zero=np.float32(ZEROS[1]))

    def run(x: np.ndarray, layout: str) -> Callable[[], Any]:
        return lambda: convolution.conv2d(
            x, filters, None, layer.stride, layer.padding, layout=layout, threads=threads,
            x_zero_point=ZEROS[0], epilogue=bound,
        )  # fmt: skip

    variants = {"ours NCHW": run(x, "NCHW"), "ours NHWC": run(last, "NHWC")}
    constants = {
        "xs": np.float32(1), "xz": np.uint8(ZEROS[0]), "w": w, "ws": scale, "wz": np.int8(0),
        "ys": np.float32(1), "yz": np.uint8(ZEROS[1]),
    }  # fmt: skip
    constants = {name: np.asarray(value) for name, value in constants.items()}
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    node = helper.make_node("QLinearConv", names, ["y"], **_attributes(layer))
    variants.update(_session([node], {"x": x}, constants, threads))
    return variants


KEPT = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 30)}
# Seconds after which the threads of every library have gone to sleep, and of calls until the system
# has spread those of the next one over the cores.
SPIN, WARM = 0.02, 0.01


def _medians(variants: Calls, seconds: float, threads: int = 1) -> dict[str, float]:
    """Median seconds a call of each variant, interleaved for about ``seconds`` in all."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for call in variants.values():
        call()
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(samples[next(iter(variants))]) < 5:
        for name, call in variants.items():
            if threads > 1:
                time.sleep(SPIN)
                warm = time.perf_counter() + WARM
                while time.perf_counter() < warm:
                    call()
            for _ in range(8 if threads > 1 else 1):
                start = time.perf_counter()
                call()
                samples[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in samples.items()}


def _check(variants: Calls, exact: bool) -> None:
    """Raise AssertionError unless all variants agree; 8-bit results may round a half apart."""
    results = {}
    for name, call in variants.items():
        value = np.asarray(call())
        if name in ("ours NHWC", "im2col", "indirect"):
            value = np.moveaxis(value, -1, 1)
        if not name.startswith("dense"):
            results[name] = value.astype(np.float64)
    wanted = results["onnxruntime"]
    for name, value in results.items():
        limit = 1 if exact else 1e-4 * abs(wanted).max()
        worst = abs(value - wanted).max()
        assert worst <= limit, f"{name} differs from onnxruntime by {worst}"


def _measure(
    layer: Layer, batch: int, threads: int, dtype: str, seconds: float
) -> dict[str, float]:
    if dtype == "int8":
        variants = _quantised(layer, batch, threads)
    else:
        x, w = _operands(layer, batch)
        variants = _ours(layer, x, w, threads)
        for peer in (_torch, _onnxruntime):
            variants.update(peer(layer, x, w, threads))
    _check(variants, dtype == "int8")
    return _medians(variants, seconds, threads)


def _mean(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def _line(layer: Layer, batch: int, times: dict[str, float]) -> str:
    ours = min(times["ours NCHW"], times["ours NHWC"])
    theirs = min(t for n, t in times.items() if n.startswith(("torch", "onnxruntime")))
    columns = "  ".join(f"{name} {1e3 * t:.3f}" for name, t in times.items())
    shape = f"{layer.channels}>{layer.filters} {layer.kernel}x{layer.kernel}/{layer.stride}"
    rate = batch * layer.flops / ours / 1e9
    return f"{shape:<16} at {layer.extent:<3} {rate:6.0f} GFLOP/s {theirs / ours:5.2f}  {columns}"


def summary(entries: list[tuple[Layer, dict[str, float]]]) -> list[str]:
    """The rules of the project for layers measured alike: one line a rule."""
    rules: dict[str, list[float]] = {}

    def note(rule: str, ratio: float) -> None:
        rules.setdefault(rule, []).append(ratio)

    for layer, times in entries:
        ours = min(times["ours NCHW"], times["ours NHWC"])
        onnx = times["onnxruntime"]
        torch = min((t for n, t in times.items() if n.startswith("torch")), default=math.nan)
        if math.isnan(torch):
            note("8 bits, better layout / onnxruntime", onnx / ours)
            continue
        if layer.kind == "depthwise":
            note("depthwise, better layout / PyTorch", torch / ours)
        note("better layout / PyTorch", torch / ours)
        note("NCHW alone / PyTorch", torch / times["ours NCHW"])
        note("better layout / onnxruntime", onnx / ours)
        if "im2col" in times:
            gathered = min(times["ours NHWC"], times["indirect"])
            note("gathered / im2col, kernels above 1x1", times["im2col"] / gathered)
            if layer.filters == 64:
                note("gathered / im2col, 64 filters", times["im2col"] / gathered)
        if "dense NHWC" in times:
            note("depthwise / the dense layer it replaces", times["dense NHWC"] / ours)
    return [
        f"{rule}: geometric mean {_mean(r):.2f}, worst {min(r):.2f} of {len(r)}"
        for rule, r in rules.items()
    ]


def main(given: list[str] | None = None) -> None:
    """Measure and print; see the module docstring."""
    assert __doc__
    parser = argparse.ArgumentParser(
        prog="python -m gemm.perf.convolution", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--dtype", nargs="+", choices=("float32", "int8"), default=["float32"])
    parser.add_argument("--seconds", type=float, default=1.0, help="a layer")
    parser.add_argument("--limit", type=float, default=math.inf, help="begin no layer after it")
    parser.add_argument("--store", type=Path, help="JSON file to keep results in and go on from")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    options = parser.parse_args(given)
    if given is None and not options.report:
        from .machine import restarted

        restarted("gemm.perf.convolution", max(options.threads), KEPT)
    kept: dict[str, dict[str, float]] = {}
    if options.store and options.store.exists():
        kept = json.loads(options.store.read_text())
    end = time.monotonic() + options.limit
    print("milliseconds a call; ratio = best peer / ours, above 1 is faster")
    for network in options.network:
        for dtype in options.dtype:
            for batch in options.batch:
                for threads in options.threads:
                    print(f"\n{network}, {dtype}, batch {batch}, {threads} thread(s)")
                    entries = []
                    for layer in distinct(network):
                        text = " ".join(map(str, (dtype, batch, threads, *astuple(layer))))
                        if text not in kept:
                            if options.report or time.monotonic() > end:
                                continue
                            kept[text] = _measure(layer, batch, threads, dtype, options.seconds)
                            if options.store:
                                options.store.write_text(json.dumps(kept, indent=1))
                        entries.append((layer, kept[text]))
                        print(_line(layer, batch, kept[text]), flush=True)
                    print("\n".join(summary(entries)), flush=True)


if __name__ == "__main__":
    main()
