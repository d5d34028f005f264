"""A plan's kernel on a device: its PTX from the cache where it is, compiled where it is not.

The cache holds the PTX, keyed by sources, libraries, target and plan; the driver assembles it
when it is loaded (see `Device.load`).
"""

from __future__ import annotations

import functools
from pathlib import Path

from gemm.microkernels.pixels import MAP_BYTES, RULE_BYTES

from .. import kernel_cache
from .driver import Device, Kernel

NAME = "gemm_kernel"
SOURCES = (
    *(f"team/{name}.py" for name in ("__init__", "choice", "join", "lanes", "leave", "packing",
                                     "pixels", "plan", "ring", "walk")),
    *(f"epilogues/{name}.py" for name in ("partials", "program", "team_partials", "team_vectors",
                                          "team_write_back", "transfers", "writer")),
)  # fmt: skip
compiled: list[str] = []  # labels of the kernels compiled by this process, in order


@functools.cache
def sources_digest() -> str:
    """Digest of every source file that decides what a kernel's text is."""
    import gemm
    import gemm.backends
    import gemm.microkernels

    from ..cpu.kernels import versions

    backends = Path(gemm.backends.__path__[0])
    files = [*Path(gemm.microkernels.__path__[0]).glob("*.py"), *backends.glob("*.py")]
    files += [*backends.glob("cuda/*.py"), backends / "cpu" / "lowering.py"]
    files += [Path(gemm.__file__).parent / name for name in SOURCES]
    parts: list[object] = [versions()]
    for file in sorted(files):
        parts += [file.name, file.read_bytes()]
    return kernel_cache.digest(*parts)


def ptx_of(plan, build, target) -> str:
    """PTX of a plan for a target; `build(plan)` gives (kernel, argument kinds)."""
    key = kernel_cache.digest(sources_digest(), target, repr(plan))
    text = kernel_cache.get(key)
    if text is not None:
        return text.decode()
    try:
        from .compile import compile_ptx
    except ImportError as error:
        raise RuntimeError(
            f"a kernel must be compiled and the compiler is not available: {error}; "
            "install numba and llvmlite"
        ) from error
    function, kinds = build(plan)
    ptx = compile_ptx(function, kinds, target, plan)
    compiled.append(plan.label)
    kernel_cache.put(key, ptx.encode())
    return ptx


def argument_sizes(kinds):
    """Bytes of each argument of these kinds (compile.numba_type, without Numba)."""
    return [_size(kind) for kind in kinds]


def _size(kind) -> int:
    if not isinstance(kind, str) or kind == "integer":
        return 8
    if kind.startswith("image"):
        return MAP_BYTES + RULE_BYTES
    return 128 if kind.startswith("box") else int(kind.removeprefix("table"))


def kernel(device: Device, plan, build) -> Kernel:
    """The loaded kernel of a plan."""
    found = device.kernels.get(plan)
    if found is not None:
        return found
    with device.lock:
        if plan not in device.kernels:
            ptx = ptx_of(plan, build, device.target)
            function = device.load(ptx, NAME, plan.shared_bytes)
            _, kinds = build(plan)
            device.kernels[plan] = Kernel(
                device, function, argument_sizes(kinds), plan.threads, plan.shared_bytes
            )
        return device.kernels[plan]
