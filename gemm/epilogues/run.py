"""A product with a bound epilogue: operands and outputs fitted, program made, kernel run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from gemm import engine, execution, operands, targets, threads
from gemm.microkernels.dtypes import DType, bool_, int32, int64

from . import repeat
from .contract import Bound, Epilogue, Packed, bind, epilogue
from .fitting import (
    Problem,
    as_number,
    convert,
    fit_operand,
    kind_of,
    known,
    same_start,
    same_view,
    uniform_step,
)
from .graph import Value
from .job import Job, OperandTable
from .program import (
    FLOAT,
    MASK,
    Operand,
    Output,
    Program,
    float_type,
    pruned,
    types_of,
)
from .sides import Side, operand_of, statistic

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
    run: Any = None,
    remember: Any = None,
) -> dict[str, np.ndarray]:
    """All outputs of `bound` on a @ b, by name.

    a (*batch, M, K), b (*batch, K, N): arrays of one engine dtype (or int8 and uint8), equal
    batch axes. out: an array for the main output, or a dict of arrays by output name. common:
    dtype of outputs that name none (default: a's). run: called as run(problem, program, operand
    arrays, output arrays) in place of the product; a and b then lend shapes and dtypes alone.
    remember: told what ran, if nothing was copied.
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
    if acc.kind != "c":
        arrays = {key: x if x.ndim else as_number(x, acc, floats) for key, x in arrays.items()}
    specs = []
    for key, x in arrays.items():
        kind = "number" if x.ndim == 0 and acc.kind != "c" else kind_of(x)
        if kind == "row" and x.strides[-1] != x.itemsize:
            x = arrays[key] = np.ascontiguousarray(x)
        x = arrays[key] = uniform_step(x, problem.batch)[0]
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
            results[key] = execution.new_array(shape, np.dtype(dtype))
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
            if x.ndim and operands.overlaps(target, x) and not same_view(x, target):
                arrays[key] = x = uniform_step(x.copy(), problem.batch)[0]
    wanted = tuple(
        (key, targets.element_type(x.dtype),
         x.strides[-1] == x.itemsize or x.shape[-1] == 1)
        for key, x in written.items()
    )  # fmt: skip
    copied = any(written[key] is not results[key] for key in written) or any(
        x.ndim and not same_start(x, bound.operands[key]) for key, x in arrays.items()
    )
    if all(x.size for x in written.values()):
        program = _program(epilogue, key_of_each, acc, tuple(specs), wanted)
        for name, side in (("pack_a", side_a), ("pack_b", side_b)):
            if side:
                part = dataclasses.replace(side.program, start=program.end_of_all)
                program = dataclasses.replace(program, **{name: part})
        if run is not None:
            run(problem, program, arrays, written)
        elif program.is_identity:
            target = next(iter(written.values()))
            engine.product(a, b, target, accumulate=accumulate, threads=threads_, kernel=kernel)
        else:
            job, home, scratch, sources = _job(
                problem, a, b, program, arrays, written, sides, threads_, kernel
            )
            job.run(a, b, home, scratch, sources)
            if remember is not None and not sides and not copied:
                remember(job, home, written)
    for key, target in written.items():
        if target is not results[key]:
            np.copyto(results[key], target, casting="unsafe")
    for side in sides:
        results.update(side.results)
    return results


def operand_table(problem: Problem, program: Program, arrays, written) -> OperandTable:
    """The table of a program without packing programs; keep it while the kernel runs."""
    job = Job(problem, program, 1, None)
    job.lay_out(0, program, arrays, written, problem.m)
    sources: dict[Any, np.ndarray] = {(0, key): x for key, x in arrays.items()}
    sources |= {(0, ("out", key)): x for key, x in written.items()}
    return OperandTable(job, sources)


def _job(problem, a, b, program: Program, arrays, written, sides, threads_, kernel) -> Any:
    """(job, its main output or a stand-in, whether partial sums rest in scratch, its arrays)."""
    allowed = threads.get_num_threads() if threads_ is None else threads.checked(threads_)
    job = Job(problem, program, allowed, kernel)
    parts = [part for part in (program.pack_a, program.pack_b) if part]
    all_parts = [(program, arrays, written, problem.m)]
    for part, side in zip(parts, sides, strict=True):
        all_parts.append((part, side.arrays, side.written, 0))
    sources: dict[Any, np.ndarray] = {}
    for i, (part, given, results, rows) in enumerate(all_parts):
        job.lay_out(i, part, given, results, rows)
        sources |= {(i, key): x for key, x in given.items()}
        sources |= {(i, ("out", key)): x for key, x in results.items()}
    home = next(iter(written.values()))
    first = program.outputs[0]
    resident = (
        first.kind == "tile"
        and home.shape[-1] == problem.n
        and first.dtype is problem.acc
        and first.unit
        and not any(np.may_share_memory(home, x) for x in arrays.values())
    )
    if not resident:
        home = np.broadcast_to(np.empty(1, np.dtype(problem.acc.name)), problem.shape(problem.n))
    return job, home, not resident, sources


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
    key = repeat.key_of(x1, x2, out, keywords)
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
    plain = key is not None and a is x1 and b is x2
    results = fused(
        a, b, bound, out, accumulate=options["accumulate"], threads_=options["threads"],
        kernel=options["kernel"], common=common,
        remember=functools.partial(repeat.remember, key, bound) if plain else None,
    )  # fmt: skip
    return next(iter(results.values())) if len(results) == 1 else results
