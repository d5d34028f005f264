"""The tile vocabulary: every operation a kernel may use, defined by its plain-Python body.

A kernel is a Python function that calls these words. Called in plain Python it works on the
classes `Pointer` (memory, byte offset, element type) and NumPy arrays (lanes, tiles): that is
the reference target and the meaning of every compiled one. A compiled target lowers each word;
nothing else in a kernel needs lowering, since integers, `range` and `if` are the host
language's own.

Values
    Pointer   p   a byte address and the element type found there
    Lanes     v   `lanes` values of a compute type, held in one vector register
    Tile      t   rows x vectors x lanes accumulators, held in registers; immutable

Edges: a load of `n` of `lanes` values repeats value n - 1 in the rest, so that lanes outside
the matrix compute what a real column computes and raise no floating-point flag of their own.
A store of `n` lanes writes n values.
"""

from __future__ import annotations

import numpy as np

from .dtypes import DType, TileShape
from .fused import flushing_multiply_add, fused_multiply_add


class Pointer:
    """A checked address: byte `offset` into `memory` (1-D uint8 array), elements of `dtype`.

    Any access outside `memory` raises IndexError: that is how the reference target proves that
    a kernel reads and writes nothing but its operands.
    """

    __slots__ = ("dtype", "memory", "offset")

    def __init__(self, memory: np.ndarray, offset: int, dtype: DType):
        self.memory, self.offset, self.dtype = memory, offset, dtype

    def view(self, count: int, np_dtype: np.dtype) -> np.ndarray:
        size = count * np_dtype.itemsize
        if not 0 <= self.offset <= self.offset + size <= self.memory.size:
            raise IndexError(
                f"bytes {self.offset}..{self.offset + size} of a block of {self.memory.size}"
            )
        return self.memory[self.offset : self.offset + size].view(np_dtype)


def storage(dtype: DType) -> np.dtype:
    """The NumPy dtype of `dtype` in memory."""
    if dtype.group > 1:
        return np.dtype(np.int32) if dtype.size == 4 else np.dtype(f"V{dtype.size}")
    if dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, dtype.name))
    return np.dtype(dtype.name)


def computed(dtype: DType) -> np.dtype:
    """The NumPy dtype in which values of `dtype` are computed."""
    return np.dtype(dtype.compute)


# -- pointers ------------------------------------------------------------------------------------


def shift(p, nbytes):
    """p moved by a signed number of bytes."""
    return Pointer(p.memory, p.offset + int(nbytes), p.dtype)


def recast(p, dtype):
    """The same address, read as elements of another type."""
    return Pointer(p.memory, p.offset, dtype)


def load(p):
    """The element at p, widened to its compute type."""
    return p.view(1, storage(p.dtype)).astype(computed(p.dtype))[0]


def store(p, x):
    """Writes x, narrowed to p's storage type, at p."""
    p.view(1, storage(p.dtype))[0] = narrow(np.asarray([x]), p.dtype)[0]


def copy(dst, src):
    """Moves one element as it lies in memory, without widening."""
    bits = np.dtype(f"V{src.dtype.size}")
    dst.view(1, bits)[:] = src.view(1, bits)


def prefetch(p):
    """A hint that p will be read soon. Cost: one load slot, no stall."""


def prefetch_far(p):
    """The same for what is read later: it comes as far as the second level. Cost: a load slot."""


# -- lanes ---------------------------------------------------------------------------------------


def narrow(values: np.ndarray, dtype: DType) -> np.ndarray:
    """values rounded (floats), truncated modulo 2^bits (integers) or tested (bool) for `dtype`."""
    with np.errstate(all="ignore"):
        return (values != 0) if dtype.kind == "b" else values.astype(storage(dtype))


def load_lanes(p, lanes, n):
    """`lanes` elements from p on, widened; those from n on repeat element n - 1.

    1 <= n <= lanes. Cost: one load when n == lanes.
    """
    n = min(int(n), lanes)
    values = p.view(n, storage(p.dtype)).astype(computed(p.dtype))
    return np.concatenate([values, np.repeat(values[-1:], lanes - n)])


def store_lanes(p, v, n):
    """Writes the first min(n, lanes) lanes of v, narrowed to p's type. n >= 1."""
    n = min(int(n), len(v))
    p.view(n, storage(p.dtype))[:] = narrow(v[:n], p.dtype)


