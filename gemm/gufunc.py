"""The call semantics that matmul, vecdot, matvec and vecmat share: NumPy's generalised ufuncs.

A call goes through these stages, each of which may refuse it before anything is computed:
keywords, operands that belong to NumPy, dtypes, axes, shapes, `out`. What is left for the caller
is plain: two arrays of one dtype whose core axes are last, and an `out` to fill.

Source of the rules: the NumPy reference, "Generalized universal function API" and
"Universal functions (ufunc) > Optional keyword arguments".
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from gemm import operands, originals

_SHARED_KEYWORDS = frozenset(
    ("casting", "order", "dtype", "subok", "signature", "sig", "axes", "axis")
)
_ENGINE_KEYWORDS = frozenset(
    ("accumulate", "threads", "kernel", "epilogue", "split_k", "subnormals")
)
_LATER_KEYWORDS = ("device", "precision")


class Signature(NamedTuple):
    """`name`, and the labels of the core axes; those in `optional` may be missing."""

    name: str
    inputs: tuple[tuple[str, ...], tuple[str, ...]]
    output: tuple[str, ...]
    optional: frozenset[str] = frozenset()

    def __str__(self) -> str:
        def core(labels: tuple[str, ...]) -> str:
            return "(" + ",".join(x + "?" * (x in self.optional) for x in labels) + ")"

        return f"{core(self.inputs[0])},{core(self.inputs[1])}->{core(self.output)}"

    @property
    def reduces_to_scalar(self) -> bool:
        """One shared core axis and no core axis in the output: `axis` and `keepdims` apply."""
        return not self.output


class Problem(NamedTuple):
    """Checked operands: x1 and x2 share a dtype (or widen to `dtype`), core axes last, batch
    axes broadcast; `labels` name the core axes that each has, the output's third."""

    x1: np.ndarray
    x2: np.ndarray
    labels: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
    dtype: np.dtype
    options: dict[str, Any]


Compute = Callable[[Problem, np.ndarray], None]


def call(
    signature: Signature,
    original: Any,
    compute: Compute,
    x1: Any,
    x2: Any,
    out: Any,
    keywords: dict[str, Any],
) -> Any:
    """Run `compute` with NumPy's semantics of the gufunc `original` (None: NumPy lacks it)."""
    options = {name: keywords.pop(name) for name in _ENGINE_KEYWORDS & keywords.keys()}
    options = {name: value for name, value in options.items() if value is not None}
    _refuse_later_keywords(signature, keywords)
    given_order = operands.check_order(keywords.get("order"))
    _check_keywords(signature, keywords)
    out = _single_output(out)
    scalars = out is not Ellipsis  # out=... asks for an array also where the result is 0-d
    if not scalars:
        out = None

    if not operands.all_plain((x1, x2) if out is None else (x1, x2, out)):
        return _numpy(signature, original, x1, x2, out if scalars else ..., keywords, options)
    a, b = operands.as_array(x1), operands.as_array(x2)
    if out is not None and not isinstance(out, np.ndarray):
        raise TypeError("return arrays must be of ArrayType")
    dtype = loop_dtype(
        original or originals.matmul,
        a.dtype,
        b.dtype,
        None if out is None else out.dtype,
        _type_signature(keywords),
        keywords.get("casting", "same_kind"),
    )
    if not operands.is_engine_dtype(dtype):
        return _numpy(signature, original, x1, x2, out if scalars else ..., keywords, options)

    labels = _present_labels(signature, a, b)
    axes = _core_axes(signature, labels, (a, b, out), keywords)
    sizes = _core_sizes(signature, labels, (a, b), axes)
    core_shape = tuple(sizes[label] for label in labels[2])
    kept = axes[2] if keywords.get("keepdims") else None
    target = None
    if out is not None:
        target = _output_view(signature, out, axes[2], core_shape, kept is not None)
    a, b = _core_last(a, axes[0]), _core_last(b, axes[1])
    batch = _batch_shape(signature, a, b, labels, target, out)
    if out is not None and not out.flags.writeable:
        raise ValueError(f"output array is read-only: out has shape {out.shape}")

    if not operands.widens(a.dtype, b.dtype, dtype):
        a, b = operands.convert(a, dtype), operands.convert(b, dtype)
    order = operands.memory_order(given_order, a, b)
    problem = Problem(
        _broadcast_batch(a, batch, len(labels[0])),
        _broadcast_batch(b, batch, len(labels[1])),
        labels,
        dtype,
        options,
    )
    if target is not None:
        if operands.can_write(target, dtype, a, b):
            compute(problem, target)
        else:
            temporary = np.empty(target.shape, dtype)
            compute(problem, temporary)
            np.copyto(target, temporary, casting="unsafe")
        return out

    result = np.empty(batch + core_shape, dtype, order=order)
    compute(problem, result)
    if kept is not None:
        return np.expand_dims(result, kept[0])
    if labels[2] and axes[2] != tuple(range(-len(labels[2]), 0)):
        return np.moveaxis(result, range(-len(labels[2]), 0), axes[2])
    return result[()] if scalars and not result.ndim else result


