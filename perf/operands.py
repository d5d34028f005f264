"""Random operands of a case as NumPy arrays, in the case's layout, and how many sets to rotate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cases import Case

Array = NDArray


def numpy_dtype(name: str) -> np.dtype:
    """The NumPy dtype of a table name; bfloat16 and float8 need ml_dtypes (ImportError)."""
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def random(rng: np.random.Generator, shape: tuple[int, ...], name: str) -> Array:
    """Values that are never all equal: (-1, 1) for floats, the dtype's whole range for integers."""
    dtype = numpy_dtype(name)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    values = rng.uniform(-1, 1, shape)
    if dtype.kind == "c":
        return (values + 1j * rng.uniform(-1, 1, shape)).astype(dtype)
    return values.astype(dtype)


def _laid_out(rng: np.random.Generator, shape: tuple[int, ...], name: str, layout: str) -> Array:
    *lead, rows, columns = shape
    if layout == "T":
        return np.swapaxes(random(rng, (*lead, columns, rows), name), -1, -2)
    if layout == "S":
        return random(rng, (*lead, rows, 2 * columns), name)[..., ::2]
    if layout == "R":
        return random(rng, shape, name)[..., ::-1, :]
    return random(rng, shape, name)


@dataclass(frozen=True)
class Operands:
    """One set: `a` (.., M, K) or image NCHW, `b` (.., K, N) or weights OIHW, `out` or None."""

    a: Array
    b: Array
    out: Array | None

    @property
    def nbytes(self) -> int:
        """Bytes of the operands and of the result array if there is one."""
        return self.a.nbytes + self.b.nbytes + (0 if self.out is None else self.out.nbytes)


def make(case: Case, seed: int = 0) -> Operands:
    """One operand set of `case`; the same seed gives the same values."""
    rng = np.random.default_rng(seed)
    if case.operation == "conv2d":
        n, c, h, w, o, kh, kw = case.shape
        a = random(rng, (n, c, h, w), case.a)
        b = random(rng, (o, c // case.groups, kh, kw), case.b)
        return Operands(a, b, None)
    m, n, k = case.shape
    lead = (case.batch,) if case.batch > 1 else ()
    a = _laid_out(rng, (*lead, m, k), case.a, case.layout[0])
    b = _laid_out(rng, (*lead, k, n), case.b, case.layout[1])
    out = np.zeros((*lead, m, n), numpy_dtype(case.c)) if case.out == "yes" else None
    return Operands(a, b, out)


def sets_needed(case: Case, cache_bytes: int) -> int:
    """How many sets to rotate so that a `cache=memory` case cannot live in the last-level cache."""
    if case.cache != "memory" or case.device != "cpu":
        return 1
    return (
        max(1, -(-2 * cache_bytes // max(1, case.bytes)) + 1) if case.bytes < 4 * cache_bytes else 2
    )