def scatter_lanes(p, step, v, n):
    """Writes lane j of v at p + j * step bytes for j < min(n, lanes)."""
    for j in range(min(int(n), len(v))):
        store(shift(p, j * step), v[j])


def gather_lanes(p, step, lanes, n):
    """Lane j is the element at p + min(j, n - 1) * step bytes, widened."""
    return np.asarray([load(shift(p, min(j, int(n) - 1) * step)) for j in range(lanes)])


def load_alternate(p, lanes, n):
    """Lane j is element 2 * min(j, n - 1) from p on, widened; nothing beyond that is read.

    n >= 1. Cost: two loads and a shuffle.
    """
    n = min(int(n), lanes)
    values = p.view(2 * n - 1, storage(p.dtype))[::2].astype(computed(p.dtype))
    return np.concatenate([values, np.repeat(values[-1:], lanes - n)])


def broadcast(x, lanes):
    """x in every lane. Cost: free as the operand of a fused multiply-add on most machines."""
    return np.repeat(np.asarray([x]), lanes)


# -- tiles ---------------------------------------------------------------------------------------


def tile_zeros(shape):
    """A tile of +0."""
    return np.zeros((shape.rows, shape.columns), computed(shape.dtype))


def tile_load(shape, p, row_step, m, n):
    """Rows of a matrix whose columns are adjacent: t[i, j] = p[min(i, m-1), min(j, n-1)]."""
    rows = [shift(p, min(i, int(m) - 1) * row_step) for i in range(shape.rows)]
    return np.stack([load_lanes(row, shape.columns, n) for row in rows])


def tile_store(p, row_step, t, m, n):
    """Writes t[:m, :n] to rows at p + i * row_step bytes, columns adjacent, narrowed."""
    for i in range(min(int(m), len(t))):
        store_lanes(shift(p, i * row_step), t[i], n)


def tile_spill(t, dtype):
    """A pointer to a private copy of t (rows of adjacent values of `dtype`, its compute type)."""
    return Pointer(t.reshape(-1).view(np.uint8).copy(), 0, dtype)


def tile_transpose(t):
    """The transposed block; t has lanes rows and one vector. Cost: log2(lanes) shuffles a row."""
    return np.ascontiguousarray(t.T)


def outer_accumulate(t, a, row_step, b, n):
    """t[i, j] = fma(a[i], b[min(j, n - 1)], t[i, j]), one step of k.

    a: `rows` values `row_step` bytes apart; b: n adjacent values; both widened to t's type.
    Complex: each part is one chain, re <- fma(ar, br, re), re <- fma(ai, -bi, re) and
    im <- fma(ar, bi, im), im <- fma(ai, br, im). Real a with complex t and b: the first of each.
    Units of several k (gemm/grouping.py): one chain in ascending k; integers wrap.
    Units of 64 bytes (gemm/block_packing.py): floats in the order of `_of_blocks`.
    Cost: rows * vectors fused multiply-adds (twice that for complex), `vectors` loads, `rows`
    broadcast loads.
    """
    rows, columns = t.shape
    if b.dtype.size == 64:
        return _of_blocks(t, a, row_step, b)
    if b.dtype.group > 1:
        return _grouped(t, a, row_step, b, n)
    av = np.stack([load(shift(a, i * row_step)) for i in range(rows)])[:, None]
    bv = load_lanes(b, columns, n)[None]
    if t.dtype.kind != "c":
        return fused_multiply_add(av, bv, t)
    out = np.empty_like(t)
    if av.dtype.kind != "c":
        out.real = fused_multiply_add(av, bv.real, t.real)
        out.imag = fused_multiply_add(av, bv.imag, t.imag)
        return out
    re = fused_multiply_add(av.real, bv.real, t.real)
    out.real = fused_multiply_add(av.imag, -bv.imag, re)
    im = fused_multiply_add(av.real, bv.imag, t.imag)
    out.imag = fused_multiply_add(av.imag, bv.real, im)
    return out


def rows_accumulate(t, a, row_step, x, n):
    """t[i, j] = fma(a[i, min(j, n - 1)], x[j], t[i, j]): rows that share factors but not values.

    t: one vector a row; a: rows of n adjacent values, `row_step` bytes apart, widened; x: lanes.
    Real types. Cost: `rows` fused multiply-adds and loads.
    """
    rows, lanes = t.shape
    av = np.stack([load_lanes(shift(a, i * row_step), lanes, n) for i in range(rows)])
    return fused_multiply_add(av, np.asarray(x)[None], t)


