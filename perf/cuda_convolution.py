"""Checks and times ResNet-50's convolutions of device arrays against cuDNN, in one run on one GPU.

    python -m gemm.perf.cuda_convolution [--batch 32] [--dtype bfloat16] [--only 3x3] [--blocks]

Every distinct layer, channels last on both sides. cuDNN is called through PyTorch with its
benchmark mode on, which tries its algorithms first. Operands are random and several sets rotate;
a result is checked against float64 before it is timed, into a poisoned output; times are device
events, the median of rounds in which both sides take turns. `--blocks` also times every block that
`device_plan.image_block` chooses from.
"""

from __future__ import annotations

import argparse
import math
import sys

from .convolution import Layer, resnet50
from .cuda_speed import Report, _torch, median_ms, random

TARGET = 0.85
LIMITS = {"bfloat16": 4e-3, "float16": 6e-4, "float32": 3e-6}


def relative_error(found, x, w, layer: Layer) -> float:
    """Against float64, of the first two images; infinite where anything was not written."""
    torch = _torch()
    if not bool(found.isfinite().all()):
        return math.inf
    want = torch.conv2d(x[:2].double(), w.double(), stride=layer.stride, padding=layer.padding)
    worst = float((found[:2].double() - want).norm() / want.norm())
    # The last image alone shows whether every row of the result is its own.
    want = torch.conv2d(x[-1:].double(), w.double(), stride=layer.stride, padding=layer.padding)
    return max(worst, float((found[-1:].double() - want).norm() / want.norm()))


def every_block(call) -> None:
    """Prints the time of `call`(i) with each block in place of the chosen one."""
    from gemm.convolution import device_plan, on_device

    chosen = device_plan.image_block
    try:
        for bm, bn, peers, teams in device_plan.IMAGE_BLOCKS:
            asked: list = []

            def this(*facts, found=((bm, bn), peers, teams), asked=asked, **more):
                asked.append(found)
                return found

            device_plan.image_block = this
            on_device._known.clear()
            on_device._prepared.clear()
            call(0)
            if not asked:
                return
            (time,) = median_ms([call])
            print(f"    {bm} x {bn}, peers {peers}, teams {teams}: {time * 1e3:.1f} us", flush=True)
    finally:
        device_plan.image_block = chosen
        on_device._known.clear()
        on_device._prepared.clear()


def layer_ratio(report: Report, layer: Layer, batch: int, dtype, blocks: bool) -> float:
    torch = _torch()
    import gemm

    last = torch.channels_last
    shape = (batch, layer.channels, layer.extent, layer.extent)
    kernel = (layer.filters, layer.channels, layer.kernel, layer.kernel)
    size = 2 * batch * (layer.channels * layer.extent**2 + layer.filters * layer.output**2)
    count = max(2, min(6, int(1.5e8 / size) + 1))
    sets = []
    for _ in range(count):
        x = random(shape, dtype).contiguous(memory_format=last)
        sets.append((x, random(kernel, dtype).contiguous(memory_format=last)))
    x, w = sets[0]
    out = torch.empty((batch, layer.filters, layer.output, layer.output), dtype=dtype,
                      device="cuda", memory_format=last)  # fmt: skip
    out.fill_(float("nan"))
    options = {"stride": layer.stride, "padding": layer.padding}
    gemm.conv2d(x, w, out=out, **options)
    name = (
        f"{layer.channels} > {layer.filters} {layer.kernel}x{layer.kernel}/{layer.stride}"
        f" {layer.extent}"
    )
    note = report.check(name, relative_error(out, x, w, layer), LIMITS[str(dtype)[6:]])

    def ours(i):
        gemm.conv2d(*sets[i % count], **options)

    def theirs(i):
        torch.conv2d(*sets[i % count], **options)

    mine, other = median_ms([ours, theirs])
    ratio = report.row(name, mine, other, batch * layer.flops, 0.0, note)
    if blocks:
        every_block(ours)
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--dtype", default="bfloat16", choices=sorted(LIMITS))
    parser.add_argument("--only", default="", help="a kernel: 1x1, 3x3 or 7x7")
    parser.add_argument("--blocks", action="store_true")
    given = parser.parse_args()
    torch = _torch()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    print(f"{torch.cuda.get_device_name()}, PyTorch {torch.__version__}, cuDNN "
          f"{torch.backends.cudnn.version()}, batch {given.batch}, {given.dtype}")  # fmt: skip
    report, ratios = Report(), []
    for layer in dict.fromkeys(resnet50()):
        if given.only in ("", f"{layer.kernel}x{layer.kernel}"):
            dtype = getattr(torch, given.dtype)
            ratios.append(layer_ratio(report, layer, given.batch, dtype, given.blocks))
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    print(f"geometric mean over {len(ratios)} layers: {mean:.3f} (target {TARGET})")
    print(f"{report.failed} wrong")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
