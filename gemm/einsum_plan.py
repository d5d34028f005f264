"""einsum as a program: views of the operands, then contractions of two values at a time.

A plan depends on the subscripts and on the operands' shapes, strides and dtypes, not on their
data, so it is made once and cached; running it costs little more than the contractions.

Values are numbered: the operands first, then the result of each step. Each step contracts two
values and drops the labels that nothing after it needs. Labels that one value alone has are
summed first. float16, bfloat16 and float8 keep float32 between steps and are rounded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gemm import contraction, einsum_parse, operands

Labels = tuple[int, ...]
Ints = tuple[int, ...]
Facts = tuple[Ints, Ints, np.dtype]  # shape, strides, dtype of an array


class Value(NamedTuple):
    """What is known of an array before there is one."""

    labels: Labels
    shape: Ints
    strides: Ints
    dtype: np.dtype

    @property
    def size(self) -> dict[int, int]:
        return dict(zip(self.labels, self.shape, strict=True))


Change = Callable[[np.ndarray], np.ndarray]


class Step(NamedTuple):
    """Contract values `first` and `second`, each changed before where there is something to do."""

    first: int
    second: int
    change_first: Change | None
    change_second: Change | None
    contraction: contraction.Contraction


class Plan:
    """Run with the operands in order; returns the result, not yet a scalar where it is 0-d.

    shape: of the result. work: dtype that the steps write. single: the one contraction, of the
    operands as they are, that is all there is to do; None where there is more. bare: the steps
    (first, second, contraction) where nothing else is to do, else empty. writes_out:
    whether the last step can write an `out` of dtype `work` with the strides that the plan was
    made for.
    """

    __slots__ = ("bare", "finish", "prepare", "shape", "single", "steps", "work", "writes_out")

    def __init__(self, shape: Ints, work: np.dtype) -> None:
        self.shape = shape
        self.work = work
        self.prepare: list[tuple[int, Change]] = []
        self.steps: list[Step] = []
        self.finish: list[Change] = []
        self.single: contraction.Contraction | None = None
        self.bare: list[tuple[int, int, contraction.Contraction]] = []
        self.writes_out = False

    def close(self) -> None:
        """Note what kind of plan it has become."""
        self.writes_out = bool(self.steps) and not self.finish
        changes = [x for step in self.steps for x in (step.change_first, step.change_second)]
        if self.writes_out and not self.prepare and changes == [None] * len(changes):
            self.bare = [(step.first, step.second, step.contraction) for step in self.steps]
            if len(self.bare) == 1:
                self.single = self.steps[0].contraction

    def __call__(self, arrays: Sequence[np.ndarray], out: np.ndarray | None = None) -> np.ndarray:
        values: list[Any] = list(arrays)
        if out is None and self.bare:
            work, found = self.work, None
            for first, second, recipe in self.bare:
                found = recipe(values[first], values[second], work)
                values[first] = values[second] = None  # frees an intermediate early
                values.append(found)
            return found  # type: ignore[return-value]
        for position, change in self.prepare:
            values[position] = change(values[position])
        last = len(values) + len(self.steps) - 1
        for first, second, change_first, change_second, recipe in self.steps:
            x, y = values[first], values[second]
            values[first] = values[second] = None  # frees an intermediate early
            if change_first is not None:
                x = change_first(x)
            if change_second is not None:
                y = change_second(y)
            values.append(recipe(x, y, self.work, out if len(values) == last else None))
        result = values[-1]
        for change in self.finish:
            result = change(result)
        return result


@lru_cache(maxsize=1024)
def plan(
    subscripts: Any,
    optimize: Any,
    dtype: np.dtype | None,
    out_strides: Ints | None,
    *facts: Facts,
) -> Plan:
    """The plan for operands with these (shape, strides, dtype).

    optimize: see `gemm.einsum_path`. dtype: what to compute in, None for the common dtype.
    Raises ValueError for subscripts or sizes that do not match.
    """
    inputs, output = einsum_parse.parse(subscripts, [len(shape) for shape, _, _ in facts])
    common = dtype or operands.common_dtype(*[x for _, _, x in facts])
    sizes = label_sizes(inputs, [shape for shape, _, _ in facts])
    views = [
        _diagonal(Value(labels, *fact), sizes) for labels, fact in zip(inputs, facts, strict=True)
    ]
    values: list[Any] = [value for value, _ in views]
    work = _work_dtype(common, values, output)
    result = Plan(tuple(sizes[x] for x in output), work)
    result.prepare += [(i, view) for i, (_, view) in enumerate(views) if view is not None]
    for i, value in enumerate(values):
        if value.dtype not in (work, common) and not _stays(value.dtype, values, work):
            result.prepare.append((i, _converter(work)))
            values[i] = _contiguous(value.labels, value.shape, work)

    for first, second in _order(values, output, optimize):
        rest = [x for x in values if x is not None]
        rest.remove(values[first])
        rest.remove(values[second])
        needed = set(output).union(*(x.labels for x in rest))
        a, change_first, b, change_second = _ready(values[first], values[second], needed, work)
        labels = _kept(a, b, needed) if rest else output
        recipe = contraction.plan(
            a.labels, a.shape, a.strides, b.labels, b.shape, b.strides, labels,
            None if rest else out_strides,
        )  # fmt: skip
        result.steps.append(Step(first, second, change_first, change_second, recipe))
        values[first] = values[second] = None
        values.append(_written(recipe, a.size | b.size, work))

    value = values[-1]
    extra = tuple(i for i, x in enumerate(value.labels) if x not in output)
    if extra:
        result.finish.append(_summer(value, extra, work))
        value = _contiguous(_without(value.labels, extra), _without(value.shape, extra), work)
    if value.labels != output:
        permutation = tuple(value.labels.index(x) for x in output)
        result.finish.append(lambda x: x.transpose(permutation))
    if value.dtype != common:
        result.finish.append(_converter(common))
    result.close()
    return result


def label_sizes(inputs: Sequence[Labels], shapes: Sequence[Ints]) -> dict[int, int]:
    """The size of each label: equal in all operands that have it, or 1 in some of them."""
    sizes: dict[int, int] = {}
    for i, (labels, shape) in enumerate(zip(inputs, shapes, strict=True)):
        own: dict[int, int] = {}
        for label, size in zip(labels, shape, strict=True):
            if own.setdefault(label, size) != size:
                raise ValueError(
                    f"einsum: dimensions in operand {i} for collapsing index "
                    f"{einsum_parse.label_text(label)!r} don't match ({own[label]} != {size}) "
                    f"in shape {shape}"
                )
        for label, size in own.items():
            known = sizes.setdefault(label, size)
            if known == 1:
                sizes[label] = size
            elif size not in (1, known):
                raise ValueError(
                    f"einsum: label {einsum_parse.label_text(label)!r} has size {size} in operand "
                    f"{i} of shape {shape}, but {known} in an operand before it"
                )
    return sizes


def _diagonal(value: Value, sizes: dict[int, int]) -> tuple[Value, Change | None]:
    """`value` with each label once, and without axes of length 1 that broadcast."""
    strides: dict[int, int] = {}
    for label, size, stride in zip(value.labels, value.shape, value.strides, strict=True):
        if size == sizes[label]:
            strides[label] = strides.get(label, 0) + stride
    if tuple(strides) == value.labels:
        return value, None
    shape = tuple(sizes[x] for x in strides)
    view = Value(tuple(strides), shape, tuple(strides.values()), value.dtype)
    return view, lambda x: as_strided(x, view.shape, view.strides)


def _work_dtype(common: np.dtype, values: Sequence[Value], output: Labels) -> np.dtype:
    """The dtype of the steps: float32 for narrow floats unless one contraction does it all."""
    if not operands.accumulates_wider(common):
        return common
    if len(values) == 2:
        first, second = (set(x.labels) for x in values)
        if (first ^ second) <= set(output):
            return common
    return np.dtype(np.float32)


def _stays(dtype: np.dtype, values: Sequence[Value], work: np.dtype) -> bool:
    """True when the engine multiplies the two operands into the wider `work` as they are."""
    return len(values) == 2 and operands.widens(values[0].dtype, values[1].dtype, work)


def _order(values: Sequence[Value], output: Labels, optimize: Any) -> list[tuple[int, int]]:
    """Pairs of value numbers to contract, each pair making the next number."""
    if len(values) < 2:
        return []
    live = list(range(len(values)))
    labels = {i: frozenset(value.labels) for i, value in enumerate(values)}
    sizes: dict[int, int] = {}
    for value in values:
        sizes |= value.size
    path = _path([labels[i] for i in live], output, sizes, optimize)
    pairs: list[tuple[int, int]] = []

    def contract(numbers: list[int]) -> None:
        """Contract these values to one, in an order of our own when they are many."""
        kept = set(output).union(*(labels[i] for i in live if i not in numbers))
        steps: Any = [(0, 1)]
        if len(numbers) > 2:
            steps = _path([labels[i] for i in numbers], tuple(kept), sizes, "auto")
        numbers = list(numbers)
        for first, second in steps:
            first, second = numbers[first], numbers[second]
            numbers = [i for i in numbers if i not in (first, second)]
            live[:] = [i for i in live if i not in (first, second)]
            pairs.append((first, second))
            rest = set(output).union(*(labels[i] for i in live))
            new = len(labels)
            labels[new] = frozenset((labels[first] | labels[second]) & rest)
            numbers.append(new)
            live.append(new)

    for positions in path:
        if len(positions) > 1:
            contract([live[p] for p in positions])
    return pairs


def _path(
    terms: Sequence[frozenset[int]], output: Labels, sizes: dict[int, int], optimize: Any
) -> Sequence[tuple[int, ...]]:
    """Positions to contract at each step; opt_einsum finds them when there is a choice."""
    if isinstance(optimize, tuple) and not (optimize and isinstance(optimize[0], str)):
        _check_path(optimize, len(terms))
        return optimize
    if len(terms) == 2:
        return [(0, 1)]
    import opt_einsum

    kind, limit = optimize if isinstance(optimize, tuple) else (optimize, None)
    known = sorted(set().union(*terms))
    symbol = {label: opt_einsum.get_symbol(i) for i, label in enumerate(known)}
    ordered = [sorted(term) for term in terms]
    text = ",".join("".join(symbol[x] for x in term) for term in ordered)
    text += "->" + "".join(symbol[x] for x in output if x in symbol)
    shapes = [tuple(sizes[x] for x in term) for term in ordered]
    return opt_einsum.contract_path(text, *shapes, shapes=True, optimize=kind, memory_limit=limit)[
        0
    ]


def _check_path(path: Sequence[tuple[int, ...]], count: int) -> None:
    for positions in path:
        if len(set(positions)) != len(positions) or not all(0 <= p < count for p in positions):
            raise RuntimeError(
                f"einsum: path {list(path)} has the step {positions} with {count} operands left"
            )
        count -= len(positions) - 1
    if count != 1:
        raise RuntimeError(f"einsum: path {list(path)} leaves {count} operands uncontracted")


def _ready(
    a: Value, b: Value, needed: set[int], work: np.dtype
) -> tuple[Value, Change | None, Value, Change | None]:
    """The two values as the contraction takes them, and how each is brought there: labels that
    nothing else has are summed, dtypes that the engine does not mix are converted to `work`."""
    pair = [a, b]
    changes: list[Change | None] = [None, None]
    for i, (value, other) in enumerate(((a, b), (b, a))):
        keep = needed.union(other.labels)
        lone = tuple(axis for axis, x in enumerate(value.labels) if x not in keep)
        if lone:
            changes[i] = _summer(value, lone, work)
            pair[i] = _contiguous(_without(value.labels, lone), _without(value.shape, lone), work)
    if pair[0].dtype != pair[1].dtype and not operands.widens(pair[0].dtype, pair[1].dtype, work):
        for i, value in enumerate(pair):
            if value.dtype != work:
                changes[i] = _converter(work)
                pair[i] = _contiguous(value.labels, value.shape, work)
    return pair[0], changes[0], pair[1], changes[1]


def _kept(a: Value, b: Value, needed: set[int]) -> Labels:
    """Labels of an intermediate result: batch, rows, columns."""
    in_a = [x for x in a.labels if x in needed]
    in_b = [x for x in b.labels if x in needed and x not in a.labels]
    return (
        *(x for x in in_a if x in b.labels),
        *(x for x in in_a if x not in b.labels),
        *in_b,
    )


def _written(recipe: contraction.Contraction, size: dict[int, int], dtype: np.dtype) -> Value:
    """The value that a contraction leaves: axes as in its labels, memory as it was written."""
    labels = recipe.labels
    stored = labels if recipe.from_out is None else tuple(labels[i] for i in recipe.from_out)
    written = _contiguous(stored, tuple(size[x] for x in stored), dtype)
    strides = dict(zip(stored, written.strides, strict=True))
    return Value(labels, tuple(size[x] for x in labels), tuple(strides[x] for x in labels), dtype)


def _contiguous(labels: Labels, shape: Ints, dtype: np.dtype) -> Value:
    return Value(labels, shape, operands.contiguous_strides(shape, dtype.itemsize), dtype)


def _without(items: tuple[Any, ...], positions: Ints) -> tuple[Any, ...]:
    return tuple(x for i, x in enumerate(items) if i not in positions)


def _converter(dtype: np.dtype) -> Change:
    return lambda x: x.astype(dtype, order="C", copy=False)


def _summer(value: Value, axes: Ints, dtype: np.dtype) -> Change:
    """Sum over axes in `dtype`, into C order; booleans are or-ed."""
    shape = _without(value.shape, axes)
    add = np.logical_or if dtype == np.bool_ else np.add

    def total(x: np.ndarray) -> np.ndarray:
        out = np.empty(shape, dtype)
        add.reduce(x, axis=axes, dtype=dtype, out=out)
        return out

    return total
