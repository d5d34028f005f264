"""Compiled kernels on disk: keyed by content, checked before use, never trusted blindly."""

import ast
import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import gemm
from gemm.backends import ceiling, kernel_cache
from gemm.backends.cpu import kernels
from gemm.backends.cpu.machine import machine
from gemm.microkernels.dtypes import TileShape, float64

MULTIPLY = """
import sys
import numpy as np, gemm
from gemm.backends.cpu import kernels
a = np.arange(6400.0).reshape(80, 80)
ok = np.array_equal(gemm.matmul(a, a), a @ a)
print(ok, len(kernels.compiled), "numba" in sys.modules, "llvmlite" in sys.modules)
"""

# The kernel that compiles fastest takes the same way through cache and loader as every other.
SMALLEST = """
import sys
import numpy as np, gemm
from gemm.backends import ceiling
from gemm.backends.cpu import kernels
from gemm.backends.cpu.machine import machine
from gemm.microkernels.dtypes import TileShape, float64
level = machine().levels[0]
lanes = level.unit.lanes(float64)
data = np.full((3, lanes), 2.0)
table = np.array([data.ctypes.data, 3], np.int64)
spec = ceiling.ChainsSpec(TileShape(1, 1, lanes, float64), False)
kernels.entry(level, spec)(table.ctypes.data, 0)
ok = (data[0] == 2**14 - 2).all()
print(ok, len(kernels.compiled), "numba" in sys.modules, "llvmlite" in sys.modules)
"""


def run(cache, code=SMALLEST, **more):
    """A fresh process: [right, kernels compiled, Numba imported, llvmlite imported]."""
    environment = {**os.environ, "GEMM_CACHE_DIR": str(cache), "GEMM_NUM_THREADS": "1", **more}
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache folder that holds the smallest kernel."""
    folder = tmp_path_factory.mktemp("warm") / "kernels"
    assert run(folder) == ["True", "1", "True", "True"]
    return folder


@pytest.fixture
def folder(tmp_path, monkeypatch):
    path = tmp_path / "kernels"
    monkeypatch.setenv("GEMM_CACHE_DIR", str(path))
    kernel_cache._warn_once.cache_clear()
    return path


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_j02_a_second_process_compiles_nothing_and_imports_no_compiler(warm):
    """numba_celltree PR 80; whatever order its sets iterate in."""
    before = files(warm)
    for seed in ("0", "1", "2"):
        assert run(warm, PYTHONHASHSEED=seed) == ["True", "0", "False", "False"]
    assert files(warm) == before


def test_a_second_product_compiles_nothing_and_imports_no_compiler():
    cache = os.environ["GEMM_CACHE_DIR"]
    assert run(cache, MULTIPLY)[0] == "True"
    assert run(cache, MULTIPLY) == ["True", "0", "False", "False"]


def test_the_folder_and_its_files_are_the_users_own(warm):
    assert stat.S_IMODE(warm.stat().st_mode) == 0o700
    for entry in warm.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0


def test_j01_keys_come_from_content_not_from_time(warm):
    """numba#10776: the same bytes with new times recompile nothing."""
    import gemm.microkernels

    sources = [
        *Path(gemm.backends.__path__[0]).rglob("*.py"),
        *Path(gemm.microkernels.__path__[0]).rglob("*.py"),
        *Path(gemm.__file__).parent.glob("*.py"),
    ]
    times = {path: path.stat() for path in sources}
    try:
        for path in sources:
            os.utime(path)
        assert run(warm)[1] == "0"
    finally:
        for path, was in times.items():
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def test_keys_change_with_sources_versions_level_and_plan(monkeypatch):
    from gemm.backends.machines.cpus import LEVELS

    keys = {kernels.key_of(level, text) for level in LEVELS for text in ("one", "two")}
    assert len(keys) == 2 * len(LEVELS)
    first = kernels.key_of(LEVELS[0], "one")
    shipped = kernels.prebuilt_key(LEVELS[0], "one")
    monkeypatch.setattr(kernels, "versions", lambda: "numba-9")
    assert kernels.key_of(LEVELS[0], "one") != first
    assert kernels.prebuilt_key(LEVELS[0], "one") == shipped
    monkeypatch.setattr(kernels, "sources_digest", lambda: "other sources")
    assert kernels.prebuilt_key(LEVELS[0], "one") != shipped


