"""Compiled kernels on disk, keyed by content.

An entry's name is the digest of everything that decides its bytes: the sources of vocabulary,
lowering and kernels, library versions, the target and the plan's constants. File times decide
nothing. Because an entry is machine code, the folder must belong to the user and be writable by
nobody else (else it is bypassed with one warning), each entry carries a digest of its payload
that is checked before use, and a file that fails the check is removed. Writes go to a temporary
name and are renamed; the oldest entries are dropped when the folder outgrows `limit()`.

Functions take `where` for another folder than the user's own: kernels shipped with the package
lie in `PREBUILT`, which belongs to whoever installed it.

    GEMM_CACHE_DIR   the folder (default: ~/.cache/gemm); an empty value turns the cache off
    GEMM_CACHE_MIB   bound on its size (default 256)
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import tempfile
import warnings
from pathlib import Path

MAGIC = b"gemm kernel 1\n"
SUFFIX = ".kernel"
PREBUILT = Path(__file__).parent / "prebuilt"


def folder() -> Path | None:
    """Where entries live; None when the cache is turned off or there is no home."""
    named = os.environ.get("GEMM_CACHE_DIR")
    if named is not None:
        return Path(named) if named else None
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(root) / "gemm" if os.path.isabs(root) else None


def limit() -> int:
    """Bytes the folder may hold."""
    try:
        return int(os.environ.get("GEMM_CACHE_MIB", "256")) << 20
    except ValueError:
        return 256 << 20


@functools.cache
def _warn_once(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)


def _theirs(path: Path, shipped: bool) -> str:
    """Why a folder or file is not safely ours; empty when it is."""
    if not hasattr(os, "getuid"):
        return ""
    status = path.lstat()
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a symbolic link"
    if status.st_uid != os.getuid() and not shipped:
        return f"{path} belongs to user {status.st_uid}, not to {os.getuid()}"
    if status.st_mode & 0o022:
        return f"{path} is writable by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _usable(where: Path | None, create: bool) -> Path | None:
    path = where or folder()
    if path is None:
        return None
    try:
        if not path.exists():
            if not create:
                return None
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        reason = _theirs(path, where is not None)
    except OSError:
        return None
    if reason:
        _warn_once(f"kernel cache not used: {reason}")
        return None
    return path


def digest(*parts: object) -> str:
    """A key from the text of `parts`."""
    state = hashlib.sha256()
    for part in parts:
        text = part if isinstance(part, bytes) else str(part).encode()
        state.update(len(text).to_bytes(8, "little") + text)
    return state.hexdigest()[:40]


def get(key: str, where: Path | None = None) -> bytes | None:
    """The payload stored under `key`, or None. A damaged entry is removed."""
    path = _usable(where, create=False)
    if path is None:
        return None
    entry = path / (key + SUFFIX)
    try:
        reason = _theirs(entry, where is not None)
        if reason:
            _warn_once(f"kernel cache entry not used: {reason}")
            return None
        data = entry.read_bytes()
    except OSError:
        return None
    header = len(MAGIC) + 32
    payload = data[header:]
    if data[: len(MAGIC)] != MAGIC or hashlib.sha256(payload).digest() != data[len(MAGIC) : header]:
        with contextlib.suppress(OSError):
            entry.unlink(missing_ok=True)
        return None
    return payload


def put(key: str, payload: bytes, where: Path | None = None) -> bool:
    """Stores `payload` under `key`; False where nothing can be written."""
    path = _usable(where, create=True)
    if path is None:
        return False
    try:
        handle, temporary = tempfile.mkstemp(dir=path, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(MAGIC + hashlib.sha256(payload).digest() + payload)
            os.replace(temporary, path / (key + SUFFIX))
        except BaseException:
            os.unlink(temporary)
            raise
        if where is None:
            _trim()
    except OSError:
        return False
    return True


def entries() -> list[Path]:
    """The entry files, oldest first."""
    path = _usable(None, create=False)
    if path is None:
        return []
    found = []
    for entry in path.glob("*" + SUFFIX):
        try:
            found.append((entry.stat().st_mtime, entry))
        except OSError:
            continue
    return [entry for _, entry in sorted(found)]


def _trim() -> None:
    sizes = {}
    for entry in entries():
        try:
            sizes[entry] = entry.stat().st_size
        except OSError:
            continue
    total = sum(sizes.values())
    for entry, size in sizes.items():
        if total <= limit():
            return
        entry.unlink(missing_ok=True)
        total -= size


def clear() -> int:
    """Removes every entry; returns how many there were."""
    found = entries()
    for entry in found:
        entry.unlink(missing_ok=True)
    return len(found)
