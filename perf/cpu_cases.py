"""The rows of the table of CPU speeds: what is multiplied, what by, and how fast it should be.

A row's score is scale * (the peer's time / ours): against NumPy or PyTorch, against our own
float32 product of the same size (so a share of its rate), against our own product of contiguous or
normal operands, or against a copy of as many bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

import gemm
from gemm.backends import ceiling


@dataclass
class Row:
    """ours, peer: callables without arguments. work: operations of ours; least: the score to reach,
    None where none is set; also: a second (peer, scale, least), of which one is enough."""

    label: str
    dtype: str
    work: float
    ours: Callable[[], object]
    peer: Callable[[], object] | None
    name: str
    check: Callable[[], bool]
    least: float | None = None
    scale: float = 1.0
    also: tuple[Callable[[], object], str, float, float | None] | None = None


def torch_module():
    try:
        import torch
    except ImportError:
        return None
    return torch


def random(shape, dtype: str, rng):
    """Normal floats, integers of up to 100, fair coins."""
    if dtype == "bfloat16":
        import ml_dtypes

        return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(max(info.min, -100), min(info.max, 100), shape).astype(dtype)
    x = rng.standard_normal(shape)
    if kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return x.astype(dtype)


def right(out, a, b) -> bool:
    """Whether out is a @ b within K eps of |a| @ |b|, or exactly for integers and truth values."""
    if out.dtype.kind == "b":
        return bool(np.array_equal(a.astype(np.float32) @ b.astype(np.float32) > 0, out))
    if out.dtype.kind in "iu":
        exact = a.astype(np.float64) @ b.astype(np.float64)
        return bool(np.array_equal(exact.astype(np.int64).astype(out.dtype), out))
    wide = np.complex128 if out.dtype.kind == "c" else np.float64
    exact = a.astype(wide) @ b.astype(wide)
    bound = np.abs(a.astype(wide)) @ np.abs(b.astype(wide))
    eps = {"float16": 2**-11, "bfloat16": 2**-8}.get(out.dtype.name)
    eps = eps or float(np.finfo(out.dtype).eps)
    single = out.dtype.name not in ("float64", "complex128")
    slack = eps + a.shape[-1] * (2.0**-23 if single else 2.0**-52)
    tiny = float(np.finfo(np.float32 if single else np.float64).tiny)
    return bool((np.abs(out.astype(wide) - exact) <= slack * bound + a.shape[-1] * tiny).all())


def checked(a, b, c, ours) -> Callable[[], bool]:
    """A check of ours() into c, which is filled with other bits before."""

    def check():
        c.view(np.uint8).fill(0xFF)
        ours()
        return right(c, a, b)

    return check


def product(a, b, c) -> Callable[[], object]:
    if a.dtype is c.dtype:
        return lambda: gemm.matmul(a, b, out=c)
    return lambda: gemm.matmul(a, b, out=c, dtype=c.dtype)


def of(label, a, b, c, peer, name, least, **more) -> Row:
    """The row of c = a @ b."""
    ours = product(a, b, c)
    *_, m, k = a.shape
    work = 2.0 * c.size * k * (4 if a.dtype.kind == "c" else 1)
    return Row(label, a.dtype.name, work, ours, peer, name, checked(a, b, c, ours), least, **more)


def square(dtype: str, n: int, least: float | None, rng, out: str | None = None) -> Row:
    """n x n by n x n of one dtype, against NumPy's BLAS or PyTorch."""
    a, b = random((n, n), dtype, rng), random((n, n), dtype, rng)
    c = np.empty((n, n), out or a.dtype)
    label = f"{dtype} n={n}"
    torch = torch_module()
    if dtype in ("bfloat16", "int8"):
        if torch is None:
            return of(label, a, b, c, None, "", least)
        kind = getattr(torch, dtype)
        ta = torch.from_numpy(a.astype(np.float32) if dtype == "bfloat16" else a).to(kind)
        tb = torch.from_numpy(b.astype(np.float32) if dtype == "bfloat16" else b).to(kind)
        multiply = torch._int_mm if dtype == "int8" else torch.mm
        return of(label, a, b, c, lambda: multiply(ta, tb), "torch", least)
    return of(label, a, b, c, lambda: np.matmul(a, b, out=c), "numpy", least)


