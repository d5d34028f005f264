"""Shows the folder of compiled kernels, or empties it."""

from __future__ import annotations

import argparse

from gemm.backends import kernel_cache


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clear", action="store_true", help="remove every compiled kernel")


def run(options: argparse.Namespace) -> int:
    """Prints folder, number and size of the entries; with --clear removes them first."""
    folder = kernel_cache.folder()
    if folder is None:
        print("the kernel cache is turned off")
        return 0
    if options.clear:
        print(f"{folder}: {kernel_cache.clear()} kernels removed")
        return 0
    entries = kernel_cache.entries()
    size = sum(entry.stat().st_size for entry in entries)
    print(
        f"{folder}: {len(entries)} kernels, {size / 2**20:.1f} MiB"
        f" of at most {kernel_cache.limit() / 2**20:.0f}"
    )
    return 0
