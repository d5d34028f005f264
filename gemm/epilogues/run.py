"""A product with a bound epilogue: operands and outputs fitted, program made, kernel run."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from gemm import engine, execution, operands, planner, targets, threads
from gemm.microkernels.arithmetic import Table
from gemm.microkernels.dtypes import DType, bool_, int32, int64

from .contract import Bound, Epilogue, Packed, bind, epilogue
from .fitting import (
    Problem,
    convert,
    fit_operand,
    kind_of,
    known,
    same_view,
    steps_of,
    uniform_step,
)
from .program import (
    FLOAT,
    MASK,
    OUTPUT_SLOTS,
    SLOTS,
    Operand,
    Output,
    Program,
    float_type,
    pruned,
    types_of,
)
from .sides import Side, operand_of, statistic
from .tracing import Value
from .write_back import CHAINS

IDENTITY = epilogue(lambda acc: acc)


@functools.lru_cache(maxsize=1024)
def _program(epilogue, each, acc, shapes, wanted):
    """(Program, main output's node type) from hashable parts; shapes: Operand of each name."""
    nodes, values = epilogue.trace(dict(each))
    names = [name for name, _ in shapes]
    nodes = tuple(
        (op, names.index(rest[0]), rest[1]) if op == "operand" else (op, *rest)
        for op, *rest in nodes
    )
    roots = [i for value in values.values() for i in value.nodes]
    nodes, place = pruned(nodes, roots)
    specs = tuple(spec for _, spec in shapes)
    kinds = types_of(nodes, specs, acc)
    floats = float_type(acc, [spec.dtype for spec in specs])
    outputs = []
    for (key, value), (name, dtype, unit) in zip(values.items(), wanted, strict=True):
        assert key == name
        outputs.append(
            Output(value.kind, tuple(place[i] for i in value.nodes), dtype or floats,
                   value.combine, value.block, unit)
        )  # fmt: skip
    program = Program(acc, epilogue.pairs, nodes, specs, tuple(outputs))
    assert len(kinds) == len(nodes)
    return program


@functools.lru_cache(maxsize=1024)
def _output_types(epilogue: Epilogue, each, acc: DType, specs, common: np.dtype):
    """name -> NumPy dtype of each output, and the values themselves."""
    nodes, values = epilogue.trace(dict(each))
    by_name = dict(specs)
    renamed = tuple(
        (op, list(by_name).index(rest[0]), rest[1]) if op == "operand" else (op, *rest)
        for op, *rest in nodes
    )
    kinds = types_of(renamed, tuple(by_name.values()), acc)
    floats = float_type(acc, [spec.dtype for spec in by_name.values()])
    found = {}
    for key, value in values.items():
        kind = kinds[value.nodes[0]]
        if value.kind != "tile":
            computed = floats if kind == FLOAT else (int64 if acc is int64 else int32)
            if value.combine == "log_sum_exp" and kind != FLOAT:
                raise TypeError(f"epilogue {epilogue.name}: {key} is a log-sum-exp of "
                                "integers; make it a float first")  # fmt: skip
            found[key] = np.dtype(computed.name)
        elif value.dtype is not None:
            found[key] = value.dtype
        elif kind == MASK:
            found[key] = np.dtype(bool_.name)
        elif kind == FLOAT and acc.kind not in "fc":
            found[key] = np.dtype(floats.name)
        else:
            found[key] = common
    return found, values


def _output_shape(problem: Problem, value: Value) -> tuple[int, ...]:
    width = problem.lanes
    if value.kind == "tile":
        return problem.shape(width * len(value.nodes))
    if value.kind == "row":
        return problem.shape(-(-width // value.block) if value.block else 1)
    rows = -(-problem.m // value.block) if value.block else 1
    return (*problem.batch, rows, width)


def _check_given(problem: Problem, key: str, given: Any, shape, dtype: np.dtype) -> None:
    where = f"epilogue {problem.name}: out for {key}"
    if not isinstance(given, np.ndarray):
        raise TypeError(f"{where} must be an array, not {type(given).__name__}")
    if given.shape != shape:
        raise ValueError(f"{where} has shape {given.shape}, the result has shape {shape}")
    if not given.flags.writeable:
        raise ValueError(f"{where} is read-only: it has shape {given.shape}")
    if given.dtype != dtype and not np.can_cast(dtype, given.dtype, "same_kind"):
        raise TypeError(f"{where} has dtype {given.dtype}, the result has dtype {dtype}")


def fused(
    a: np.ndarray,
    b: np.ndarray,
    bound: Bound,
    out: Any = None,
    *,
    accumulate: Any = None,
    threads_: int | None = None,
    kernel: str | None = None,
    common: np.dtype | None = None,
) -> dict[str, np.ndarray]:
    """All outputs of `bound` on a @ b, by name.

    a (*batch, M, K), b (*batch, K, N): arrays of one engine dtype (or int8 and uint8), equal
    batch axes. out: an array for the main output, or a dict of arrays by output name. common:
    dtype of outputs that name none (default: a's).
    """
    epilogue = bound.epilogue
    common = a.dtype if common is None else common
    acc = targets.accumulator(
        targets.element_type(common), targets.element_type(common), accumulate
    )
    a, packed_a = operand_of(a, common)
    b, packed_b = operand_of(b, common)
    shape = (*a.shape[:-1], b.shape[-1])
    problem = Problem(epilogue.name, shape, acc, epilogue.pairs)
    inner = (*a.shape[:-2], a.shape[-1])
    side_a = packed_a and Side("a", packed_a, (*inner, a.shape[-2]), acc)
    side_b = packed_b and Side("b", packed_b, (*inner, b.shape[-1]), acc)
    sides = [side for side in (side_a, side_b) if side]
    statistics = {name: x for side in sides for name, x in side.statistics.items()}
    bound = Bound(epilogue, {
        key: statistic(epilogue.name, key, x, statistics) if isinstance(x, str) else x
        for key, x in bound.operands.items()
    })  # fmt: skip
    each = {key: 2 if key in epilogue.unpacked else 1 for key in bound.operands}
    fitted = {key: fit_operand(problem, key, x, each[key]) for key, x in bound.operands.items()}
    floats = float_type(acc, [
        known(x.dtype) for x in fitted.values() if x.ndim
    ])  # fmt: skip
    arrays = {key: convert(problem, key, x, floats) for key, x in fitted.items()}
    specs = []
    for key, x in arrays.items():
        kind = kind_of(x)
        if kind == "row" and x.strides[-1] != x.itemsize:
            x = arrays[key] = np.ascontiguousarray(x)
        unit = kind != "tile" or x.strides[-1] == x.itemsize
        specs.append((key, Operand(kind, targets.element_type(x.dtype), unit, each[key])))
    key_of_each = tuple(sorted(each.items()))
    dtypes, values = _output_types(epilogue, key_of_each, acc, tuple(specs), common)
    given = out if isinstance(out, dict) else {} if out is None else {next(iter(values)): out}
    unknown = [key for key in given if key not in values]
    if unknown:
        raise TypeError(f"epilogue {epilogue.name} has no output {', '.join(unknown)}; "
                        f"it has {', '.join(values)}")  # fmt: skip
    results: dict[str, np.ndarray] = {}
    written: dict[str, np.ndarray] = {}
    for key, value in values.items():
        shape = _output_shape(problem, value)
        if key in given:
            _check_given(problem, key, given[key], shape, dtypes[key])
            results[key] = given[key]
        else:
            dtype = value.dtype if value.dtype is not None else dtypes[key]
            results[key] = np.empty(shape, dtype)
    for key, value in values.items():
        target = results[key]
        stored = known(target.dtype)
        if value.kind != "tile":
            direct = target.dtype == dtypes[key] and target.strides[-1] == target.itemsize
        else:
            direct = stored is not None and (stored.kind != "c" or stored is acc)
        others = [x for k, x in written.items() if k != key]
        # The kernel steps through the batch evenly.
        if problem.batch:
            direct = direct and len(execution.batches(problem.batch, target.strides[:-2])[1]) < 2
        if not direct or operands.writes_twice(target) or operands.overlaps(target, a, b, *others):
            target = np.empty(target.shape, dtypes[key])
        written[key] = target
    for key, x in arrays.items():
        for target in written.values():
            if operands.overlaps(target, x) and not same_view(x, target):
                arrays[key] = x = x.copy()
    wanted = tuple(
        (key, targets.element_type(x.dtype),
         x.strides[-1] == x.itemsize or x.shape[-1] == 1)
        for key, x in written.items()
    )  # fmt: skip
    if all(x.size for x in written.values()):
        program = _program(epilogue, key_of_each, acc, tuple(specs), wanted)
        for name, side in (("pack_a", side_a), ("pack_b", side_b)):
            if side:
                part = dataclasses.replace(side.program, start=program.end_of_all)
                program = dataclasses.replace(program, **{name: part})
        if program.is_identity:
            target = next(iter(written.values()))
            engine.product(a, b, target, accumulate=accumulate, threads=threads_, kernel=kernel)
        else:
            _run(problem, a, b, program, arrays, written, sides, threads_, kernel)
    for key, target in written.items():
        if target is not results[key]:
            np.copyto(results[key], target, casting="unsafe")
    for side in sides:
        results.update(side.results)
    return results


def _fill(table, batch, program: Program, arrays, written, rows: int) -> None:
    """A program's part of the operand table; table: slots, pointers by slot, what to keep."""
    slots, pointers, kept = table
    count = math.prod(batch)
    for i, (x, operand) in enumerate(zip(arrays, program.operands, strict=True)):
        x, step = uniform_step(x, batch)
        kept.append(x)
        at = program.slot(i)
        slots[at : at + SLOTS] = (execution.address(x), *steps_of(x), step)
        pointers[at] = x, operand.dtype
    for o, (x, output) in enumerate(zip(written, program.outputs, strict=True)):
        if x.ndim < 2:
            continue  # the packed element itself
        at = program.output_slot(o)
        _, step = uniform_step(x, batch)
        state, at_state, steps = None, 0, (0, 0)
        if output.kind == "row":
            parts = 2 if output.combine == "log_sum_exp" else 1
            state = np.empty((count, rows, parts * CHAINS), output.dtype.name)
            steps = state.strides[1], state.strides[0]
            at_state = execution.address(state)
            kept.append(state)
            pointers[at + 4] = state, output.dtype
        slots[at : at + OUTPUT_SLOTS] = (
            execution.address(x), x.strides[-2], x.strides[-1], step, at_state, *steps,
        )  # fmt: skip
        pointers[at] = x, output.dtype


def _run(problem, a, b, program: Program, arrays, written, sides, threads_, kernel) -> None:
    acc, batch = problem.acc, problem.batch
    slots = [0] * program.end_of_all
    slots[0], slots[1] = problem.m, problem.n
    pointers: dict[int, tuple[np.ndarray, DType]] = {}
    kept: list[np.ndarray] = []
    table = slots, pointers, kept
    _fill(table, batch, program, arrays.values(), written.values(), problem.m)
    parts = [part for part in (program.pack_a, program.pack_b) if part]
    for part, side in zip(parts, sides, strict=True):
        _fill(table, batch, part, side.arrays.values(), side.written, 0)
    home = next(iter(written.values()))
    first = program.outputs[0]
    ta, tb = targets.element_type(a.dtype), targets.element_type(b.dtype)
    resident = (
        first.kind == "tile"
        and home.shape[-1] == problem.n
        and first.dtype is acc
        and first.unit
        and not any(np.may_share_memory(home, x) for x in arrays.values())
    )
    if not resident:
        home = np.broadcast_to(np.empty(1, np.dtype(acc.name)), problem.shape(problem.n))
    count, rows = execution.batches(batch, a.strides[:-2], b.strides[:-2], home.strides[:-2])
    stored = targets.element_type(home.dtype)
    isa = None if kernel else targets.environment("GEMM_ISA")
    allowed = threads.get_num_threads() if threads_ is None else threads.checked(threads_)
    plan = planner.make_plan(
        ta, tb, stored, acc, problem.m, problem.n, a.shape[-1], count, not resident, allowed,
        kernel, isa, program,
    )  # fmt: skip
    extra: Any = np.array(slots, np.int64)
    if plan.level == "reference":
        from gemm.backends.reference.run import pointer

        extra = Table([pointer(*pointers[i]) if i in pointers else x for i, x in enumerate(slots)])
    execution.execute(plan, a, b, home, count, rows, not resident, extra)
    del kept


def scaled(a, b, out, alpha, beta, *, accumulate=None, threads=None, kernel=None) -> None:
    """out = alpha * (a @ b) + beta * out, in the write-back; beta == 0 never reads out."""
    from .stock import alpha_beta

    if out.strides[-1] != out.itemsize and out.strides[-2] == out.itemsize:
        # The program is the same for every element, so the transpose may be computed.
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
    acc = targets.accumulator(
        targets.element_type(a.dtype), targets.element_type(out.dtype), accumulate
    )
    given: dict[str, Any] = {}
    for name, factor in (("alpha", alpha), ("beta", beta)):
        if factor != 1 and (name == "alpha" or beta != 0):
            if acc.kind == "i":
                half = 1 << acc.bits - 1
                factor = (int(factor) + half) % (2 * half) - half
            given[name] = np.asarray(factor, acc.name)
    if beta != 0:
        given["c"] = out.view(np.int32) if out.dtype == np.uint32 else out
    fused(a, b, alpha_beta(**given), out, accumulate=accumulate, threads_=threads, kernel=kernel,
          common=out.dtype)  # fmt: skip


def _ready(x: Any, common: np.dtype, batch: tuple[int, ...], mixed: bool) -> Any:
    """An operand of the common dtype (integers under a program stay) with all batch axes."""
    shape = (*batch, *x.shape[-2:])
    if not isinstance(x, Packed):
        x = x if mixed else operands.convert(x, common)
        return x if x.shape == shape else np.broadcast_to(x, shape)
    if x.operand is None:
        return Packed(None, x.program, shape, x.dtype or common)
    keep = x.operand.dtype.kind in "iu"
    array = x.operand if keep else operands.convert(x.operand, common)
    return Packed(np.broadcast_to(array, shape), x.program)


def call(x1: Any, x2: Any, out: Any, keywords: dict[str, Any]) -> Any:
    """`matmul(x1, x2, epilogue=)`: the main output, or a dict of all of them by name."""
    keywords = dict(keywords)
    program = keywords.pop("epilogue", None)
    bound = bind(IDENTITY if program is None else program)
    options = {key: keywords.pop(key, None) for key in ("accumulate", "threads", "kernel")}
    if keywords:
        raise TypeError(f"matmul with epilogue= takes no {', '.join(sorted(keywords))}=")
    a, b = (x if isinstance(x, Packed) else operands.as_array(x) for x in (x1, x2))
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2]:
        raise ValueError(
            "matmul with a program takes matrices (..., M, K) and (..., K, N), got shapes "
            f"{operands.shapes_text(a, b)}"  # type: ignore[arg-type]
        )
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2]) if a.ndim > 2 or b.ndim > 2 else ()
    # A packing program widens integers to floats, and a matrix it makes has the other's type.
    dtypes = [x.dtype for x in (a, b) if x.dtype is not None]
    floats = [d for d in dtypes if d.kind not in "iub" or operands.is_extended(d)]
    packs = isinstance(a, Packed) or isinstance(b, Packed)
    mixed = not packs and dtypes[0] != dtypes[1] and {d.name for d in dtypes} == {"int8", "uint8"}
    common = np.dtype(np.int32) if mixed else operands.common_dtype(*(packs and floats or dtypes))
    if not operands.is_engine_dtype(common):
        raise TypeError(f"matmul: no kernel for dtype {common} (of {a.dtype} and {b.dtype})")
    a, b = (_ready(x, common, batch, mixed) for x in (a, b))
    results = fused(
        a, b, bound, out, accumulate=options["accumulate"], threads_=options["threads"],
        kernel=options["kernel"], common=common,
    )  # fmt: skip
    return next(iter(results.values())) if len(results) == 1 else results
