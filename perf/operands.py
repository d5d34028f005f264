"""Random operands of a case as NumPy arrays, in the case's layout, and how many sets to rotate.

Where an operand begins in its page can move a kernel's time by tens of per cent (128 x 128 float64:
62 or 82 us). So a gate draws these places anew in each round, the same for both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cases import Case

Array = NDArray
_PAGE, _LINE = 4096, 64


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


def _stored(shape: tuple[int, ...], layout: str) -> tuple[int, ...]:
    """Shape of the array in memory whose view the operand is."""
    *lead, rows, columns = shape
    return {"T": (*lead, columns, rows), "S": (*lead, rows, 2 * columns)}.get(layout, shape)


def _view(stored: Array, layout: str) -> Array:
    if layout == "T":
        return np.swapaxes(stored, -1, -2)
    if layout == "S":
        return stored[..., ::2]
    return stored[..., ::-1, :] if layout == "R" else stored


def _placed(array: Array, places: np.random.Generator) -> Array:
    """A copy of a contiguous array that begins at a cache line of its page drawn from `places`."""
    memory = np.empty(array.nbytes + 2 * _PAGE, np.uint8)
    start = -memory.ctypes.data % _PAGE + _LINE * int(places.integers(_PAGE // _LINE))
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


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


def make(case: Case, count: int = 1, seed: int = 0, place: int | None = None) -> list[Operands]:
    """`count` operand sets of `case` with the same values, as `seed` draws them, in other memory.

    place: seed of the places in the page where the arrays begin (None: wherever NumPy puts them).
    """
    rng = np.random.default_rng(seed)
    out: Array | None = None
    if case.operation == "conv2d":
        n, c, h, w, o, kh, kw = case.shape
        layout = "NN"
        a = random(rng, (n, c, h, w), case.a)
        b = random(rng, (o, c // case.groups, kh, kw), case.b)
    else:
        m, n, k = case.shape
        lead = (case.batch,) if case.batch > 1 else ()
        layout = case.layout
        a = random(rng, _stored((*lead, m, k), layout[0]), case.a)
        b = random(rng, _stored((*lead, k, n), layout[1]), case.b)
        out = np.zeros((*lead, m, n), numpy_dtype(case.c)) if case.out == "yes" else None
    places = np.random.default_rng(place)

    def one(array: Array) -> Array:
        return array.copy() if place is None else _placed(array, places)

    return [
        Operands(
            _view(one(a), layout[0]), _view(one(b), layout[1]), None if out is None else one(out)
        )
        for _ in range(count)
    ]


def sets_needed(case: Case, cache_bytes: int) -> int:
    """How many sets to rotate so that a `cache=memory` case cannot live in the last-level cache."""
    if case.cache != "memory" or case.device != "cpu":
        return 1
    return (
        max(1, -(-2 * cache_bytes // max(1, case.bytes)) + 1) if case.bytes < 4 * cache_bytes else 2
    )
