"""References that share nothing with the engine: Python integers, and float64 of small integers."""

import numpy as np

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
FLOATS = ("float16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
NATIVE = ("bool", *INTEGERS, *FLOATS, *COMPLEX)


def wrapped(values, dtype):
    """Python integers (an object array) as elements of an integer dtype, modulo 2^width."""
    dtype = np.dtype(dtype)
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    flat = [int(x) % (1 << 8 * dtype.itemsize) for x in np.asarray(values, object).ravel()]
    return np.array(flat, unsigned).view(dtype).reshape(np.shape(values))


def product(a, b, dtype):
    """a @ b of any matmul shapes, element for element in Python numbers, as `dtype`.

    Right for integers of any size, bool, and floats or complex numbers holding small integers.
    """
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.asarray(a.astype(int) @ b.astype(int) > 0)
    if dtype.kind in "iu":
        return wrapped(a.astype(object) @ b.astype(object), dtype)
    exact = complex if dtype.kind == "c" else float
    return np.asarray(a.astype(exact) @ b.astype(exact)).astype(dtype)


def small(rng, shape, dtype, limit=4):
    """Random integers whose products and short sums are exact in every dtype but the 8-bit ones."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    low = 0 if dtype.kind == "u" else -limit
    values = rng.integers(low, limit + 1, shape)
    if dtype.kind == "c":
        return (values + 1j * rng.integers(low, limit + 1, shape)).astype(dtype)
    return values.astype(dtype)


def poisoned(shape, dtype, order="C"):
    """An array to write into that would show what was not written."""
    out = np.empty(shape, dtype, order=order)
    fill = {"f": np.nan, "c": complex(np.nan, np.nan), "b": True}.get(out.dtype.kind, 77)
    out[...] = fill
    return out
