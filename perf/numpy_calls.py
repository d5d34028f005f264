"""What a NumPy call costs beyond its arithmetic: einsum, tensordot and small products.

`python -m gemm.perf.numpy_calls` measures gemm's call and NumPy's alternately in one process, one
thread, and prints the median times, their ratio and the ratio that is aimed at (docs/numpy.md).
OPENBLAS_CORETYPE and OPENBLAS_L2_SIZE slow NumPy down: unset both.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

import gemm

Call = Callable[[], Any]


class Pair(NamedTuple):
    """Two calls that give the same; `limit` is the largest ours / theirs that is aimed at."""

    name: str
    ours: Call
    theirs: Call
    limit: float


def overheads() -> Iterator[Pair]:
    """Repeated einsum calls on 3 x 3 operands: parse and path are cached."""
    rng = np.random.default_rng(0)
    a, b, c = (rng.standard_normal((3, 3)) for _ in "abc")
    for subscripts, operands in (
        ("ij,jk->ik", (a, b)),
        ("ij,kj->ik", (a, b)),
        ("ij,jk->ki", (a, b)),
        ("ij,ij->", (a, b)),
        ("i,i->", (a[0], b[0])),
        ("ij,j->i", (a, b[0])),
        ("i,j->ij", (a[0], b[0])),
        ("ij,ij->ij", (a, b)),
        ("ii->", (a,)),
        ("ij->ji", (a,)),
        ("ij,jk,kl->il", (a, b, c)),
    ):
        yield Pair(
            f"einsum {subscripts} 3x3",
            lambda s=subscripts, x=operands: gemm.einsum(s, *x),  # type: ignore[misc]
            lambda s=subscripts, x=operands: np.einsum(s, *x),  # type: ignore[misc]
            1.5,
        )


def against_own_matmul() -> Iterator[Pair]:
    """CASES E10: a batched product spelled as einsum costs what matmul costs."""
    rng = np.random.default_rng(1)
    for dtype in (np.float32, np.float64):
        a, b = (rng.standard_normal((100, 100, 100)).astype(dtype) for _ in "ab")
        yield Pair(
            f"einsum qij,qjk->qik 100^3 {np.dtype(dtype)} / gemm.matmul",
            lambda a=a, b=b: gemm.einsum("qij,qjk->qik", a, b),  # type: ignore[misc]
            lambda a=a, b=b: gemm.matmul(a, b),  # type: ignore[misc]
            1.2,
        )


def tensordots() -> Iterator[Pair]:
    """tensordot on any axes against a transposed copy and our own matmul."""
    rng = np.random.default_rng(2)
    a, b = rng.standard_normal((48, 40, 44)), rng.standard_normal((40, 44, 52))
    for first, second in (([1, 2], [0, 1]), ([2, 1], [1, 0]), ([1], [0]), ([0], [2]), ([2], [1])):
        if any(a.shape[i] != b.shape[j] for i, j in zip(first, second, strict=True)):
            x, y = a, rng.standard_normal((a.shape[first[0]],) * 3)
        else:
            x, y = a, b
        yield Pair(
            f"tensordot axes {first}, {second} / transpose + gemm.matmul",
            lambda x=x, y=y, p=first, q=second: gemm.tensordot(x, y, (p, q)),  # type: ignore[misc]
            lambda x=x, y=y, p=first, q=second: _transposed(x, y, p, q),  # type: ignore[misc]
            1.05,
        )


def _transposed(a: np.ndarray, b: np.ndarray, first: list[int], second: list[int]) -> np.ndarray:
    rows = [i for i in range(a.ndim) if i not in first]
    columns = [j for j in range(b.ndim) if j not in second]
    k = int(np.prod([a.shape[i] for i in first]))
    result = gemm.matmul(a.transpose(rows + first).reshape(-1, k),
                         b.transpose(second + columns).reshape(k, -1))  # fmt: skip
    return result.reshape([a.shape[i] for i in rows] + [b.shape[j] for j in columns])


def small_products() -> Iterator[Pair]:
    """The fast door: matmul and dot of small matrices, with and without `out`."""
    rng = np.random.default_rng(3)
    for dtype in "?bhilBHILefdFD":
        for n in (8, 16):
            a, b = (rng.integers(0, 2, (n, n)).astype(dtype) for _ in "ab")
            out = np.empty((n, n), dtype)
            name = f"{n}x{n} {np.dtype(dtype)}"
            limit = 1 / 1.5
            yield Pair(f"matmul {name}", lambda a=a, b=b: gemm.matmul(a, b),  # type: ignore[misc]
                       lambda a=a, b=b: np.matmul(a, b), limit)  # type: ignore[misc]  # fmt: skip
            yield Pair(f"matmul {name} out", lambda a=a, b=b, o=out: gemm.matmul(a, b, o),  # type: ignore[misc]
                       lambda a=a, b=b, o=out: np.matmul(a, b, o), limit)  # type: ignore[misc]  # fmt: skip
            yield Pair(f"dot {name}", lambda a=a, b=b: gemm.dot(a, b),  # type: ignore[misc]
                       lambda a=a, b=b: np.dot(a, b), limit)  # type: ignore[misc]  # fmt: skip


def small_vectors() -> Iterator[Pair]:
    """The doors again: products of vectors, and of a matrix and a vector."""
    rng = np.random.default_rng(4)
    for dtype in "bldfDF":
        x, y = (rng.integers(0, 2, 16).astype(dtype) for _ in "xy")
        a = rng.integers(0, 2, (16, 16)).astype(dtype)
        for name in ("dot", "inner", "vdot", "vecdot", "matmul"):
            ours, theirs = getattr(gemm, name), getattr(np, name)
            yield Pair(f"{name} 16 {np.dtype(dtype)}", lambda f=ours, x=x, y=y: f(x, y),  # type: ignore[misc]
                       lambda f=theirs, x=x, y=y: f(x, y), 1.0)  # type: ignore[misc]  # fmt: skip
        yield Pair(f"matmul 16x16 @ 16 {np.dtype(dtype)}", lambda a=a, x=x: gemm.matmul(a, x),  # type: ignore[misc]
                   lambda a=a, x=x: np.matmul(a, x), 1.0)  # type: ignore[misc]  # fmt: skip


GROUPS: dict[str, Callable[[], Iterator[Pair]]] = {
    "overheads": overheads,
    "matmul": against_own_matmul,
    "tensordot": tensordots,
    "small": small_products,
    "vectors": small_vectors,
}


def measure(pair: Pair, rounds: int) -> tuple[float, float]:
    """Median seconds of a call of ours and of theirs, timed in turn."""
    np.testing.assert_allclose(pair.ours(), pair.theirs(), rtol=1e-4, atol=1e-4)
    count = _repeats(pair.theirs)
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for call, seconds in zip(pair[1:3], times, strict=True):
            start = time.perf_counter()
            for _ in range(count):
                call()
            seconds.append((time.perf_counter() - start) / count)
    return statistics.median(times[0]), statistics.median(times[1])


def _repeats(call: Call) -> int:
    """So many calls that a round takes some milliseconds."""
    start = time.perf_counter()
    call()
    return max(1, int(0.005 / max(time.perf_counter() - start, 1e-7)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m gemm.perf.numpy_calls", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="|".join(GROUPS), help="default: all")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    unknown = set(arguments.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no group {', '.join(sorted(unknown))}: choose from {', '.join(GROUPS)}")
    try:
        import threadpoolctl

        threadpoolctl.threadpool_limits(1)
    except ImportError:
        print("threadpoolctl is not installed: NumPy runs on as many threads as it likes")
    print(f"{'call':58} {'gemm us':>9} {'other us':>9} {'ratio':>6} {'aim':>6}")
    for group in arguments.groups or GROUPS:
        for pair in GROUPS[group]():
            ours, theirs = measure(pair, arguments.rounds)
            ratio = ours / theirs
            note = "" if ratio <= pair.limit else "  missed"
            print(f"{pair.name:58} {ours * 1e6:9.2f} {theirs * 1e6:9.2f} {ratio:6.2f} "
                  f"{pair.limit:6.2f}{note}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
