"""A product with a bound epilogue: operands and outputs fitted, program made, kernel run."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from gemm import engine, execution, operands, planner, targets, threads
from gemm.microkernels.arithmetic import Table
from gemm.microkernels.dtypes import DTYPES, DType, bool_, int32, int64

from .contract import Bound, Nibbles, Packed, bind, epilogue
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
from .tracing import Value
from .write_back import CHAINS

IDENTITY = epilogue(lambda acc: acc)
INT32 = np.iinfo(np.int32)


class _Problem:
    """Shapes and types that every operand and output is fitted to: of the product, or of an
    operand that a program changes while it is packed."""

    def __init__(self, name: str, shape: tuple[int, ...], acc: DType, pairs: bool):
        self.name, self.acc, self.pairs = name, acc, pairs
        *batch, self.m, self.n = shape
        self.batch = tuple(batch)
        if pairs and self.n % 2:
            raise ValueError(f"epilogue {name} takes pairs of columns, N = {self.n} is odd")
        self.lanes = self.n // 2 if pairs else self.n

    def shape(self, width: int) -> tuple[int, ...]:
        return (*self.batch, self.m, width)


def _fit_operand(problem: _Problem, key: str, x: Any, each: int) -> np.ndarray:
    """The operand as an array that broadcasts to the product; each: its values for one lane."""
    array = operands.as_array(x)
    shape = problem.shape(problem.lanes * each)
    try:
        if array.ndim <= len(shape) and np.broadcast_shapes(array.shape, shape) == shape:
            if each == 1 or array.shape[-1:] == shape[-1:]:
                return array
    except ValueError:
        pass
    m, n = shape[-2:]
    hint = f"; a column vector has shape ({m}, 1)" if array.shape == (m,) else ""
    if array.shape[-1:] == ((3 - each) * (n // each),):
        hint = "; the function must unpack it as a pair of columns" if each == 1 else hint
    batch = f" after batch axes {problem.batch}" if problem.batch else ""
    raise ValueError(
        f"epilogue {problem.name}: operand {key} of shape {array.shape} is no scalar, row vector "
        f"({n},), column vector ({m}, 1) or tile ({m}, {n}){batch}{hint}"
    )


def _convert(problem: _Problem, key: str, x: np.ndarray, floats: DType) -> np.ndarray:
    """The operand in a dtype that the kernel loads."""
    kind, acc = x.dtype.kind, problem.acc
    where = f"epilogue {problem.name}: operand {key}"
    if acc.kind == "c":
        if kind not in "biufc":
            raise TypeError(f"{where} has dtype {x.dtype}")
        return operands.convert(x, np.dtype(acc.name))
    if operands.is_extended(x.dtype) or kind == "f":
        if x.dtype.itemsize > floats.size or x.dtype.name not in DTYPES or not x.dtype.isnative:
            return x.astype(floats.name)
        return x
    if kind in "iub":
        if acc is int64:
            return operands.convert(x, np.dtype(np.int64)) if x.dtype.itemsize < 8 else x
        if x.dtype.itemsize > 4 or x.dtype == np.uint32:
            if x.size and (x.max() > INT32.max or x.min() < INT32.min):
                raise ValueError(f"{where} holds integers beyond int32: {x.min()} to {x.max()}")
            return x.astype(np.int32)
        return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))
    raise TypeError(f"{where} has dtype {x.dtype}, an epilogue of a {acc} product takes no such")


def _kind(x: np.ndarray) -> str:
    tall = x.ndim > 1 and x.shape[-2] > 1
    wide = x.ndim > 0 and x.shape[-1] > 1
    return {(0, 0): "scalar", (0, 1): "row", (1, 0): "column", (1, 1): "tile"}[tall, wide]


def _uniform_step(x: np.ndarray, batch: tuple[int, ...]) -> tuple[np.ndarray, int]:
    """(x with one step between consecutive matrices of the batch, that step)."""
    if not batch or x.ndim < 3 or all(s == 1 for s in x.shape[:-2]):
        return x, 0
    full = np.broadcast_to(x, (*batch, *x.shape[-2:]))
    _, rows = execution.batches(batch, full.strides[:-2])
    if len(rows) > 1:
        full = np.ascontiguousarray(full)
        _, rows = execution.batches(batch, full.strides[:-2])
    return full, rows[0][1] if rows else 0


def _steps(x: np.ndarray) -> tuple[int, int]:
    row = x.strides[-2] if x.ndim > 1 and x.shape[-2] > 1 else 0
    return row, x.strides[-1] if x.ndim and x.shape[-1] > 1 else 0


def _same_view(x: np.ndarray, y: np.ndarray) -> bool:
    return (x.shape, x.strides, x.itemsize) == (y.shape, y.strides, y.itemsize) and (
        x.ctypes.data == y.ctypes.data
    )


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


def output_types(bound: Bound, each, acc: DType, specs, common: np.dtype):
    """name -> NumPy dtype of each output, and the values themselves."""
    nodes, values = bound.epilogue.trace(each)
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
                raise TypeError(f"epilogue {bound.epilogue.name}: {key} is a log-sum-exp of "
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


def _output_shape(problem: _Problem, value: Value) -> tuple[int, ...]:
    width = problem.lanes
    if value.kind == "tile":
        return problem.shape(width * len(value.nodes))
    if value.kind == "row":
        return problem.shape(-(-width // value.block) if value.block else 1)
    rows = -(-problem.m // value.block) if value.block else 1
    return (*problem.batch, rows, width)


def _check_given(problem: _Problem, key: str, given: Any, shape, dtype: np.dtype) -> None:
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
    a, packed_a = _operand_of(a, common)
    b, packed_b = _operand_of(b, common)
    shape = (*a.shape[:-1], b.shape[-1])
    problem = _Problem(epilogue.name, shape, acc, epilogue.pairs)
    inner = (*a.shape[:-2], a.shape[-1])
    side_a = packed_a and _Side("a", packed_a, (*inner, a.shape[-2]), acc)
    side_b = packed_b and _Side("b", packed_b, (*inner, b.shape[-1]), acc)
    sides = [side for side in (side_a, side_b) if side]
    statistics = {name: x for side in sides for name, x in side.statistics.items()}
    bound = Bound(epilogue, {
        key: _statistic(epilogue.name, key, x, statistics) if isinstance(x, str) else x
        for key, x in bound.operands.items()
    })  # fmt: skip
    each = {key: 2 if key in epilogue.unpacked else 1 for key in bound.operands}
    fitted = {key: _fit_operand(problem, key, x, each[key]) for key, x in bound.operands.items()}
    floats = float_type(acc, [
        DTYPES[x.dtype.name] for x in fitted.values() if x.dtype.name in DTYPES and x.ndim
    ])  # fmt: skip
    arrays = {key: _convert(problem, key, x, floats) for key, x in fitted.items()}
    specs = []
    for key, x in arrays.items():
        kind = _kind(x)
        if kind == "row" and x.strides[-1] != x.itemsize:
            x = arrays[key] = np.ascontiguousarray(x)
        unit = kind != "tile" or x.strides[-1] == x.itemsize
        specs.append((key, Operand(kind, DTYPES[x.dtype.name], unit, each[key])))
    dtypes, values = output_types(bound, each, acc, specs, common)
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
        direct = target.dtype.isnative and target.dtype.name in DTYPES
        if value.kind != "tile":
            direct = target.dtype == dtypes[key] and target.strides[-1] == target.itemsize
        else:
            direct = (
                direct
                and targets.element_type(target.dtype).kind != "c"
                or (target.dtype.name == acc.name)
            )
        others = [x for k, x in written.items() if k != key]
        # The kernel steps through the batch evenly.
        direct = direct and len(execution.batches(problem.batch, target.strides[:-2])[1]) < 2
        if not direct or operands.writes_twice(target) or operands.overlaps(target, a, b, *others):
            target = np.empty(target.shape, dtypes[key])
        written[key] = target
    for key, x in arrays.items():
        for target in written.values():
            full = (
                np.broadcast_to(x, target.shape)
                if x.ndim == target.ndim and x.shape == target.shape
                else x
            )
            if operands.overlaps(target, x) and not _same_view(full, target):
                arrays[key] = x = x.copy()
    wanted = tuple(
        (key, DTYPES[x.dtype.name],
         x.strides[-1] == x.itemsize or x.shape[-1] == 1)
        for key, x in written.items()
    )  # fmt: skip
    if all(x.size for x in written.values()):
        program = _program(epilogue, tuple(sorted(each.items())), acc, tuple(specs), wanted)
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


def _operand_of(x: Any, common: np.dtype) -> tuple[np.ndarray, Packed | None]:
    """(the array that the kernel packs, the program that changes it)."""
    if not isinstance(x, Packed):
        return x, None
    if x.operand is None:
        # Made by the program alone: the array lends its shape and type, and is never read.
        return np.broadcast_to(np.zeros(1, x.dtype or common), x.shape), x
    return x.operand, x


def _statistic(name: str, key: str, wanted: str, known: dict[str, np.ndarray]) -> np.ndarray:
    if wanted not in known:
        raise TypeError(
            f"epilogue {name}: operand {key} names the statistic {wanted!r}; the packing programs "
            f"give {', '.join(known) or 'none'}"
        )
    return known[wanted]


class _Side:
    """A packing program fitted to its operand: rows are k, columns N (or M, for A, turned)."""

    def __init__(self, side: str, packed: Packed, shape: tuple[int, ...], acc: DType):
        bound = packed.program
        self.name = bound.epilogue.name
        where = f"packing program {self.name}"
        if acc.kind != "f":
            raise TypeError(f"{where}: packing programs need a float accumulator, not {acc}")
        if side == "a" and bound.epilogue.pairs:
            raise TypeError(f"{where}: pairs of columns are adjacent in B only, not along A's rows")
        self.turned = side == "a"
        self.problem = _Problem(self.name, shape, acc, bound.epilogue.pairs)
        each = {key: 2 if key in bound.epilogue.unpacked else 1 for key in bound.operands}
        specs: list[tuple[str, Operand]] = []
        self.arrays: dict[str, np.ndarray] = {}
        for key, x in bound.operands.items():
            array, group, nibbles = self._fit(key, x, each[key])
            array = _convert(self.problem, key, array, acc)
            kind = _kind(array)
            if kind == "row" and array.strides[-1] != array.itemsize:
                array = np.ascontiguousarray(array)
            if group > 1 and kind in ("row", "scalar"):
                group = 1
            unit = kind != "tile" or array.strides[-1] == array.itemsize
            self.arrays[key] = array
            specs.append(
                (key, Operand(kind, DTYPES[array.dtype.name], unit, each[key], group, nibbles))
            )
        self.program = self._program(bound, each, specs, acc)
        if packed.operand is None and self.program.reads_acc:
            raise TypeError(f"{where} reads the operand, and Packed was given a shape only")

    def _fit(self, key: str, x: Any, each: int) -> tuple[np.ndarray, int, str]:
        """(the operand, rows that share one of it, form of its nibbles)."""
        problem = self.problem
        k, columns = problem.m, problem.lanes * each
        if isinstance(x, Nibbles):
            want = (*problem.batch, -(-k // 2), columns)
            if self.turned or x.values.shape[-2:] != want[-2:]:
                raise ValueError(
                    f"packing program {self.name}: nibbles {key} of shape {x.values.shape} do not "
                    f"fill {want[-2:]} bytes of B"
                )
            return x.values, 2, "signed" if x.signed else "unsigned"
        array = operands.as_array(x)
        if self.turned:
            array = array[:, None] if array.ndim == 1 else array
            array = array.swapaxes(-1, -2) if np.ndim(x) > 1 else array
        rows = array.shape[-2] if array.ndim > 1 else 1
        if rows not in (1, k) and rows and k % rows == 0 and array.shape[-1] in (1, columns):
            return array, k // rows, ""
        return _fit_operand(problem, key, array, each), 1, ""

    def _program(self, bound: Bound, each, specs, acc: DType) -> Program:
        nodes, values = bound.epilogue.trace(each)
        names = [name for name, _ in specs]
        swap = {"row_index": "column_index", "column_index": "row_index"} if self.turned else {}
        nodes = tuple(
            (op, names.index(rest[0]), rest[1]) if op == "operand" else (swap.get(op, op), *rest)
            for op, *rest in nodes
        )
        nodes, place = pruned(nodes, [i for value in values.values() for i in value.nodes])
        partial = "row" if self.turned else "column"
        main, *others = values.items()
        if main[1].kind != "tile" or (len(main[1].nodes) == 2) != bound.epilogue.pairs:
            raise TypeError(f"packing program {self.name}: {main[0]} must be the packed element")
        operand_specs = tuple(spec for _, spec in specs)
        kinds = types_of(nodes, operand_specs, acc)
        outputs = [Output("tile", tuple(place[i] for i in main[1].nodes), acc)]
        self.statistics: dict[str, np.ndarray] = {}
        self.results: dict[str, np.ndarray] = {}
        self.written: list[np.ndarray] = [np.empty(0, acc.name)]
        for key, value in others:
            if value.kind != partial or value.block or value.combine == "log_sum_exp":
                raise TypeError(
                    f"packing program {self.name}: {key} must be per_{partial}(x, 'add', 'max' or "
                    "'max_abs', None), a statistic over all of k"
                )
            kind = acc if kinds[value.nodes[0]] == FLOAT else int32
            outputs.append(Output("column", (place[value.nodes[0]],), kind, value.combine, 0))
            shape = (*self.problem.batch, 1, self.problem.lanes)
            array = np.zeros(shape, kind.name)
            self.written.append(array)
            self.results[key] = array.swapaxes(-1, -2) if self.turned else array
            self.statistics[key] = self.results[key]
        return Program(acc, bound.epilogue.pairs, nodes, operand_specs, tuple(outputs))


def _fill(table, batch, program: Program, arrays, written, rows: int) -> None:
    """A program's part of the operand table; table: slots, pointers by slot, what to keep."""
    slots, pointers, kept = table
    count = int(np.prod(batch, dtype=np.int64))
    for i, (x, operand) in enumerate(zip(arrays, program.operands, strict=True)):
        x, step = _uniform_step(x, batch)
        kept.append(x)
        at = program.slot(i)
        slots[at : at + SLOTS] = (x.ctypes.data, *_steps(x), step)
        pointers[at] = x, operand.dtype
    for o, (x, output) in enumerate(zip(written, program.outputs, strict=True)):
        if x.ndim < 2:
            continue  # the packed element itself
        at = program.output_slot(o)
        _, step = _uniform_step(x, batch)
        state = np.empty(0, np.uint8)
        steps = (0, 0)
        if output.kind == "row":
            parts = 2 if output.combine == "log_sum_exp" else 1
            state = np.empty((count, rows, parts * CHAINS), output.dtype.name)
            steps = state.strides[1], state.strides[0]
        kept.append(state)
        slots[at : at + OUTPUT_SLOTS] = (
            x.ctypes.data, x.strides[-2], x.strides[-1], step, state.ctypes.data, *steps,
        )  # fmt: skip
        pointers[at] = x, output.dtype
        pointers[at + 4] = state, output.dtype


