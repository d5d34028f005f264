"""Machine code for a kernel: from the cache where it is, compiled where it is not.

Nothing here imports Numba or llvmlite until a kernel is missing from the cache.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import sys
import threading
from pathlib import Path
from typing import Any

from .. import kernel_cache
from ..machines.cpus import CPULevel
from . import loader, machine

ENTRY = "kernel"
LOWERING = "gemm.backends.cpu.blocks"
_lock = threading.RLock()

if hasattr(os, "register_at_fork"):
    # A fork waits for the compilation in progress: the child could never finish it.
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )

compiled: list[str] = []  # labels of the kernels compiled by this process, in order


def target_of(level: CPULevel):
    """The compiler's description of a CPU level."""
    from ..compiler import Target

    return Target(
        level.name,
        machine.triple(level.architecture),
        level.cpu,
        level.features,
        LOWERING,
        level.fused,
    )


@functools.cache
def sources_digest() -> str:
    """Digest of every source file that decides what a kernel's bytes are."""
    import gemm
    import gemm.backends
    import gemm.microkernels

    backends = Path(next(iter(gemm.backends.__path__)))
    files = list(Path(next(iter(gemm.microkernels.__path__))).glob("*.py"))
    for pattern in ("*.py", "cpu/*.py", "machines/*.py"):
        files += backends.glob(pattern)
    files += [Path(gemm.__file__).parent / name for name in KERNEL_SOURCES]
    parts: list[object] = []
    for file in sorted(files):
        parts += [file.name, file.read_bytes()]
    return kernel_cache.digest(*parts)


KERNEL_SOURCES = (
    "batch.py", "block_packing.py", "blocked.py", "chains.py", "components.py", "grouping.py",
    "halves.py",
    "kernels.py", "mirror.py", "narrow.py", "packing.py", "skinny.py", "small.py", "tiny.py",
    "convolution/depthwise_loops.py", "convolution/loops.py", "convolution/packing.py",
    "convolution/filter_packing.py", "convolution/specs.py", "convolution/turning.py",
    "epilogues/partials.py", "epilogues/prepare.py", "epilogues/program.py",
    "epilogues/transfers.py", "epilogues/write_back.py", "epilogues/writer.py",
)  # fmt: skip


@functools.cache
def versions() -> str:
    """Versions of the compiler's libraries, read from their folders' names, without importing."""
    found = []
    for name in ("numba", "llvmlite"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            found.append(f"{name} missing")
            continue
        site = Path(spec.origin).parent.parent
        found += sorted(p.name for p in site.glob(f"{name}-*.dist-info"))
    return " ".join(found)


def key_of(level: CPULevel, text: str) -> str:
    return kernel_cache.digest(sources_digest(), versions(), repr(level), text)


def prebuilt_key(level: CPULevel, text: str) -> str:
    """Key of a shipped kernel: whoever has it needs no compiler, so no version is part of it."""
    return kernel_cache.digest(sources_digest(), repr(level), text)


def stored(level: CPULevel, text: str) -> bytes | None:
    """The object of kernel `text` from the user's cache or, failing that, from the package."""
    data = kernel_cache.get(key_of(level, text))
    if data is None and kernel_cache.PREBUILT.is_dir():
        data = kernel_cache.get(prebuilt_key(level, text), kernel_cache.PREBUILT)
    return data


def object_code(level: CPULevel, text: str, build, entry: str = "table") -> bytes:
    """The object of kernel `text` for `level`; `build` returns (function, kinds) on a miss.

    entry: 'table' (an int64 argument table) or 'raw' (the arguments themselves).
    """
    data = stored(level, text)
    if data is None:
        data = compile_kernel(level, build, entry)
        kernel_cache.put(key_of(level, text), data)
    return data


def load(level: CPULevel, text: str, build, entry: str = "table") -> int:
    """The address of kernel `text`, from wherever it can be had; parameters as of `object_code`."""
    try:
        return loader.load(object_code(level, text, build, entry), ENTRY)
    except loader.LoadError:
        # A well-digested entry of another architecture or format: made anew.
        data = compile_kernel(level, build, entry)
        kernel_cache.put(key_of(level, text), data)
        return loader.load(data, ENTRY)


def compile_kernel(level: CPULevel, build, entry: str = "table") -> bytes:
    with _lock:  # over the imports too, whose locks a forked child would find taken for ever
        return _compile(level, build, entry)


def _compile(level: CPULevel, build, entry: str) -> bytes:
    try:
        from numba.core.types import intp

        from .. import compiler, values
    except ImportError as error:
        raise RuntimeError(
            f"a kernel must be compiled and the compiler is not available: {error}; "
            "install numba and llvmlite, or make kernels ahead with `python -m gemm warm`"
        ) from error
    function, kinds = build()
    types = [intp if isinstance(k, str) else values.Pointer(k) for k in kinds]
    entry = "team" if kinds[-1] == "worker" else entry
    data = compiler.compile_object(function, types, target_of(level), ENTRY, entry)
    compiled.append(getattr(function, "label", function.__name__))
    return data


_entries: dict[tuple, Any] = {}


def entry(level: CPULevel, spec):
    """A callable (address of an int64 argument table, worker) -> status, GIL released."""
    found = _entries.get((level.name, spec))
    if found is not None:
        return found
    with _lock:
        if (level.name, spec) not in _entries:
            address = load(level, repr(spec), spec.build)
            function = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64)(address)
            function.address = address  # type: ignore[attr-defined]
            _entries[level.name, spec] = function
    return _entries[level.name, spec]


def loaded() -> list[tuple[str, str]]:
    """(level, kernel text) of every kernel loaded by this process: proof of what ran."""
    return [(name, repr(spec)) for name, spec in _entries]


def verbose() -> bool:
    return os.environ.get("GEMM_VERBOSE", "0") not in ("", "0")


def note(text: str) -> None:
    if verbose():
        print(f"gemm: {text}", file=sys.stderr)
