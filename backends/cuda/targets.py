"""CUDA targets as data: what LLVM is told and what a plan may use.

Facts a plan needs: registers and shared memory of a multiprocessor, and which units and copy
routes the instruction set has. PTX versions are the first that know the target, so that the
oldest driver that runs the device can assemble them.
"""

from __future__ import annotations

from dataclasses import dataclass

TRIPLE = "nvptx64-nvidia-cuda"


@dataclass(frozen=True)
class CudaTarget:
    """name: the assembler's target; ptx: version of the text; shared: bytes a team may use;
    boxes: it has the copy engine and gates; wide: it has the group-wide matrix unit."""

    name: str
    ptx: int
    shared: int
    boxes: bool = False
    wide: bool = False

    @property
    def capability(self) -> int:
        return int(self.name.removeprefix("sm_").rstrip("a"))

    @property
    def async_copies(self) -> bool:
        return self.capability >= 80

    @property
    def compiler(self):
        """The compile path's Target."""
        from ..compiler import Target

        return Target(
            self.name, TRIPLE, self.name, f"+ptx{self.ptx}", "gemm.backends.cuda.lowering"
        )


KIB = 1024
TARGETS = {
    target.name: target
    for target in (
        CudaTarget("sm_75", 77, 64 * KIB),
        CudaTarget("sm_80", 77, 163 * KIB),
        CudaTarget("sm_86", 77, 99 * KIB),
        CudaTarget("sm_89", 84, 99 * KIB),
        CudaTarget("sm_90a", 80, 227 * KIB, boxes=True, wide=True),
        CudaTarget("sm_100a", 86, 227 * KIB, boxes=True),
        CudaTarget("sm_120", 87, 99 * KIB, boxes=True),
    )
}


def target_of(major: int, minor: int) -> CudaTarget:
    """The target of a device's compute capability: its own, or the newest it can run."""
    capability = 10 * major + minor
    usable = [
        t
        for t in TARGETS.values()
        if t.capability == capability or (t.capability < capability and not t.name.endswith("a"))
    ]
    if not usable:
        oldest = min(t.capability for t in TARGETS.values())
        raise RuntimeError(
            f"gemm needs compute capability {oldest / 10}, this GPU has {major}.{minor}"
        )
    return max(usable, key=lambda t: t.capability)