def of_single_rate(dtype: str, n: int, least: float, rng) -> Row:
    """n x n by n x n as a share of our own float32 rate."""
    a, b = random((n, n), dtype, rng), random((n, n), dtype, rng)
    x, y = random((n, n), "float32", rng), random((n, n), "float32", rng)
    c, z = np.empty((n, n), a.dtype), np.empty((n, n), "float32")
    return of(f"{dtype} n={n}", a, b, c, lambda: gemm.matmul(x, y, out=z), "own float32", least)


def shaped(dtype: str, m: int, n: int, k: int, least: float | None, rng, order="C") -> Row:
    """m x k by k x n with B in C or Fortran order, against NumPy."""
    a = random((m, k), dtype, rng)
    b = np.asarray(random((k, n), dtype, rng), order=order)
    c = np.empty((m, n), dtype)
    return of(f"{dtype} {m}x{k}x{n} {order}", a, b, c, lambda: np.matmul(a, b, out=c), "numpy",
              least)  # fmt: skip


def matrix_vector(dtype: str, order: Literal["C", "F"], mebibytes: int, least: float, rng) -> Row:
    """A row times a matrix in memory, its bytes over those that a copy moves a second, or over
    those of a loop that reads the same matrix in the order of memory and does nothing else."""
    k = 4096
    n = (mebibytes << 20) // (k * np.dtype(dtype).itemsize)
    a = random((1, k), dtype, rng)
    b = np.asarray(rng.random((k, n), dtype), order=order)
    c = np.empty((1, n), dtype)
    source = np.ones(mebibytes << 17, np.float64)
    target = np.empty_like(source)
    read = ceiling.reader(b if order == "C" else b.T)
    moved = b.nbytes / (2 * source.nbytes)
    return of(f"{dtype} 1x{k}x{n} {order}", a, b, c, lambda: np.copyto(target, source), "copy",
              least, scale=moved, also=(read, "read", 1.0, 0.95))  # fmt: skip


def layout(dtype: str, n: int, kind: str, least: float, rng) -> Row:
    """Stepped or transposed operands against the same product of contiguous ones."""
    a, b = random((n, n), dtype, rng), random((n, n), dtype, rng)
    c, d = np.empty((n, n), dtype), np.empty((n, n), dtype)
    if kind == "stepped":
        x = random((2 * n, 2 * n), dtype, rng)[::2, ::2]
        y = random((2 * n, 2 * n), dtype, rng)[::2, ::2]
    else:
        x, y = (v.T if t == "T" else v for v, t in zip((a, b), kind, strict=True))
    return of(f"{dtype} n={n} {kind}", x, y, c, product(a, b, d), "own contiguous", least)


def subnormal(dtype: str, n: int, least: float, rng) -> Row:
    """Operands whose products are subnormal, with subnormals='flush', against normal ones; beside
    it the same without."""
    a, b = random((n, n), dtype, rng), random((n, n), dtype, rng)
    c, d = np.empty((n, n), dtype), np.empty((n, n), dtype)
    small = (a * float(np.finfo(dtype).tiny) / 64).astype(dtype)
    row = of(f"{dtype} n={n} subnormal", small, b, c, product(a, b, d), "own normal", least)
    exact = row.ours
    row.ours = lambda: gemm.matmul(small, b, out=c, subnormals="flush")
    row.also = exact, "own exact", 1.0, None
    return row


def split(dtype: str, m: int, n: int, k: int, parts: int, rng) -> Row:
    """What the one chain of the contract costs: split_k= breaks it, and only shows where few
    elements stand over a long K."""
    a, b = random((m, k), dtype, rng), random((k, n), dtype, rng)
    c, d = np.empty((m, n), dtype), np.empty((m, n), dtype)
    row = of(f"{dtype} {m}x{k}x{n} split {parts}", a, b, c, product(a, b, d), "own chain", None)
    row.ours = lambda: gemm.matmul(a, b, out=c, split_k=parts)
    row.check = checked(a, b, c, row.ours)
    return row


