"""Compiles kernels ahead of their first use, into the cache or into a folder to be shipped.

With --into the entries can be put beside the installed backends (the folder `prebuilt` there):
a process then needs no compiler for them. Their keys do not hold the compiler's version.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from gemm import door, engine, planner
from gemm.backends import kernel_cache
from gemm.backends.cpu import ahead, kernels
from gemm.backends.machines import cpus
from gemm.microkernels.dtypes import DTYPES

DEFAULT = ("float32", "float64")


def add_options(parser: argparse.ArgumentParser) -> None:
    names = [level.name for level in cpus.LEVELS]
    parser.add_argument(
        "--level",
        action="append",
        metavar="NAME",
        help=f"an instruction-set level of {', '.join(names)}; may be repeated "
        "(default: every level of this machine)",
    )
    parser.add_argument(
        "--dtype",
        action="append",
        metavar="NAME",
        help=f"an element type; may be repeated (default: {', '.join(DEFAULT)})",
    )
    parser.add_argument("--into", metavar="FOLDER", help="write the entries there, to be shipped")


def run(options: argparse.Namespace) -> int:
    """Compiles what is missing; 2 for an unknown name or a folder that cannot be written."""
    known = {level.name: level for level in cpus.LEVELS}
    levels = options.level or list(engine.levels())
    names = options.dtype or list(DEFAULT)
    for given, choices in ((levels, known), (names, DTYPES)):
        for name in given:
            if name not in choices:
                print(f"{name!r} is not one of {', '.join(choices)}", file=sys.stderr)
                return 2
    if options.into is None and kernel_cache.folder() is None:
        print("the kernel cache is turned off: name a folder with --into", file=sys.stderr)
        return 2
    into = None if options.into is None else Path(options.into)
    for level in map(known.__getitem__, levels):
        for label, text, build, entry in _kernels(level, names):
            started = time.perf_counter()
            made = _make(level, text, build, entry, into)
            if made is None:
                print(f"{into or kernel_cache.folder()} cannot be written", file=sys.stderr)
                return 2
            took = f"{time.perf_counter() - started:.1f} s" if made else "there already"
            print(f"{level.name:12} {label}: {took}", flush=True)
    return 0


def _kernels(level, names):
    """(label, text, build, entry style) of what a process needs for products of these dtypes."""
    for text, build in ahead.common(level):
        yield text, text, build, "raw"
    for name in names:
        dtype = DTYPES[name]
        for spec in dict.fromkeys(
            [*door.specs(level.name, dtype), *planner.specs(level.name, dtype)]
        ):
            yield spec.label, repr(spec), spec.build, "table"


def _make(level, text: str, build, entry: str, into: Path | None) -> bool | None:
    """True when compiled, False when there already, None when it cannot be stored."""
    key = kernels.prebuilt_key(level, text) if into else kernels.key_of(level, text)
    if kernel_cache.get(key, into) is not None:
        return False
    data = kernels.compile_kernel(level, build, entry)
    return True if kernel_cache.put(key, data, into) else None
