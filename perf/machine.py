"""The machine, versions and environment a figure belongs to; a clean environment for workers.

`facts()` is stored beside every result. `identity()` is the part that must agree for two results
to be comparable at all: CPU, core count, caches, operating system, Python and NumPy.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy

LIBRARIES = (
    "gemm", "numpy", "scipy", "numba", "llvmlite", "torch", "blis", "onnxruntime", "cupy",
    "ml_dtypes",
)  # fmt: skip
# What changes OpenBLAS's kernel or its blocking, not how many threads it runs.
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OPENBLAS_DEFAULT_NUM_THREADS", "OPENBLAS_MAIN_FREE")
_LIMITS = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS", "GEMM_NUM_THREADS",
)  # fmt: skip


def steering_variables(environment: dict[str, str]) -> dict[str, str]:
    """The OPENBLAS_* variables that would put the yardstick on another kernel."""
    return {
        key: value
        for key, value in sorted(environment.items())
        if key.startswith("OPENBLAS_") and key not in _THREAD_VARIABLES
    }


def clean_environment(threads: int, extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment without steering variables, every thread pool at `threads`."""
    environment = dict(os.environ)
    for key in steering_variables(environment):
        del environment[key]
    environment.update(dict.fromkeys(_LIMITS, str(threads)))
    environment.update(PYTHONHASHSEED="0", PYTHONDONTWRITEBYTECODE="1")
    environment.update(extra or {})
    return environment


def restarted(module: str, threads: int, extra: dict[str, str] | None = None) -> None:
    """Starts `python -m module` anew in a clean environment, unless this process is already so.

    NumPy reads its variables when it is imported, and importing gemm imports it: unsetting them
    later would change nothing.
    """
    clean = clean_environment(threads, extra)
    if os.environ.get("GEMM_PERF_CLEAN") == "1":
        return
    for name, value in steering_variables(dict(os.environ)).items():
        print(f"{name}={value} was set and is unset here", flush=True)
    clean["GEMM_PERF_CLEAN"] = "1"
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], clean)


def import_path() -> dict[str, str]:
    """PYTHONPATH on which a child process finds the very `gemm` that this process found."""
    import gemm

    here = str(Path(gemm.__file__).resolve().parents[1])
    given = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": os.pathsep.join([here, given] if given else [here])}


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def cpu_name() -> str:
    """The CPU's model name, or what the platform calls it."""
    match = re.search(r"^model name\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    return match.group(1) if match else platform.processor() or platform.machine()


def caches() -> dict[str, int]:
    """Bytes of each data or unified cache of the first core, e.g. {'L1': 32768}; may be empty."""
    found = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        size = re.fullmatch(r"(\d+)([KMG]?)", _read(f"{index}/size"))
        if size and _read(f"{index}/type") != "Instruction":
            factor = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}[size.group(2)]
            found[f"L{_read(f'{index}/level')}"] = int(size.group(1)) * factor
    return found


def last_level_cache() -> int:
    """Bytes of the last-level cache; 32 MiB where it cannot be read."""
    return max(caches().values(), default=32 * 2**20)


def isa() -> list[str]:
    """The vector features that matter to a GEMM."""
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _read("/proc/cpuinfo"), re.MULTILINE)
    wanted = (
        "sse2 avx avx2 fma f16c avx512f avx512bw avx512_vnni avx512_bf16 avx512_fp16 avx_vnni "
        "amx_tile amx_bf16 amx_int8 asimd asimdhp bf16 i8mm sve"
    ).split()
    have = set(flags.group(1).split()) if flags else set()
    return [name for name in wanted if name in have]


def usable_cpus() -> int:
    """CPUs this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def clock_mhz() -> float | None:
    """Present clock of the fastest core, where the system tells."""
    values = re.findall(r"^cpu MHz\s*:\s*([\d.]+)", _read("/proc/cpuinfo"), re.MULTILINE)
    return max(map(float, values)) if values else None


def load() -> float | None:
    """Load average of the last minute."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def gpu_names() -> list[str]:
    """GPUs as the NVIDIA driver's tool lists them; empty without one."""
    try:
        command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.strip().splitlines() if answer.returncode == 0 else []


def versions() -> dict[str, str]:
    """Installed versions of the measured package and of every peer."""
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def blas_kernels() -> list[dict[str, Any]]:
    """threadpoolctl's view of the BLAS and OpenMP libraries loaded in this process."""
    try:
        from threadpoolctl import threadpool_info
    except ImportError:
        return []
    keep = ("user_api", "internal_api", "prefix", "version", "num_threads", "architecture")
    return [{key: pool[key] for key in keep if key in pool} for pool in threadpool_info()]


def commit(folder: str | Path = ".") -> dict[str, Any]:
    """Commit, subject and dirty flag of the checkout at `folder`; empty outside one."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {
            "commit": git("rev-parse", "HEAD"),
            "subject": git("log", "-1", "--format=%s"),
            "dirty": bool(git("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.CalledProcessError):
        return {}


def identity() -> dict[str, Any]:
    """What must be equal for two results to be comparable."""
    return {
        "cpu": cpu_name(),
        "isa": isa(),
        "cpus": usable_cpus(),
        "caches": caches(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "numpy": numpy.__version__,
    }


def facts(folder: str | Path = ".") -> dict[str, Any]:
    """Everything a result is stored with."""
    governor = _read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "identity": identity(),
        "time": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "clock_mhz": clock_mhz(),
        "governor": governor or "not told by the system",
        "load": load(),
        "gpus": gpu_names(),
        "versions": versions(),
        "revision": commit(folder),
        "steering_variables_removed": steering_variables(dict(os.environ)),
        "executable": sys.executable,
    }


def summary(known: dict[str, Any]) -> str:
    """One line for a person: the machine a table was measured on."""
    who = known["identity"]
    cache = ", ".join(f"{k} {v // 1024} KiB" for k, v in who["caches"].items())
    gpus = "; ".join(known.get("gpus", ())) or "no GPU"
    clock = f"{known['clock_mhz']:.0f} MHz, " if known.get("clock_mhz") else ""
    return (
        f"{who['cpu']}, {who['cpus']} CPUs, {clock}{' '.join(who['isa'][-3:])}, {cache}; {gpus}; "
        f"{who['system']}, {who['python']}, NumPy {who['numpy']}"
    )


def warnings(known: dict[str, Any]) -> list[str]:
    """What a reader of the figures should know: removed variables, other load, a slow governor."""
    notes = [
        f"{key}={value} was set and is unset in the measuring processes"
        for key, value in known["steering_variables_removed"].items()
    ]
    if known["load"] is not None and known["load"] > 0.3 * known["identity"]["cpus"]:
        notes.append(f"other load: {known['load']:.2f} on {known['identity']['cpus']} CPUs")
    if known["governor"] == "powersave":
        notes.append("CPU frequency governor is powersave")
    return notes