def _refuse_later_keywords(signature: Signature, keywords: dict[str, Any]) -> None:
    for name in _LATER_KEYWORDS:
        value = keywords.pop(name, None)
        if value is not None:
            raise NotImplementedError(
                f"{signature.name}: {name}={value!r} is not supported yet; leave it out"
            )


def _check_keywords(signature: Signature, keywords: dict[str, Any]) -> None:
    name = signature.name
    for key in keywords.keys() - _SHARED_KEYWORDS - {"keepdims"}:
        raise TypeError(f"{name}() got an unexpected keyword argument {key!r}")
    if keywords.get("axis") is not None and keywords.get("axes") is not None:
        raise TypeError("cannot specify both 'axis' and 'axes'")
    if "sig" in keywords:  # the older name
        if "signature" in keywords:
            raise TypeError("cannot specify both 'sig' and 'signature'")
        keywords["signature"] = keywords.pop("sig")
    if keywords.get("signature") is not None and keywords.get("dtype") is not None:
        raise TypeError("cannot specify both 'signature' and 'dtype'")
    if not isinstance(keywords.get("subok", True), (bool, np.bool_)):
        raise TypeError(f"'subok' must be a boolean, not {type(keywords['subok']).__name__}")
    keepdims = keywords.get("keepdims", False)
    if not isinstance(keepdims, (bool, np.bool_)):
        raise TypeError(f"keepdims must be a bool, not {type(keepdims).__name__}")
    if signature.reduces_to_scalar:
        return
    if keywords.get("axis") is not None:
        raise TypeError(
            f"{name}: axis can only be used with a single shared core dimension, "
            f"not with those of signature {signature}"
        )
    if "keepdims" in keywords:
        raise TypeError(
            f"{name} does not support keepdims: its signature {signature} requires an output "
            f"with {len(signature.output)} core dimensions, not none"
        )


def _single_output(out: Any) -> Any:
    if type(out) is tuple:
        if len(out) != 1:
            raise ValueError(
                f"The 'out' tuple must have exactly one entry per ufunc output, not {len(out)}"
            )
        return out[0]
    return out