def test_every_source_that_makes_a_kernel_is_part_of_the_key():
    """Kernels are written in the vocabulary: a file that imports its words is kernel source."""
    package = Path(gemm.__file__).parent
    found = 0
    for path in package.rglob("*.py"):
        names = {
            alias.name
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and str(node.module).endswith(".vocabulary")
            for alias in node.names
        }
        # `storage` is a fact about dtypes. A team's kernels have a key of their own.
        if names - {"storage"} and path.parent.name != "team":
            found += 1
            name = path.relative_to(package).as_posix()
            assert name in kernels.KERNEL_SOURCES, f"{name} is kernel source and not in the key"
    assert found >= 3


def test_j04_eight_processes_starting_cold_together(tmp_path):
    """numba#9348"""
    cache = tmp_path / "kernels"
    environment = {**os.environ, "GEMM_CACHE_DIR": str(cache), "GEMM_NUM_THREADS": "1"}
    children = [
        subprocess.Popen([sys.executable, "-c", SMALLEST], env=environment, stdout=subprocess.PIPE)
        for _ in range(8)
    ]
    answers = [child.communicate(timeout=300)[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * 8
    assert all(answer[0] == b"True" for answer in answers)
    assert not list(cache.glob("*.tmp"))
    assert run(cache)[:2] == ["True", "0"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:20],
        lambda data: data[:-1],
        lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:],
        lambda data: b"something else entirely" * 100,
    ],
    ids=["empty", "header only", "truncated", "one bit", "foreign"],
)
def test_a_damaged_entry_is_dropped_and_rebuilt(folder, damage):
    assert kernel_cache.put("key", b"machine code" * 50)
    (entry,) = folder.iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert kernel_cache.get("key") is None
    assert not entry.exists()
    assert kernel_cache.put("key", b"again") and kernel_cache.get("key") == b"again"


def test_damaged_kernels_are_rebuilt_by_the_next_process(warm, tmp_path):
    copy = tmp_path / "kernels"
    copy.mkdir(mode=0o700)
    for name, data in files(warm).items():
        (copy / name).write_bytes(data[:-1])
        (copy / name).chmod(0o600)
    assert run(copy)[:2] == ["True", "1"]
    assert run(copy)[:2] == ["True", "0"]


def test_a_well_signed_entry_that_is_no_kernel_is_rebuilt(warm, tmp_path, monkeypatch):
    """The digest is right, the content is not an object of this machine."""
    copy = tmp_path / "kernels"
    monkeypatch.setenv("GEMM_CACHE_DIR", str(copy))
    for name in files(warm):
        kernel_cache.put(name.removesuffix(kernel_cache.SUFFIX), b"\x7fELF is not enough")
    assert run(copy)[:2] == ["True", "1"]
    assert run(copy)[:2] == ["True", "0"]


@pytest.mark.parametrize("text", ["door", "team worker 202"])
def test_so_are_the_door_and_the_team(text, tmp_path, monkeypatch):
    from gemm.backends.cpu.ahead import common

    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "kernels"))
    level = machine().levels[0]
    builds = dict(common(level))
    if text not in builds:
        pytest.skip("this machine has another system call number")
    key = kernels.key_of(level, text)
    kernel_cache.put(key, b"\x7fELF is not enough")
    assert kernels.load(level, text, builds[text], entry="raw")
    assert len(kernel_cache.get(key)) > 500


def test_j03_a_home_that_cannot_be_written_works_uncached(tmp_path):
    """numba#4908. The place is below a file, so that it is unwritable for root too."""
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "cache"
    assert run(place)[:2] == ["True", "1"]
    assert run("")[:2] == ["True", "1"]


