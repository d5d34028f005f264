"""einsum and einsum_path: NumPy's calls, contracted two operands at a time by the engine."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from gemm import einsum_parse, einsum_plan, operands, originals

_ndarray = np.ndarray
_KEYWORDS = frozenset(("dtype", "casting", "order"))
_MOST_LETTERS = 52  # of NumPy's einsum


def einsum(*arguments: Any, out: Any = None, optimize: Any = False, **keywords: Any) -> Any:
    """`numpy.einsum(subscripts, *operands, out=None, dtype=None, order='K', casting='safe')`,
    or with sublists: `einsum(op0, sublist0, op1, sublist1, ..., [sublistout])`.

    Any number of labels: letters beyond a-z and A-Z, and sublist integers beyond 51, are allowed.
    Two operands are one product. Three or more are contracted pairwise in an order that
    opt_einsum finds, also with optimize=False; `optimize` may name the method ('greedy',
    'optimal', or another of opt_einsum's), be (method, largest intermediate) or be a path.
    The result dtype is that of all operands together, whatever the order.

    Raises ValueError for subscripts, shapes or an `out` that do not match, TypeError for a cast
    that `casting` forbids.
    """
    if out is None and not keywords and (optimize is False or optimize is True):
        subscripts = arguments[0] if arguments else None
        if type(subscripts) is str:
            if len(arguments) == 2 and _is_numpys_view(subscripts, arguments[1]):
                return originals.einsum(subscripts, arguments[1])
            facts = []
            for x in arguments[1:]:
                if type(x) is not _ndarray:
                    break
                facts.append((x.shape, x.strides, x.dtype))
            else:
                plan = _quick_plan(subscripts, *facts)
                if plan is not None:
                    if plan.single is not None:
                        result = plan.single(arguments[1], arguments[2], plan.work)
                    else:
                        result = plan(arguments[1:])
                    return result if plan.shape or len(facts) == 1 else result[()]
    return _einsum(arguments, out, optimize, keywords)


def einsum_path(*arguments: Any, optimize: Any = "greedy", einsum_call: Any = False) -> Any:
    """`numpy.einsum_path`: (path, text). The path may be given to `einsum` as `optimize`.

    NumPy's own, except for calls with more labels than it takes, whose path is opt_einsum's.
    """
    subscripts, given = einsum_parse.split_call(arguments)
    shapes = [np.shape(x) for x in given]
    inputs, output = einsum_parse.parse(subscripts, [len(shape) for shape in shapes])
    if len(set().union(*inputs)) <= _MOST_LETTERS and _in_numpys_alphabet(subscripts):
        return originals.einsum_path(*arguments, optimize=optimize, einsum_call=einsum_call)
    import opt_einsum

    sizes = einsum_plan.label_sizes(inputs, shapes)
    symbol = {label: opt_einsum.get_symbol(i) for i, label in enumerate(sorted(sizes))}
    text = ",".join("".join(symbol[x] for x in labels) for labels in inputs)
    text += "->" + "".join(symbol[x] for x in output)
    path, info = opt_einsum.contract_path(
        text, *shapes, shapes=True, optimize=_method(optimize) if optimize else False
    )
    return ["einsum_path", *path], str(info)


@lru_cache(maxsize=1024)
def _quick_plan(subscripts: str, *facts: einsum_plan.Facts) -> einsum_plan.Plan | None:
    """The plan for a call without keywords, None where `_einsum` must look closer."""
    dtypes = [dtype for _, _, dtype in facts]
    if not facts or not all(map(operands.is_engine_dtype, dtypes)):
        return None
    return einsum_plan.plan(subscripts, "auto", None, None, *facts)


def _einsum(arguments: Sequence[Any], out: Any, optimize: Any, keywords: dict[str, Any]) -> Any:
    """einsum the long way: any call form, any operands, every keyword."""
    for name in keywords.keys() - _KEYWORDS:
        raise TypeError(f"einsum() got an unexpected keyword argument {name!r}")
    subscripts, given = einsum_parse.split_call(arguments)
    plain = operands.all_plain(given if out is None else [*given, out])
    arrays = [operands.as_array(x) for x in given] if plain else []
    if out is not None and plain and not isinstance(out, np.ndarray):
        raise TypeError(f"einsum: 'out' must be an array, not {type(out).__name__}")
    if not plain or _is_numpys(subscripts, arrays, out, keywords):
        return originals.einsum(*arguments, out=out, optimize=optimize, **keywords)

    dtype = keywords.get("dtype")
    compute = operands.common_dtype(*(x.dtype for x in (arrays if out is None else [*arrays, out])))
    if dtype is not None:
        compute = np.dtype(dtype).newbyteorder("=")
    order = operands.check_order(keywords.get("order"))
    method = _method(optimize)

    facts = [(x.shape, x.strides, x.dtype) for x in arrays]
    plan = einsum_plan.plan(subscripts, method, compute, None, *facts)
    if out is not None and out.shape != plan.shape:
        raise ValueError(
            f"einsum: out has shape {out.shape}, but the result has shape {plan.shape}"
        )
    _check_casts(arrays, compute, out, keywords.get("casting", "safe"))
    if out is None:
        result = plan(arrays)
        if order != "K":
            result = np.asarray(result, order=operands.memory_order(order, *arrays))
        return result if plan.shape or len(arrays) == 1 else result[()]

    target = operands.as_array(out)
    if not target.flags.writeable:
        raise ValueError(f"einsum: out is read-only: it has shape {target.shape}")
    if plan.writes_out and operands.can_write(target, plan.work, *arrays):
        einsum_plan.plan(subscripts, method, compute, target.strides, *facts)(arrays, target)
    else:
        np.copyto(target, plan(arrays), casting="unsafe")
    return out


def _is_numpys(
    subscripts: Any, arrays: Sequence[np.ndarray], out: Any, keywords: dict[str, Any]
) -> bool:
    """True for what NumPy computes: dtypes without a kernel, and views and sums of one operand
    (unless NumPy sums that dtype badly or has too few letters)."""
    dtypes = [x.dtype for x in arrays]
    if keywords.get("dtype") is not None:
        dtypes.append(np.dtype(keywords["dtype"]))
    if out is not None:
        dtypes.append(out.dtype)
    if not all(operands.is_engine_dtype(x.newbyteorder("=")) for x in dtypes):
        return True
    return (
        len(arrays) == 1
        and not any(map(operands.accumulates_wider, dtypes))
        and _in_numpys_alphabet(subscripts)
    )


def _is_numpys_view(subscripts: str, x: Any) -> bool:
    """The short form of `_is_numpys` for one array of a common dtype."""
    return type(x) is _ndarray and x.dtype.char in "?bhilqBHILQfdFD" and subscripts.isascii()


def _in_numpys_alphabet(subscripts: Any) -> bool:
    if isinstance(subscripts, str):
        return subscripts.isascii()
    terms, output = subscripts
    used = [x for term in (*terms, output or ()) for x in term if x is not Ellipsis]
    return all(x < _MOST_LETTERS for x in used)


def _check_casts(
    arrays: Sequence[np.ndarray], dtype: np.dtype, out: np.ndarray | None, casting: Any
) -> None:
    for i, x in enumerate(arrays):
        if not np.can_cast(x.dtype, dtype, casting):
            raise TypeError(
                f"einsum: operand {i} could not be cast from {x.dtype!r} to {dtype!r} "
                f"according to the rule {casting!r}"
            )
    if out is not None and not np.can_cast(dtype, out.dtype, casting):
        raise TypeError(
            f"einsum: the result could not be cast from {dtype!r} to {out.dtype!r}, the dtype of "
            f"out, according to the rule {casting!r}"
        )


def _method(optimize: Any) -> Any:
    """`optimize` as a hashable method, (method, limit) or path; TypeError if it is none of them."""
    if optimize is True or optimize is False or optimize is None:
        return "auto"
    if isinstance(optimize, str):
        return optimize
    try:
        items = list(optimize)
        if items and items[0] == "einsum_path":
            items = items[1:]
        elif len(items) == 2 and isinstance(items[0], str):
            return (items[0], int(items[1]))
        return tuple(tuple(int(p) for p in step) for step in items)
    except (TypeError, ValueError):
        raise TypeError(f"einsum: did not understand the path: {optimize!r}") from None
