"""Results on disk: JSON, written whole or not at all; an unwritable folder is no disaster."""

from __future__ import annotations

import datetime
import json
import os
import tempfile
from pathlib import Path
from typing import Any

FORMAT = 1


class Unreadable(ValueError):
    """A result file that is not one of ours, damaged, or of another format; says which."""


def write(path: str | Path, result: dict[str, Any]) -> None:
    """Write atomically; OSError as the system gives it."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump({"format": FORMAT, **result}, stream, indent=1)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def keep(folder: str | Path, kind: str, result: dict[str, Any]) -> tuple[Path | None, str]:
    """Store under a dated name; (path, '') or (None, why it was not kept)."""
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%d-%H%M%S")
    path = Path(folder) / f"{stamp}-{kind}.json"
    try:
        write(path, {"kind": kind, **result})
    except OSError as error:
        return None, f"results are not kept: {error}"
    return path, ""


def read(path: str | Path, kind: str) -> dict[str, Any]:
    """Read a result of this kind; raises `Unreadable` with one clear sentence."""
    try:
        result = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise Unreadable(f"{path} is damaged: {error}") from None
    if not isinstance(result, dict) or "format" not in result:
        raise Unreadable(f"{path} is not a result of gemm.perf")
    if result["format"] != FORMAT:
        raise Unreadable(f"{path} has format {result['format']}, this version reads {FORMAT}")
    if result.get("kind") != kind:
        raise Unreadable(f"{path} holds a {result.get('kind')!r} result, not {kind!r}")
    return result


def age(stamp: str) -> str:
    """How long ago an ISO time was, in the largest unit that fits."""
    then = datetime.datetime.fromisoformat(stamp)
    seconds = (datetime.datetime.now(datetime.timezone.utc) - then).total_seconds()
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count > 1 else ''} old"
    return "new"