def test_j03_a_read_only_home(tmp_path):
    if os.getuid() == 0:
        pytest.skip("root may write to read-only folders")
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    environment = {key: value for key, value in os.environ.items() if key != "GEMM_CACHE_DIR"}
    environment["HOME"] = str(home)
    done = subprocess.run([sys.executable, "-W", "error", "-c", SMALLEST], env=environment)
    assert done.returncode == 0


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and modes are POSIX")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o720])
def test_a_folder_that_others_can_write_is_bypassed_with_one_warning(folder, mode):
    assert kernel_cache.put("key", b"data")
    folder.chmod(mode)
    with pytest.warns(RuntimeWarning, match="writable by others"):
        assert kernel_cache.get("key") is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert kernel_cache.get("key") is None
        assert not kernel_cache.put("key", b"other")
    folder.chmod(0o700)
    assert kernel_cache.get("key") == b"data"


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and modes are POSIX")
def test_a_file_that_others_can_write_is_refused(folder):
    kernel_cache.put("key", b"data")
    (entry,) = folder.iterdir()
    entry.chmod(0o666)
    with pytest.warns(RuntimeWarning, match="writable by others"):
        assert kernel_cache.get("key") is None
    assert entry.exists()


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="owners and modes are POSIX")
def test_symbolic_links_are_refused(folder, tmp_path, monkeypatch):
    kernel_cache.put("key", b"data")
    (entry,) = folder.iterdir()
    elsewhere = tmp_path / "elsewhere"
    entry.rename(elsewhere)
    entry.symlink_to(elsewhere)
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        assert kernel_cache.get("key") is None
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.setenv("GEMM_CACHE_DIR", str(link))
    with pytest.warns(RuntimeWarning, match="symbolic link"):
        assert kernel_cache.get("key") is None


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root gives away")
def test_anothers_folder_is_refused(folder):
    kernel_cache.put("key", b"data")
    os.chown(folder, 12345, -1)
    with pytest.warns(RuntimeWarning, match="belongs to user 12345"):
        assert kernel_cache.get("key") is None


def test_size_is_bounded_and_the_oldest_go_first(folder, monkeypatch):
    monkeypatch.setenv("GEMM_CACHE_MIB", "1")
    for i in range(5):
        kernel_cache.put(f"key{i}", bytes(300_000))
        os.utime(folder / f"key{i}{kernel_cache.SUFFIX}", (i, i))
    assert [i for i in range(5) if kernel_cache.get(f"key{i}")] == [2, 3, 4]
    assert sum(len(data) for data in files(folder).values()) <= 1 << 20


def test_clear_empties_it_and_leaves_other_files(folder):
    kernel_cache.put("one", b"1")
    kernel_cache.put("two", b"2")
    (folder / "notes.txt").write_text("mine")
    assert kernel_cache.clear() == 2
    assert list(files(folder)) == ["notes.txt"]


def test_digest_tells_parts_apart():
    assert kernel_cache.digest("ab", "c") != kernel_cache.digest("a", "bc")
    assert kernel_cache.digest("ab") == kernel_cache.digest(b"ab")


def test_shipped_kernels_are_found_without_a_compiler(warm, tmp_path):
    """A process without Numba and with an empty cache of its own."""
    into = tmp_path / "prebuilt"
    level, text, data = _smallest(warm)
    assert kernel_cache.put(kernels.prebuilt_key(level, text), data, into)
    code = f"""
import sys, pathlib
sys.modules['numba'] = sys.modules['llvmlite'] = None
from gemm.backends import kernel_cache
kernel_cache.PREBUILT = pathlib.Path({str(into)!r})
"""
    code += SMALLEST
    assert run(tmp_path / "empty", code)[:2] == ["True", "0"]
    for entry in into.iterdir():
        entry.chmod(0o666)
    environment = {**os.environ, "GEMM_CACHE_DIR": str(tmp_path / "empty")}
    command = [sys.executable, "-c", code]
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1 and "writable by others" in refused.stderr
    assert "python -m gemm warm" in refused.stderr


def _smallest(cache):
    """(level, text, object) of the kernel in the folder `cache`."""
    level = machine().levels[0]
    shape = TileShape(1, 1, level.unit.lanes(float64), float64)
    text = repr(ceiling.ChainsSpec(shape, False))
    data = kernel_cache.get(kernels.key_of(level, text), cache)
    assert data is not None
    return level, text, data
