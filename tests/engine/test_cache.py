"""Compiled kernels on disk: keyed by content, checked before use, never trusted blindly."""

import os
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from gemm.backends import kernel_cache

MULTIPLY = """
import sys
import numpy as np, gemm
from gemm.backends.cpu import kernels
a = np.arange(6400.0).reshape(80, 80)
ok = np.array_equal(gemm.matmul(a, a), a @ a)
print(ok, len(kernels.compiled), "numba" in sys.modules, "llvmlite" in sys.modules)
"""


def multiply(cache, check=True, **more):
    """A fresh process multiplies: [right, kernels compiled, Numba imported, llvmlite imported]."""
    environment = {**os.environ, "GEMM_CACHE_DIR": str(cache), "GEMM_NUM_THREADS": "1", **more}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", MULTIPLY],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert not check or done.returncode == 0, done.stderr
    return done.stdout.split() if check else done


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache folder that holds what MULTIPLY needs."""
    folder = tmp_path_factory.mktemp("warm") / "kernels"
    assert multiply(folder)[0] == "True"
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
        assert multiply(warm, PYTHONHASHSEED=seed) == ["True", "0", "False", "False"]
    assert files(warm) == before


def test_the_folder_and_its_files_are_the_users_own(warm):
    assert stat.S_IMODE(warm.stat().st_mode) == 0o700
    for entry in warm.iterdir():
        assert stat.S_IMODE(entry.stat().st_mode) & 0o077 == 0


def test_j01_keys_come_from_content_not_from_time(warm):
    """numba#10776: the same bytes with new times recompile nothing."""
    import gemm.backends
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
        assert multiply(warm)[1] == "0"
    finally:
        for path, was in times.items():
            os.utime(path, ns=(was.st_atime_ns, was.st_mtime_ns))


def test_keys_change_with_sources_versions_level_and_plan(monkeypatch):
    from gemm.backends.cpu import kernels
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
    """Modules that kernels are defined in, found from the kernels themselves."""
    import gemm
    from gemm.backends.cpu import kernels

    hashed = set(kernels.KERNEL_SOURCES)
    for path in Path(gemm.__file__).parent.glob("*.py"):
        if "def make_" in path.read_text() and "vocabulary" in path.read_text():
            if path.name in ("team.py", "door.py"):
                continue  # another target's kernels; no kernel source
            assert path.name in hashed, f"{path.name} makes kernels and is not part of their key"


def test_j04_eight_processes_starting_cold_together(tmp_path):
    """numba#9348"""
    cache = tmp_path / "kernels"
    environment = {**os.environ, "GEMM_CACHE_DIR": str(cache), "GEMM_NUM_THREADS": "1"}
    code = MULTIPLY.replace("(80, 80)", "(80, 80)")
    children = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE)
        for _ in range(8)
    ]
    answers = [child.communicate(timeout=300)[0].split() for child in children]
    assert [child.returncode for child in children] == [0] * 8
    assert all(answer[0] == b"True" for answer in answers)
    assert not list(cache.glob("*.tmp"))
    assert multiply(cache)[:2] == ["True", "0"]


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
        (copy / name).write_bytes(data[:-1] if len(data) > 9000 else data)
        (copy / name).chmod(0o600)
    right, compiled, *_ = multiply(copy)
    assert right == "True" and int(compiled) > 0
    assert multiply(copy)[:2] == ["True", "0"]


def test_a_well_signed_entry_that_is_no_kernel_is_rebuilt(warm, tmp_path, monkeypatch):
    """The digest is right, the content is another machine's object, or text."""
    copy = tmp_path / "kernels"
    monkeypatch.setenv("GEMM_CACHE_DIR", str(copy))
    for name in files(warm):
        kernel_cache.put(name.removesuffix(kernel_cache.SUFFIX), b"\x7fELF is not enough")
    right, compiled, *_ = multiply(copy)
    assert right == "True" and int(compiled) > 0


def test_j03_a_home_that_cannot_be_written_works_uncached(tmp_path):
    """numba#4908. The place is below a file, so that it is unwritable for root too."""
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "cache"
    assert multiply(place)[0] == "True"
    assert multiply("")[0] == "True"


def test_j03_a_read_only_home(tmp_path):
    if os.getuid() == 0:
        pytest.skip("root may write to read-only folders")
    home = tmp_path / "home"
    home.mkdir(mode=0o500)
    environment = {key: value for key, value in os.environ.items() if key != "GEMM_CACHE_DIR"}
    environment["HOME"] = str(home)
    done = subprocess.run([sys.executable, "-W", "error", "-c", MULTIPLY], env=environment)
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


def test_shipped_kernels_are_found_without_a_compiler(tmp_path, monkeypatch):
    """`warm --into` makes them; a process without Numba and with an empty cache uses them."""
    from gemm.__main__ import main

    into = tmp_path / "prebuilt"
    level = next(iter(__import__("gemm").engine.levels()))
    assert main(["warm", "--level", level, "--dtype", "float64", "--into", str(into)]) == 0
    code = (
        f"""
import sys, pathlib
sys.modules['numba'] = sys.modules['llvmlite'] = None
from gemm.backends import kernel_cache
kernel_cache.PREBUILT = pathlib.Path({str(into)!r})
"""
        + MULTIPLY
    )
    environment = {**os.environ, "GEMM_CACHE_DIR": str(tmp_path / "empty"), "GEMM_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.stdout.split()[:2] == ["True", "0"], done.stderr
    for entry in into.iterdir():
        entry.chmod(0o666)
    refused = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert refused.returncode == 1 and "writable by others" in refused.stderr
    assert "python -m gemm warm" in refused.stderr
