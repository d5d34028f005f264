"""What the arrays of a convolution may be: dtypes, channels, groups, `out`; one wording for every
refusal.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np


def array(name: str, what: str, value: Any) -> np.ndarray:
    """``value`` as a numeric array of native byte order, aligned, with strides of whole elements.

    Returned as it is when it is all that already, else as a copy. Raises TypeError for an array of
    a device.
    """
    if hasattr(value, "__cuda_array_interface__"):
        raise TypeError(
            f"{name}: {what} lies on a device and another operand on the host: move one of them"
        )
    value = np.asarray(value)
    if value.dtype.kind in "OSUMm" or value.dtype.names is not None:
        raise TypeError(f"{name}: {what} must be a numeric array, got dtype {value.dtype}")
    if not value.dtype.isnative:
        return value.astype(value.dtype.newbyteorder("="))
    if not value.flags.aligned or any(s % value.itemsize for s in value.strides):
        return value.copy()
    return value


def check_rank(name: str, what: str, value: np.ndarray, axes: int) -> None:
    """Refuse an array that does not have ``axes`` axes."""
    if len(value.shape) != axes:
        raise ValueError(f"{name}: {what} must have {axes} axes, got shape {value.shape}")


def check_groups(name: str, groups: int, count: int, what: str = "filters") -> None:
    """Refuse a number of groups that does not divide the filters or channels."""
    try:
        groups = operator.index(groups)
    except TypeError:
        raise TypeError(f"{name}: groups must be an integer, got {groups!r}") from None
    if groups < 1:
        raise ValueError(f"{name}: groups must be at least 1, got {groups}")
    if count % groups:
        raise ValueError(f"{name}: {count} {what} are not divisible into {groups} groups")


def check_channels(name: str, what: str, channels: int, per_group: int, groups: int) -> None:
    """Refuse an input whose channels are not those of the filters."""
    if channels != per_group * groups:
        raise ValueError(
            f"{name}: {what} has {channels} channels, but filters of {per_group} channels in "
            f"{groups} groups need {per_group * groups}"
        )


def check_bias(name: str, bias: np.ndarray, filters: int) -> None:
    """Refuse a bias that is not one number a filter."""
    if bias.shape != (filters,):
        raise ValueError(f"{name}: bias must have shape ({filters},), got {bias.shape}")


def is_byte(dtype: np.dtype) -> bool:
    """True for int8 and uint8, which may be mixed and give int32."""
    return dtype.kind in "iu" and dtype.itemsize == 1


def result_dtypes(name: str, x: np.dtype, w: np.dtype) -> tuple[np.dtype, np.dtype, np.dtype]:
    """The dtypes that x and w are multiplied in, and that of the result."""
    if is_byte(x) and is_byte(w):
        return x, w, np.dtype(np.int32)
    try:
        common = np.result_type(x, w)
    except TypeError:
        raise TypeError(f"{name}: dtypes {x} and {w} have no common dtype") from None
    return common, common, common


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which partial results of ``dtype`` are kept."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def empty(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """A new array; a large one begins on a cache line, so that whole vectors are stored at once."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    if size < 1 << 14:
        return np.empty(shape, dtype)
    raw = np.empty(size + 64, np.uint8)
    return np.ndarray(shape, dtype, raw, -raw.__array_interface__["data"][0] % 64)


def output(
    name: str,
    out: np.ndarray | None,
    shape: Sequence[int],
    dtype: np.dtype,
    *operands: np.ndarray,
    any_dtype: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """The array to return and the array to compute in: the same one unless ``out`` overlaps an
    operand.

    ``out`` must have ``shape`` and ``dtype`` or a dtype that ``dtype`` casts to safely
    (``any_dtype`` when an epilogue decides what is stored), be writeable and of native byte order.
    Raises TypeError or ValueError.
    """
    if out is None:
        out = empty(shape, dtype)
        return out, out
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{name}: out must be an array, got {type(out).__name__}")
    if out.shape != tuple(shape):
        raise ValueError(f"{name}: out must have shape {tuple(shape)}, got {out.shape}")
    if not any_dtype and not np.can_cast(dtype, out.dtype, "safe"):
        raise TypeError(
            f"{name}: a result of dtype {dtype} does not fit in out of dtype {out.dtype}"
        )
    if not out.flags.writeable:
        raise ValueError(f"{name}: out is read-only")
    plain = out.dtype.isnative and out.flags.aligned
    if plain and not any(np.may_share_memory(out, o) for o in operands):
        return out, out
    return out, np.empty(shape, out.dtype.newbyteorder("="))