def _run(problem, a, b, program: Program, arrays, written, sides, threads_, kernel) -> None:
    acc, batch = problem.acc, problem.batch
    slots = np.zeros(program.end_of_all, np.int64)
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
        and home.dtype.name == acc.name
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
    extra: Any = slots
    if plan.level == "reference":
        from gemm.backends.reference.run import pointer

        extra = Table(
            [pointer(*pointers[i]) if i in pointers else int(x) for i, x in enumerate(slots)]
        )
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
        return np.broadcast_to(x if mixed else operands.convert(x, common), shape)
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
    batch = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    # A packing program widens integers to floats, and a matrix it makes has the other's type.
    known = [x.dtype for x in (a, b) if x.dtype is not None]
    floats = [d for d in known if d.kind not in "iub" or operands.is_extended(d)]
    packs = isinstance(a, Packed) or isinstance(b, Packed)
    mixed = not packs and {d.name for d in known} == {"int8", "uint8"}
    common = np.dtype(np.int32) if mixed else operands.common_dtype(*(packs and floats or known))
    if not operands.is_engine_dtype(common):
        raise TypeError(f"matmul: no kernel for dtype {common} (of {a.dtype} and {b.dtype})")
    a, b = (_ready(x, common, batch, mixed) for x in (a, b))
    results = fused(
        a, b, bound, out, accumulate=options["accumulate"], threads_=options["threads"],
        kernel=options["kernel"], common=common,
    )  # fmt: skip
    return next(iter(results.values())) if len(results) == 1 else results