def _numpy(
    signature: Signature,
    original: Any,
    x1: Any,
    x2: Any,
    out: Any,
    keywords: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """The call as NumPy answers it."""
    if options:
        raise TypeError(
            f"{signature.name}: {', '.join(sorted(options))}= need arrays of a dtype that the "
            f"engine computes, not {type(x1).__name__} and {type(x2).__name__} operands of "
            f"dtypes {getattr(x1, 'dtype', '?')} and {getattr(x2, 'dtype', '?')}"
        )
    if original is None:
        raise NotImplementedError(
            f"{signature.name} of these operands is NumPy's, and NumPy {np.__version__} lacks it"
        )
    if out is None:
        return original(x1, x2, **keywords)
    return original(x1, x2, out=out, **keywords)


def _type_signature(keywords: dict[str, Any]) -> tuple[np.dtype | None, ...] | None:
    """`dtype=` or `signature=` as (x1, x2, out) dtypes with None for what is free."""
    if keywords.get("dtype") is not None:
        return (None, None, np.dtype(keywords["dtype"]))
    given = keywords.get("signature")
    if given is None:
        return None
    if isinstance(given, str):
        given = tuple(given.replace("->", "").replace(",", ""))
    if not isinstance(given, tuple) or len(given) != 3:
        raise TypeError(f"signature must name 3 dtypes, like 'dd->d', not {given!r}")
    return tuple(None if x is None else np.dtype(x) for x in given)


def loop_dtype(
    original: Any,
    x1: np.dtype,
    x2: np.dtype,
    out: np.dtype | None,
    signature: tuple[np.dtype | None, ...] | None,
    casting: Any,
) -> np.dtype:
    """The dtype NumPy would compute in, or its TypeError when a cast is not allowed.

    NumPy has no loop for the ml_dtypes types and would widen bfloat16 to float32; here they are
    dtypes like the others: the common dtype of the operands, cast by the same rules.
    """
    plain_call = out is None and signature is None and casting == "same_kind"
    if plain_call and x1 == x2 and operands.is_engine_dtype(x1):
        return x1
    return _resolved(original, x1, x2, out, signature, casting)


@lru_cache(maxsize=1024)
def _resolved(
    original: Any,
    x1: np.dtype,
    x2: np.dtype,
    out: np.dtype | None,
    signature: tuple[np.dtype | None, ...] | None,
    casting: Any,
) -> np.dtype:
    extended = [x for x in (x1, x2) if operands.is_extended(x)]
    wanted = None if signature is None else signature[2]
    if not extended and (wanted is None or not operands.is_extended(wanted)):
        given = {} if signature is None else {"signature": signature}
        return original.resolve_dtypes((x1, x2, out), casting=casting, **given)[2]
    dtype = wanted or operands.common_dtype(x1, x2)
    name = original.__name__
    for i, x in enumerate((x1, x2)):
        if not np.can_cast(x, dtype, casting):
            raise TypeError(
                f"Cannot cast ufunc {name!r} input {i} from {x!r} to {dtype!r} "
                f"with casting rule {casting!r}"
            )
    if out is not None and not np.can_cast(dtype, out, casting):
        raise TypeError(
            f"Cannot cast ufunc {name!r} output from {dtype!r} to {out!r} "
            f"with casting rule {casting!r}"
        )
    return dtype


def _present_labels(
    signature: Signature, a: np.ndarray, b: np.ndarray
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The core labels that each operand has, and those left for the output."""
    missing: set[str] = set()
    for i, (x, labels) in enumerate(zip((a, b), signature.inputs, strict=True)):
        short = len(labels) - x.ndim
        droppable = [label for label in labels if label in signature.optional]
        if short > len(droppable):
            raise ValueError(
                f"{signature.name}: Input operand {i} does not have enough dimensions "
                f"(has {x.ndim}, gufunc core with signature {signature} requires "
                f"{len(labels) - len(droppable)}): operands have shapes "
                f"{operands.shapes_text(a, b)}"
            )
        if short > 0:
            missing.update(droppable[:short])
    first, second, output = (
        tuple(label for label in labels if label not in missing)
        for labels in (*signature.inputs, signature.output)
    )
    return first, second, output


def _core_axes(
    signature: Signature,
    labels: tuple[tuple[str, ...], ...],
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray | None],
    keywords: dict[str, Any],
) -> list[tuple[int, ...]]:
    """The axis of each core label, for both inputs and the output."""
    keepdims = bool(keywords.get("keepdims"))
    axes = keywords.get("axes")
    if keywords.get("axis") is not None:
        axis = operator.index(keywords["axis"])
        axes = [(axis,), (axis,), (axis,) if keepdims else ()]
    if axes is None:
        last = [tuple(range(-len(core), 0)) for core in labels]
        if keepdims:
            last[2] = last[0]
        return last
    if not isinstance(axes, list):
        raise TypeError(f"axes should be a list, not {type(axes).__name__}")
    core_counts = [len(core) for core in labels]
    if len(axes) == 2 and signature.reduces_to_scalar:
        axes = [*axes, (-1,) if keepdims else ()]
    if keepdims:
        core_counts[2] = 1
    if len(axes) != 3:
        raise ValueError(
            f"axes should be a list with an entry for all 3 inputs and outputs, not {len(axes)}; "
            "entries for outputs can only be omitted if none of them has core axes."
        )
    extra = max(x.ndim - n for x, n in zip(arrays[:2], core_counts[:2], strict=True))  # type: ignore[union-attr]
    counts = [arrays[0].ndim, arrays[1].ndim, extra + core_counts[2]]  # type: ignore[union-attr]
    if arrays[2] is not None:
        counts[2] = arrays[2].ndim
    return [_entry(signature, i, entry, core_counts[i], counts[i]) for i, entry in enumerate(axes)]


def _entry(
    signature: Signature, position: int, entry: Any, core_count: int, ndim: int
) -> tuple[int, ...]:
    """One entry of `axes`, checked: as many distinct axes as the operand has core axes."""
    if not isinstance(entry, tuple):
        if core_count > 1:
            raise TypeError(
                f"{signature.name}: axes item {position} should be a tuple of {core_count} axes, "
                f"not {entry!r}"
            )
        entry = (entry,)
    if len(entry) != core_count:
        raise np.exceptions.AxisError(
            f"{signature.name}: axes item {position} should have {core_count} axes, not {entry!r}"
        )
    result = []
    for axis in entry:
        axis = operator.index(axis)
        if not -ndim <= axis < ndim:
            raise np.exceptions.AxisError(axis, ndim)
        result.append(axis - ndim if axis >= 0 else axis)
    if len(set(result)) != len(result):
        raise ValueError(f"{signature.name}: axes item {position} has value {entry!r} repeated")
    return tuple(result)


def _core_sizes(
    signature: Signature,
    labels: tuple[tuple[str, ...], ...],
    inputs: tuple[np.ndarray, np.ndarray],
    axes: list[tuple[int, ...]],
) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for i, x in enumerate(inputs):
        for dimension, (label, axis) in enumerate(zip(labels[i], axes[i], strict=True)):
            size = x.shape[axis]
            if sizes.setdefault(label, size) != size:
                raise ValueError(
                    f"{signature.name}: Input operand {i} has a mismatch in its core dimension "
                    f"{dimension}, with gufunc signature {signature} (size {size} is different "
                    f"from {sizes[label]}): operands have shapes {operands.shapes_text(*inputs)}"
                )
    return sizes


def _core_last(x: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
    last = tuple(range(-len(axes), 0))
    return x if axes == last else np.moveaxis(x, axes, last)


def _output_view(
    signature: Signature,
    out: np.ndarray,
    axes: tuple[int, ...],
    core_shape: tuple[int, ...],
    keepdims: bool,
) -> np.ndarray:
    """`out` with its core axes last (an axis kept by keepdims removed), checked."""
    wanted = (1,) if keepdims else core_shape
    if out.ndim < len(wanted):
        raise ValueError(
            f"{signature.name}: Output operand 0 does not have enough dimensions (has {out.ndim}, "
            f"gufunc core with signature {signature} requires {len(wanted)})"
        )
    target = _core_last(operands.as_array(out), axes)
    for dimension, size in enumerate(wanted):
        given = target.shape[target.ndim - len(wanted) + dimension]
        if given != size:
            raise ValueError(
                f"{signature.name}: Output operand 0 has a mismatch in its core dimension "
                f"{dimension}, with gufunc signature {signature} (size {given} is different from "
                f"{size}): out has shape {out.shape}"
            )
    return target[..., 0] if keepdims else target


def _batch_shape(
    signature: Signature,
    a: np.ndarray,
    b: np.ndarray,
    labels: tuple[tuple[str, ...], ...],
    target: np.ndarray | None,
    out: np.ndarray | None,
) -> tuple[int, ...]:
    """The broadcast batch shape; `out` may have more batch axes than the operands, not fewer."""
    first = a.shape[: a.ndim - len(labels[0])]
    second = b.shape[: b.ndim - len(labels[1])]
    batch = first
    if first != second:
        try:
            batch = np.broadcast_shapes(first, second)
        except ValueError:
            raise ValueError(
                f"{signature.name}: operands could not be broadcast together: batch shapes "
                f"{first} and {second} of operands with shapes {operands.shapes_text(a, b)}"
            ) from None
    if target is None:
        return batch
    given = target.shape[: target.ndim - len(labels[2])]
    if given == batch:
        return batch
    try:
        fits = np.broadcast_shapes(given, batch) == given
    except ValueError:
        fits = False
    if not fits:
        assert out is not None
        raise ValueError(
            f"{signature.name}: non-broadcastable output operand with shape {out.shape} (batch "
            f"shape {given}) doesn't match the broadcast batch shape {batch}"
        )
    return given


def _broadcast_batch(x: np.ndarray, batch: tuple[int, ...], core: int) -> np.ndarray:
    shape = batch + x.shape[x.ndim - core :]
    return x if x.shape == shape else np.broadcast_to(x, shape)
