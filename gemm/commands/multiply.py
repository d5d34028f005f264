"""Multiplies two .npy files into a third.

The operands are memory-mapped and never unpickled. The result appears under its name only when
it is complete.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import gemm
from gemm import operands, slices
from gemm.microkernels.dtypes import DTYPES
from gemm.microkernels.vocabulary import storage
from gemm.threads import get_num_threads


class BadInput(Exception):
    """What is wrong with the files, in one line."""


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", help=".npy file, (..., M, K)")
    parser.add_argument("b", help=".npy file, (..., K, N)")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help=".npy file to write")
    parser.add_argument("--threads", type=int, help="threads at most (default: all cores)")
    parser.add_argument(
        "--dtype",
        help="element type of files that store it as raw bytes, as bfloat16 and float8 are",
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show how far it is (default: on a terminal)",
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 0, or 2 after one line on stderr; then no output file was written."""
    try:
        multiply(options)
    except BadInput as error:
        print(f"python -m gemm multiply: {error}", file=sys.stderr)
        return 2
    return 0


def multiply(options: argparse.Namespace) -> None:
    """Reads, checks, computes piece by piece and renames the result into place."""
    if options.threads is not None and options.threads < 1:
        raise BadInput(f"--threads must be at least 1, got {options.threads}")
    a, b = (_operand(name, options.dtype) for name in (options.a, options.b))
    shape, dtype = _result(options, a, b)
    output = Path(options.output)
    if not output.parent.is_dir():
        raise BadInput(f"{output}: there is no folder {output.parent}")
    if output.is_dir():
        raise BadInput(f"{output} is a folder")
    a, b = operands.convert(a, dtype), operands.convert(b, dtype)
    try:
        handle, temporary = tempfile.mkstemp(dir=output.parent, suffix=".npy.part")
    except OSError as error:
        raise BadInput(f"{output}: {error.strerror}") from None
    os.close(handle)
    try:
        show = sys.stderr.isatty() if options.progress is None else options.progress
        _write(temporary, a, b, shape, dtype, options.threads, _progress(show))
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, output)
    except OSError as error:
        raise BadInput(f"{output}: {error.strerror or error}") from None
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _operand(name: str, raw: str | None) -> np.ndarray:
    try:
        x = np.load(name, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise BadInput(f"{name}: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        with open(name, "rb") as file:
            known = file.read(6) == b"\x93NUMPY"
        reason = str(error).splitlines()[0] if known else "it does not start as one does"
        raise BadInput(f"{name} is not an .npy file of numbers: {reason}") from None
    if not isinstance(x, np.ndarray):
        raise BadInput(f"{name} is an archive of arrays, not an .npy file")
    if raw is not None and x.dtype.kind == "V":
        kind = storage(DTYPES[raw]) if raw in DTYPES else None
        if kind is None or kind.itemsize != x.dtype.itemsize:
            raise BadInput(f"{name} stores elements of {x.dtype.itemsize} bytes, not {raw}")
        x = x.view(kind)
    return np.asarray(x)


def _result(options, a: np.ndarray, b: np.ndarray) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and dtype of the product, or why there is none."""
    shapes = f"{options.a} {a.shape} and {options.b} {b.shape}"
    for name, x in ((options.a, a), (options.b, b)):
        if x.dtype.kind == "V" and not operands.is_extended(x.dtype):
            raise BadInput(f"{name} stores raw bytes ({x.dtype}): name their type with --dtype")
    try:
        dtype = operands.common_dtype(a.dtype, b.dtype)
    except TypeError:
        raise BadInput(f"no common type of {a.dtype} and {b.dtype}") from None
    if not operands.is_engine_dtype(dtype):
        raise BadInput(f"elements of type {dtype} are not supported ({shapes})")
    if a.ndim == 0 or b.ndim == 0:
        raise BadInput(f"a product needs matrices: {shapes}")
    inner = b.shape[0] if b.ndim == 1 else b.shape[-2]
    if a.shape[-1] != inner:
        raise BadInput(f"shapes do not match: {shapes}: {a.shape[-1]} columns, {inner} rows")
    try:
        batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise BadInput(f"batch shapes do not match: {shapes}") from None
    rows = () if a.ndim == 1 else a.shape[-2:-1]
    columns = () if b.ndim == 1 else b.shape[-1:]
    return (*batch, *rows, *columns), dtype


def _write(path: str, a, b, shape, dtype, threads, progress: Callable[[float], None]) -> None:
    if 0 in shape:
        with open(path, "wb") as file:
            np.save(file, np.empty(shape, dtype))
        return
    result = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
    if a.ndim == b.ndim == 1:
        result[()] = gemm.matmul(a, b)
        result.flush()
        return
    a = a[None, :] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 else b
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    out = np.asarray(result).view(dtype).reshape(*batch, a.shape[-2], b.shape[-1])
    a = np.broadcast_to(a, batch + a.shape[-2:])
    b = np.broadcast_to(b, batch + b.shape[-2:])
    done = 0
    for index in slices.pieces(out.shape, a.shape[-1], threads or get_num_threads()):
        part_a, part_b, part = slices.operands(index, a, b, out)
        gemm.matmul(part_a, part_b, out=part, threads=threads)
        done += part.size
        progress(done / out.size)
    result.flush()


def _progress(show: bool) -> Callable[[float], None]:
    started = time.monotonic()

    def draw(share: float) -> None:
        elapsed = time.monotonic() - started
        left = elapsed / share - elapsed
        end = "\n" if share == 1 else ""
        bar = "#" * round(40 * share)
        print(
            f"\r[{bar:40}] {share:4.0%}, {left:.0f} s left ", end=end, file=sys.stderr, flush=True
        )

    return draw if show else lambda share: None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
