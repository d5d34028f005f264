"""What the public functions share: views by group, write-backs, the transposed run, names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemm.convolution import forward, geometry, layouts, operands, transposed
from gemm.convolution.filters import PackedFilters, cached
from gemm.convolution.write_back import WriteBack, of_epilogue
from gemm.epilogues import bind
from gemm.targets import environment
from gemm.threads import checked, get_num_threads

Function = Callable[..., np.ndarray]


KEPT = 16  # calls that one set of packed filters remembers
RECENT = 64  # calls with filters as they lie that are remembered
LARGEST = 1 << 31
recent: dict[Any, Call] = {}


def key(
    x, w, bias, stride, padding, dilation, groups, layout, x_zero_point, w_zero_point, epilogue,
    algorithm, out, threads,
) -> Any:  # fmt: skip
    """What a convolution depends on beside values, None for a call that is not plain.

    A repeated call costs a look-up: the rule, the kernel and the team are the same for arrays of
    the same shapes, strides and dtypes.
    """
    if (
        type(x) is not np.ndarray
        or not (x_zero_point is None or type(x_zero_point) is int)
        or w_zero_point is not None
    ):
        return None
    allowed = get_num_threads() if threads is None else checked(threads)
    made = [
        x.shape, x.strides, x.dtype, stride, padding, dilation, groups, layout, algorithm, allowed,
        environment("GEMM_ISA"), x_zero_point,
    ]  # fmt: skip
    if type(w) is np.ndarray:
        made += w.shape, w.strides, w.dtype
    elif type(w) is not PackedFilters:
        return None
    if out is not None:
        if type(out) is not np.ndarray:
            return None
        made += out.shape, out.strides, out.dtype
    if bias is not None:
        if type(bias) is not np.ndarray or not bias.dtype.isnative:
            return None
        made += "bias", bias.shape, bias.strides, bias.dtype
    if epilogue is not None:
        epilogue = bind(epilogue)
        made.append(epilogue.epilogue)
        for name, value in epilogue.operands.items():
            kind = type(value)
            if kind is np.ndarray:
                made += name, value.shape, value.strides, value.dtype
            elif kind is float or kind is int or isinstance(value, np.generic):
                made += name, kind
            else:
                return None
    found = tuple(made)
    try:
        hash(found)
    except TypeError:
        return None
    return found


@dataclass(frozen=True)
class Call:
    """A call that is made again: what repeats it, what arranges its filters (None: they are), and
    the shape and dtype of its result."""

    repeat: Any
    arrange: Any
    shape: tuple[int, ...]
    dtype: np.dtype


def repeated(
    key: Any, x: np.ndarray, w: Any, bias: np.ndarray | None, epilogue: Any, out: np.ndarray | None
) -> Any:
    """The result of a call that `keep` kept, None where it does not apply to these arrays."""
    call = (w.calls if type(w) is PackedFilters else recent).get(key)
    if call is None or not x.flags.aligned:
        return None
    operand = None
    if call.arrange is not None and not w.flags.aligned:
        return None
    given: dict[str, Any] = {} if bias is None else {"bias": bias}
    if epilogue is not None:
        given |= bind(epilogue).operands
    if out is None:
        out = operands.empty(call.shape, call.dtype)
    elif not (out.flags.writeable and out.flags.aligned) or any(
        np.may_share_memory(out, a) for a in (x, w, *given.values()) if type(a) is np.ndarray
    ):
        return None
    if call.arrange is not None:
        operand = call.arrange(w)
    return out if call.repeat(x, out, operand, given) else None


def keep(w: Any, key: Any, repeat: Any, result: np.ndarray, arrange: Any = None) -> None:
    """Remember a call; arrange: as of `Call`."""
    known, most = (w.calls, KEPT) if type(w) is PackedFilters else (recent, RECENT)
    if len(known) >= most:
        known.clear()
    known[key] = Call(repeat, arrange, result.shape, result.dtype)


def grouped(array: np.ndarray, groups: int, axis: int = 1) -> np.ndarray:
    """Split an axis into (groups, extent / groups), a view."""
    head, extent, tail = array.shape[:axis], array.shape[axis], array.shape[axis + 1 :]
    return array.reshape(*head, groups, extent // groups, *tail)


def write_back_of(
    name: str,
    epilogue: Any,
    shape: tuple[int, ...],
    order: tuple[int, ...],
    bias: np.ndarray | None,
    x_zero_point: Any,
    w_zero_point: Any,
    dtypes: tuple[np.dtype, np.dtype, np.dtype],
    groups: int,
) -> WriteBack:
    """Bias, zero points and epilogue, checked and spread over groups."""
    count = shape[1]
    if bias is not None:
        bias = operands.array(name, "bias", bias)
        operands.check_bias(name, bias, count)
        bias = bias.reshape(groups, -1)
    if epilogue is None:
        write_back = WriteBack(bias)
    else:
        write_back = of_epilogue(name, epilogue, bias, shape, order, groups)
    if x_zero_point is None and w_zero_point is None:
        return write_back
    if dtypes[2] != np.int32:
        raise TypeError(
            f"{name}: zero points need int8 or uint8 operands, got {dtypes[0]} and {dtypes[1]}"
        )
    points = []
    for what, value, dtype in (
        ("x_zero_point", x_zero_point, dtypes[0]),
        ("w_zero_point", w_zero_point, dtypes[1]),
    ):
        value = np.asarray(0 if value is None else value)
        limits = np.iinfo(dtype)
        if value.dtype.kind not in "iu":
            raise TypeError(f"{name}: {what} must be integers, got dtype {value.dtype}")
        if value.size and not (limits.min <= value.min() and value.max() <= limits.max):
            raise ValueError(f"{name}: {what} does not fit in {dtype}: {value!r}")
        points.append(value.astype(np.int32))
    if points[0].size != 1:
        raise ValueError(f"{name}: x_zero_point must be one number, got shape {points[0].shape}")
    if points[1].size not in (1, count):
        raise ValueError(
            f"{name}: w_zero_point must be one number or {count}, got shape {points[1].shape}"
        )
    w_zero = np.broadcast_to(points[1].reshape(-1), (count,)).reshape(groups, -1)
    return replace(
        write_back, x_zero=int(points[0].item()), w_zero=w_zero if w_zero.any() else None
    )


def operand_pair(
    name: str, what: str, x: np.ndarray, w: np.ndarray, layout: layouts.Layout, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, layouts.Layouts]:
    """The two arrays that a transposed convolution reads, and their views channels first."""
    x, w = operands.array(name, what, x), operands.array(name, "w", w)
    operands.check_rank(name, what, x, rank + 2)
    operands.check_rank(name, "w", w, rank + 2)
    order = layouts.parse(name, layout, rank)
    return x, layouts.view(x, order.input), w, layouts.view(w, order.filter), order


def collect(
    name: str,
    x: np.ndarray,
    source: np.ndarray,
    w: np.ndarray,
    taken: np.ndarray,
    shape: geometry.Geometry,
    bias: np.ndarray | None,
    groups: int,
    order: layouts.Layouts,
    epilogue: Any,
    algorithm: str,
    out: np.ndarray | None,
    threads: int | None,
    held: bool = False,
    key: Any = None,
) -> np.ndarray:
    """Run a transposed convolution from ``source`` to (N, I * groups, *shape.input); held: the
    arranged filters stay with the array ``w``; key: as for `keep`."""
    forward.check_algorithm(name, algorithm, shape.pointwise)
    dtypes = operands.result_dtypes(name, x.dtype, w.dtype)
    count = taken.shape[1] * groups
    whole = (len(source), count, *shape.input)
    write_back = write_back_of(
        name, epilogue, whole, order.output, bias, None, None, dtypes, groups
    )
    result, target = operands.output(
        name,
        out,
        layouts.stored(whole, order.output),
        write_back.dtype or dtypes[2],
        x,
        w,
        any_dtype=epilogue is not None,
    )

    def arranged() -> list[PackedFilters]:
        return transposed.arranged(taken, shape, groups, dtypes[1])

    kept = (transposed.key(shape, groups), dtypes[1])
    packed = cached(w, w, kept, arranged) if held else arranged()
    repeat = transposed.convolve(
        grouped(source, groups),
        packed,
        shape,
        grouped(layouts.view(target, order.output), groups),
        algorithm=algorithm,
        dtypes=dtypes[:2],
        write_back=write_back,
        threads=threads,
    )
    if result is not target:
        result[...] = target
    elif key is not None and repeat is not None and w.dtype == dtypes[1]:
        again = transposed.arranger(repeat, w, order.filter, shape, groups)
        keep(w, key, replace(repeat.without_operands(), order=order.output), result, again)
    return result


def named(function: Function, name: str, doc: str) -> Function:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function
