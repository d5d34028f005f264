"""The running CPU: which levels it supports, its caches and cores."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from ..machines.cpus import CACHE_LINE, FALLBACK_CACHES, LEVELS, CPULevel

_CPU_FOLDER = Path("/sys/devices/system/cpu/cpu0/cache")


@dataclass(frozen=True)
class Cache:
    """One cache level: bytes in all, ways, and how many logical CPUs share it."""

    size: int
    ways: int
    shared_by: int = 1

    def __str__(self) -> str:
        size = self.size >> 10
        text = f"{size >> 10} MiB" if size >= 2048 and size % 1024 == 0 else f"{size} KiB"
        shared = f", shared by {self.shared_by}" if self.shared_by > 1 else ""
        return f"{text} {self.ways}-way{shared}"


@dataclass(frozen=True)
class Machine:
    """What the plans are made from. `cores`: those this process may use."""

    name: str
    architecture: str
    levels: tuple[CPULevel, ...]
    caches: tuple[Cache, Cache, Cache]
    cores: int
    line: int = CACHE_LINE
    caches_known: bool = True


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _cpu_list(text: str) -> int:
    """How many CPUs "0-3,8" names."""
    count = 0
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    return max(1, count)


def _caches() -> tuple[tuple[Cache, Cache, Cache], bool]:
    found = {}
    for entry in sorted(_CPU_FOLDER.glob("index*")):
        if _read(entry / "type") == "Instruction":
            continue
        size = _read(entry / "size")
        if not size or not _read(entry / "level").isdigit():
            continue
        scale = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(size[-1], 1)
        nbytes = int(size.rstrip("KMG")) * scale
        ways = _read(entry / "ways_of_associativity")
        level = int(_read(entry / "level"))
        shared = _cpu_list(_read(entry / "shared_cpu_list"))
        found[level] = Cache(nbytes, int(ways) if ways.isdigit() and int(ways) else 8, shared)
    caches = [found.get(i + 1, Cache(*FALLBACK_CACHES[i])) for i in range(3)]
    if 2 in found and 3 not in found:
        # No third level: the panel of B lives where the second level ends.
        caches[2] = Cache(max(found[2].size, FALLBACK_CACHES[2][0]), FALLBACK_CACHES[2][1])
    return (caches[0], caches[1], caches[2]), bool(found)


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def _facts() -> tuple[str, frozenset[str]]:
    """(model name, feature flags as Linux spells them)."""
    name, vendor = platform.processor() or platform.machine(), ""
    flags: frozenset[str] = frozenset()
    for line in _read(Path("/proc/cpuinfo")).splitlines():
        key, _, value = line.partition(":")
        key = key.strip().lower()
        if key == "vendor_id":
            vendor = value.strip()
        elif key == "model name":
            name = value.strip()
        elif key in ("flags", "features"):
            flags = frozenset(value.split())
            break
    if not flags:
        import llvmlite.binding as llvm

        host = llvm.get_host_cpu_features()
        flags = frozenset(k.replace("-", "_") for k, on in host.items() if on)
        flags |= {"avx512_vnni"} if "avx512vnni" in flags else set()
        flags |= {"avx512_bf16"} if "avx512bf16" in flags else set()
        flags |= {"asimd"} if "neon" in flags else set()
    if vendor == "AuthenticAMD" and "avx512_bf16" in flags:
        # Elsewhere the vector form of the bfloat16 pair instruction is microcode, slower than
        # widening to float32 (docs/facts.md).
        flags |= {"fast_bf16_pairs"}
    if "amx_tile" in flags and tiles_permitted():
        flags |= {"amx_permitted"}
    return name, flags


def tiles_permitted() -> bool:
    """Asks Linux for the tile registers, once for the process, its threads and its children.

    The kernel refuses where a thread's signal stack is too small for the larger state, a sandbox
    where it does not know the call; then nothing uses them. From then on signal stacks smaller
    than AT_MINSIGSTKSZ are refused in this process.
    """
    if platform.system() != "Linux" or _architecture() != "x86_64":
        return False
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


def usable_cores() -> int:
    """Cores this process may use: its affinity, bounded by the cgroup's quota."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    quota = _read(Path("/sys/fs/cgroup/cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit():
        cores = min(cores, max(1, round(int(quota[0]) / int(quota[1]))))
    else:
        amount = _read(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
        period = _read(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us"))
        if amount.isdigit() and period.isdigit() and int(period):
            cores = min(cores, max(1, round(int(amount) / int(period))))
    return max(1, cores)


@functools.cache
def machine() -> Machine:
    """The running machine, read once."""
    architecture = _architecture()
    name, flags = _facts()
    levels = tuple(
        level for level in LEVELS if level.architecture == architecture and level.flags <= flags
    )
    caches, known = _caches()
    return Machine(name, architecture, levels, caches, usable_cores(), CACHE_LINE, known)


def triple(architecture: str) -> str:
    """An ELF triple of the architecture: what the loader reads on every operating system."""
    return f"{architecture}-unknown-linux-gnu"