def tile_multiply_add(t, x, y):
    """t[i, v] = fma(t[i, v], x, y) for every vector v of every row; x, y: lanes of t's type.

    Cost: rows * vectors fused multiply-adds and nothing else.
    """
    repeat = t.shape[1] // len(x)
    return fused_multiply_add(t, np.tile(x, repeat)[None], np.tile(y, repeat)[None])


def tile_add_shifted(t, u, bits):
    """t + (u << bits) of integer tiles, which wrap; bits: a constant. Cost: two instructions a
    vector."""
    return t + (u << bits)


def _grouped(t, a, row_step, b, n):
    """outer_accumulate on units: each k of the group in ascending order."""
    rows, columns = t.shape
    av = np.stack([load(shift(a, i * row_step)) for i in range(rows)]).astype(np.int32)
    bv = load_lanes(b, columns, n).astype(np.int32)
    if b.dtype.name == "bfloat16x2":
        for half in (np.uint32(0xFFFF0000), np.uint32(0xFFFF)):
            up = np.uint32(0 if half > 0xFFFF else 16)
            x, y = (((u.view(np.uint32) & half) << up).view(np.float32) for u in (av, bv))
            t = fused_multiply_add(x[:, None], y[None], t)
        return t
    parts = {2: (np.int16, np.int16), 4: (np.uint8, np.int8)}[b.dtype.group]
    x = av.view(parts[0]).reshape(rows, 1, -1).astype(np.int32)
    y = bv.view(parts[1]).reshape(1, columns, -1).astype(np.int32)
    with np.errstate(all="ignore"):
        return (t + (x * y).sum(-1, dtype=np.int32)).astype(np.int32)


def _of_blocks(t, a, row_step, b):
    """outer_accumulate on units of 64 bytes: row i of a is one unit, b 16 rows of a 32-bit piece
    of each column's unit.

    bfloat16: two chains from +0, one over the even k of the unit and one over the odd k, are
    added, and the sum is added to t; every step rounds to nearest and flushes subnormals.
    """
    rows, columns = t.shape
    kind = {"bfloat16x32": np.uint16, "int8x64": np.int8, "uint8x64": np.uint8}
    x = np.stack([shift(a, i * row_step).view(64, np.dtype(np.uint8)) for i in range(rows)])
    y = b.view(64 * columns, np.dtype(np.uint8)).reshape(16, columns, 4).swapaxes(0, 1)
    x = x.view(kind[a.dtype.name])[:, None]
    y = np.ascontiguousarray(y).reshape(columns, 64).view(kind[b.dtype.name])[None]
    if b.dtype.name != "bfloat16x32":
        with np.errstate(all="ignore"):
            products = x.astype(np.int32) * y.astype(np.int32)
            return (t + products.sum(-1, dtype=np.int32)).astype(np.int32)
    x, y = ((u.astype(np.uint32) << np.uint32(16)).view(np.float32) for u in (x, y))
    even, odd, one = np.zeros_like(t), np.zeros_like(t), np.ones_like(t)
    for k in range(0, 32, 2):
        even = flushing_multiply_add(x[..., k], y[..., k], even)
        odd = flushing_multiply_add(x[..., k + 1], y[..., k + 1], odd)
    return flushing_multiply_add(flushing_multiply_add(even, one, odd), one, t)


# -- integers ------------------------------------------------------------------------------------


def lesser(i, j):
    """What a kernel's `min(i, j)` of two integers becomes."""
    return min(i, j)


def greater(i, j):
    """What a kernel's `max(i, j)` of two integers becomes."""
    return max(i, j)


WORDS = (
    shift,
    recast,
    load,
    store,
    copy,
    prefetch,
    prefetch_far,
    load_lanes,
    store_lanes,
    scatter_lanes,
    gather_lanes,
    load_alternate,
    broadcast,
    tile_zeros,
    tile_load,
    tile_store,
    tile_spill,
    tile_transpose,
    outer_accumulate,
    rows_accumulate,
    tile_multiply_add,
    tile_add_shifted,
    lesser,
    greater,
)

__all__ = ["DType", "TileShape", "Pointer", *(w.__name__ for w in WORDS)]