def own_transpose(dtype: str, n: int, least: float, rng) -> Row:
    a = random((n, n), dtype, rng)
    c = np.empty((n, n), dtype)
    return of(f"{dtype} n={n} A AT", a, a.T, c, lambda: np.matmul(a, a.T, out=c), "numpy", least)


def batched(dtype: str, count: int, n: int, rng) -> Row:
    """`count` n x n products in one call: 0.6 of NumPy's time, or 0.8 of the copy bandwidth."""
    a, b = random((count, n, n), dtype, rng), random((count, n, n), dtype, rng)
    c = np.empty_like(a)
    source = np.ones(1 << 24, np.float64)
    target = np.empty_like(source)
    moved = (a.nbytes + b.nbytes + c.nbytes) / (2 * source.nbytes)
    return of(f"{dtype} {count} x {n}x{n}", a, b, c, lambda: np.matmul(a, b, out=c), "numpy",
              1 / 0.6, also=(lambda: np.copyto(target, source), "copy", moved, 0.8))  # fmt: skip


def rows(threads: int, quick: bool, rng) -> Iterator[Callable[[], Row]]:
    """Every row of the table, made when its turn comes."""
    sizes = (512, 1024) if quick else (512, 1024, 2048, 4096)
    alone = threads == 1
    large = {"float32": 1.03 if alone else 1.08, "float64": 1.20 if alone else 1.25}
    for dtype in ("float32", "float64"):
        if alone:
            for n, least in ((4, 2.5), (8, 2.5), (16, 2.5), (32, 1.6), (64, 1.2)):
                yield lambda d=dtype, n=n, t=least: square(d, n, t, rng)
        for n in (128, 256):
            yield lambda d=dtype, n=n: square(d, n, 1.05, rng)
        for n in sizes:
            yield lambda d=dtype, n=n: square(d, n, large[d], rng)
    for n in sizes[:3]:
        yield lambda n=n: square("bfloat16", n, 1.08, rng)
        yield lambda n=n: square("int8", n, 1.03, rng, "int32")
        yield lambda n=n: square("complex64", n, 1.05 if n > 256 else None, rng)
        yield lambda n=n: square("complex128", n, 1.2, rng)
    for dtype, least in (("float16", 0.9), ("int16", 1.7), ("int32", 0.75), ("int64", 0.38)):
        yield lambda d=dtype, t=least: of_single_rate(d, 1024, t, rng)
    yield lambda: square("bool", 512, 1.0, rng)
    for dtype in ("float32", "float64"):
        yield lambda d=dtype: matrix_vector(d, "C", 256, 0.9, rng)
        yield lambda d=dtype: matrix_vector(d, "F", 256, 0.9, rng)
        for m, n, k, order in (
            (4, 4096, 4096, "C"), (4, 4096, 4096, "F"), (16, 2048, 2048, "C"),
            (16, 2048, 2048, "F"), (2048, 8, 2048, "C"), (4096, 4096, 16, "C"),
            (64, 64, 65536, "C"),
        ):  # fmt: skip
            yield lambda d=dtype, m=m, n=n, k=k, o=order: shaped(d, m, n, k, 1.0, rng, o)
        yield lambda d=dtype: own_transpose(d, 1024, 1.0, rng)
        yield lambda d=dtype: split(d, 64, 64, 65536, 8, rng)
        yield lambda d=dtype: split(d, 8, 8, 1 << 18, 8, rng)
        if alone:
            for kind in ("TN", "NT", "TT", "stepped"):
                yield lambda d=dtype, kind=kind: layout(d, 1024, kind, 1 / 1.1, rng)
            yield lambda d=dtype: subnormal(d, 512, 1 / 1.5, rng)
    if alone:
        for n, count in ((3, 4000), (9, 500)):
            yield lambda n=n, count=count: batched("float64", count, n, rng)
