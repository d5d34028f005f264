"""`gemm.matmul(a, b, epilogue=)` of device arrays: one launch, whose write-back is the program.

Operands, outputs and results are fitted as on the host (fitting.py), on stand-ins that have the
shape, the steps and the type of a device array and no memory of their own. What was decided for a
call is kept by its looks; a call like one before fills in addresses and numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gemm import device as products
from gemm import execution, targets
from gemm.microkernels.dtypes import DType
from gemm.microkernels.vocabulary import storage

from .contract import Bound, bind
from .fitting import Problem, as_number, convert, fit_operand, kind_of
from .job import Job, bits
from .program import Operand, Program, float_type

KEPT = 512
NUMBERS = (int, float, np.number, np.bool_)
_known: dict[Any, Decided] = {}


@dataclass(frozen=True)
class Decided:
    """What a call of these looks runs. outputs: (name, shape, type); scratch: bytes of the states
    of partials, by slot; plain: the program is the identity, and the product has none."""

    outputs: tuple[tuple[str, tuple[int, ...], DType], ...]
    job: Job | None
    launch: Any
    device: Any
    scratch: tuple[tuple[int, int], ...] = ()
    plain: bool = False


def stand_in(view: Any) -> np.ndarray:
    """An array with the shape, steps and type of a device array. Its elements are never read."""
    dtype = np.dtype(storage(view.dtype))
    return np.lib.stride_tricks.as_strided(np.empty(1, dtype), view.shape, view.strides)


def matmul(backend: Any, a: Any, b: Any, out: Any, program: Any, *, precision: Any = None,
           fast: bool = False) -> Any:  # fmt: skip
    """The main output, or a dict of all of them by name; device arrays of a's kind.

    a (..., M, K), b (..., K, N): device arrays; out: a device array for the main output, or a dict
    by output name, none of which overlaps a or b. Operands are device arrays or numbers. The
    numerics and the errors are those of the host, whose dtypes an operand must have already:
    nothing is converted or copied. precision, fast: see gemm/device.
    """
    bound = bind(program)
    given = out if isinstance(out, dict) else {} if out is None else {"": out}
    at_a, at_b, looks, producers = backend.glance(a, b)
    addresses: dict[str, int] = {}
    key: list[Any] = [bound.epilogue, looks, precision, fast]
    for name, x in bound.operands.items():
        if isinstance(x, NUMBERS) or (isinstance(x, np.ndarray) and x.ndim == 0):
            key += (name, isinstance(x, float | np.floating) or np.asarray(x).dtype.kind == "f")
            continue
        if isinstance(x, str):
            raise TypeError(
                f"epilogue {bound.epilogue.name}: operand {name} names a statistic of packing, "
                "which runs on the CPU"
            )
        addresses[name], _, seen, more = backend.glance(x, x)
        key += (name, seen)
        producers += more
    places: dict[str, int] = {}
    for name, x in given.items():
        places[name], _, seen, more = backend.glance(x, x)
        key += (("out", name), seen)
        producers += more
    found = _known.get(tuple(key))
    if found is None:
        found = _decide(backend, a, b, given, bound, precision, fast)
        if len(_known) >= KEPT:
            _known.clear()
        _known[tuple(key)] = found
    if found.plain:
        target = next(iter(given.values()), None)
        name = found.outputs[0][2].name
        return products.matmul(backend, a, b, target, dtype=name, precision=precision, fast=fast)
    if found.outputs[0][2].kind == "c":
        arrays = [x for name, x in bound.operands.items() if name in addresses]
        backend.refuse_conjugates(a, b, *arrays)
    numbers = [] if found.job is None else found.job.numbers
    values = [(at, _number(bound, name, dtype)) for at, (_, name), dtype in numbers]
    main = found.outputs[0][0]
    if "" in given:
        given, places = {main: given[""]}, {main: places[""]}
    results = {}
    for name, shape, dtype in found.outputs:
        results[name] = given.get(name)
        if name not in given:
            results[name], places[name] = backend.empty(a, shape, dtype)
    stream = backend.enter(a, found.device)
    for producer in producers:
        if producer != stream:
            found.device.wait(stream, producer)
    if found.job is not None:
        _launch(found, at_a, at_b, addresses, places, values, stream)
    return results if len(results) > 1 else results[main]


def matmul_of_host(backend: Any, a: Any, b: Any, out: Any, program: Any, **options: Any) -> Any:
    """`matmul` of host arrays on the default device: copied in, computed, copied out."""
    bound = bind(program)

    def there(x: Any) -> Any:
        return backend.upload(x) if isinstance(x, np.ndarray) and x.ndim else x

    moved = Bound(bound.epilogue, {key: there(x) for key, x in bound.operands.items()})
    found = matmul(backend, backend.upload(a), backend.upload(b), None, moved, **options)
    many = isinstance(found, dict)
    results = {key: x.copy_to_host() for key, x in (found if many else {"": found}).items()}
    given = out if isinstance(out, dict) else {} if out is None else {next(iter(results)): out}
    for key, x in given.items():
        if key not in results or x.shape != results[key].shape or x.dtype != results[key].dtype:
            known = ", ".join(f"{k} {r.dtype} {r.shape}" for k, r in results.items())
            raise ValueError(f"out {key} is {x.dtype} {x.shape}, the results are {known}")
    for key, x in given.items():
        np.copyto(x, results[key])
        results[key] = x
    return results if many else results[""]


def _launch(found: Decided, at_a, at_b, addresses, places, values, stream) -> None:
    job = found.job
    assert job is not None
    slots = job.template.copy()
    for slot, (_, name), _ in job.addresses:
        slots[slot] = places[name[1]] if isinstance(name, tuple) else addresses[name]
    for slot, value in values:
        slots[slot] = value
    taken = []
    try:
        for slot, nbytes in found.scratch:
            slots[slot] = found.device.allocate(nbytes, stream)
            taken.append(slots[slot])
        found.launch(at_a, at_b, 0, stream, 0, 0, job.pack(*slots))
    finally:
        for address in taken:
            found.device.free(address, stream)


def _number(bound: Bound, name: str, dtype: DType) -> int:
    x = bound.operands[name]
    if dtype.kind == "i":
        limit = 1 << dtype.bits - 1
        if not -limit <= int(x) < limit:
            raise ValueError(
                f"epilogue {bound.epilogue.name}: operand {name} = {x} is beyond {dtype}"
            )
        return bits(int(x), dtype)
    return bits(float(x), dtype)


def _decide(backend, a, b, given, bound: Bound, precision, fast: bool) -> Decided:
    epilogue = bound.epilogue
    va, vb = backend.view(a), backend.view(b)
    promoted, batch = _checked(va, vb, precision)
    common = products.DTYPES["bfloat16"] if promoted.name.startswith("float8") else promoted
    acc = products.accumulator(promoted, common)
    m, k, n = va.shape[-2], va.shape[-1], vb.shape[-1]
    problem = Problem(epilogue.name, (*batch, m, n), acc, epilogue.pairs)
    laid = lay_out(
        backend.view, problem, bound, {key: backend.view(x) for key, x in given.items()}, common,
        va.device,
    )  # fmt: skip
    device = backend.device(va.device)
    if laid.program is None:
        return Decided(laid.outputs, None, None, device)
    if laid.job is None:
        return Decided(laid.outputs, None, None, device, plain=True)
    launch = _prepared(backend, device, va, vb, batch, acc, laid.program, precision, fast, k)
    return Decided(laid.outputs, laid.job, launch, device, laid.scratch)


class Laid(NamedTuple):
    """Outputs (name, shape, type), program (None: nothing to compute), its table (None: the
    program is the identity), bytes of the states of partials by slot."""

    outputs: tuple[tuple[str, tuple[int, ...], DType], ...]
    program: Program | None
    job: Job | None
    scratch: tuple[tuple[int, int], ...] = ()


def lay_out(see: Any, problem: Problem, bound: Bound, given: dict[str, Any], common: DType,
            index: int) -> Laid:  # fmt: skip
    """The program of a bound epilogue on a product, and its table.

    see(operand): its view, in the product's shape; given: views of outputs by name, '' for the
    main one; common: type of outputs that name none; index: the device of the operands.
    """
    from .run import _check_given, _output_shape, _output_types, _program

    epilogue, acc = bound.epilogue, problem.acc
    each = {key: 2 if key in epilogue.unpacked else 1 for key in bound.operands}
    arrays = {
        key: _operand(see, problem, key, x, each[key], index) for key, x in bound.operands.items()
    }
    floats = float_type(acc, [targets.element_type(x.dtype) for x in arrays.values() if x.ndim])
    specs = []
    for key, x in arrays.items():
        if x.ndim == 0:
            if acc.kind == "c":
                raise TypeError(
                    f"epilogue {epilogue.name}: operand {key} of a {acc} product on a device must "
                    "be a device array, of shape (1, 1) for a single number"
                )
            x = arrays[key] = as_number(x, acc, floats)
            specs.append((key, Operand("number", targets.element_type(x.dtype), True, each[key])))
            continue
        if convert(problem, key, np.empty(0, x.dtype), floats).dtype != x.dtype:
            raise TypeError(
                f"epilogue {epilogue.name}: operand {key} has dtype {x.dtype}; behind a {acc} "
                "product on a device nothing is converted, convert it first"
            )
        kind = kind_of(x)
        unit = kind not in ("row", "tile") or x.strides[-1] == x.itemsize
        specs.append((key, Operand(kind, targets.element_type(x.dtype), unit, each[key])))
    of_each = tuple(sorted(each.items()))
    host = np.dtype(storage(common))
    dtypes, values = _output_types(epilogue, of_each, acc, tuple(specs), host)
    main = next(iter(values))
    given = {main: given[""]} if "" in given else given
    unknown = [key for key in given if key not in values]
    if unknown:
        raise TypeError(f"epilogue {epilogue.name} has no output {', '.join(unknown)}; "
                        f"it has {', '.join(values)}")  # fmt: skip
    outputs, written = [], {}
    for key, value in values.items():
        shape = _output_shape(problem, value)
        if key in given:
            x = stand_in(_aligned(problem, key, given[key]))
            _check_given(problem, key, x, shape, dtypes[key])
            if value.kind != "tile" and (x.dtype != dtypes[key] or x.strides[-1] != x.itemsize):
                raise TypeError(
                    f"epilogue {epilogue.name}: out for the partials {key} must be {dtypes[key]} "
                    f"with adjacent columns, not {x.dtype} with strides {x.strides}"
                )
        else:
            dtype = value.dtype if value.dtype is not None else dtypes[key]
            x = stand_in(_fresh(shape, targets.element_type(np.dtype(dtype))))
        _even(problem, key, x)
        written[key] = x
        outputs.append((key, shape, targets.element_type(x.dtype)))
    wanted = tuple(
        (key, targets.element_type(x.dtype), x.strides[-1] == x.itemsize or x.shape[-1] == 1)
        for key, x in written.items()
    )
    if not all(x.size for x in written.values()):
        return Laid(tuple(outputs), None, None)
    program = _program(epilogue, of_each, acc, tuple(specs), wanted)
    if program.is_identity:
        return Laid(tuple(outputs), program, None)
    job = Job(problem, program, 1, None)
    job.lay_out(0, program, arrays, written, 0)
    # States of partials along rows are in shared memory.
    scratch = tuple(
        (slot, math.prod(shape) * dtype.size) for slot, shape, dtype in job.states if shape[1]
    )
    return Laid(tuple(outputs), program, job, scratch)


def _checked(va, vb, precision) -> tuple[DType, tuple[int, ...]]:
    """(common type of the operands, batch shape), or an error."""
    if len(va.shape) < 2 or len(vb.shape) < 2 or va.shape[-1] != vb.shape[-2]:
        raise ValueError(
            "matmul with a program takes matrices (..., M, K) and (..., K, N), got shapes "
            f"{va.shape} and {vb.shape}"
        )
    if va.device != vb.device:
        raise ValueError("operands and out must be on one device")
    promoted = products.result_type(va.dtype, vb.dtype)
    if precision not in products.PRECISIONS:
        raise ValueError(f"precision={precision!r}: expected one of {products.PRECISIONS}")
    if precision and promoted.name != "float32":
        raise TypeError(f"precision={precision!r} is for float32 operands, not {promoted}")
    return promoted, products.batch_shape(va.shape[:-2], vb.shape[:-2])


def _fresh(shape, dtype: DType):
    from types import SimpleNamespace

    strides, step = [], dtype.size
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return SimpleNamespace(shape=shape, strides=tuple(reversed(strides)), dtype=dtype)


def _operand(see, problem: Problem, key: str, x: Any, each: int, index: int) -> np.ndarray:
    """An operand's stand-in, fitted to the problem; a number as it is."""
    if isinstance(x, NUMBERS) or (isinstance(x, np.ndarray) and x.ndim == 0):
        return np.asarray(x)
    view = see(x)
    if view.device != index:
        raise ValueError(f"epilogue {problem.name}: operand {key} is on another device")
    array = fit_operand(problem, key, stand_in(_aligned(problem, key, view)), each)
    _even(problem, key, array)
    return array if array.ndim else array.reshape(1, 1)


def _aligned(problem: Problem, key: str, view: Any) -> Any:
    size = view.dtype.real.size
    if view.address % size or any(s % size for s in view.strides):
        raise ValueError(
            f"epilogue {problem.name}: {key} is not aligned to its {size}-byte elements"
        )
    return view


def _even(problem: Problem, key: str, x: np.ndarray) -> None:
    """ValueError where no one step leads from each matrix of the batch to the next."""
    if x.ndim > 2:
        full = np.broadcast_to(x, (*problem.batch, *x.shape[-2:]))
        if len(execution.batches(problem.batch, full.strides[:-2])[1]) > 1:
            raise ValueError(
                f"epilogue {problem.name}: {key} of shape {x.shape} has uneven batch steps "
                f"{x.strides[:-2]}; copy it first"
            )


def _prepared(backend, device, va, vb, batch, acc: DType, program: Program, precision, fast, k):
    """The launch of a product whose write-back is the program."""
    m, n = va.shape[-2], vb.shape[-1]
    a_steps, b_steps = (products.broadcast(batch, v) for v in (va, vb))
    rows = products.merged(batch, a_steps, b_steps, [0] * len(batch))
    if len(rows) > 2:
        raise ValueError(
            f"epilogue on device arrays: batch axes {batch} with steps {tuple(a_steps)} and "
            f"{tuple(b_steps)} do not merge into two"
        )
    a = products.Matrix(m, k, va.strides[-2], va.strides[-1], va.dtype, va.address % 16 == 0)
    b = products.Matrix(n, k, vb.strides[-1], vb.strides[-2], vb.dtype, vb.address % 16 == 0)
    for name, v in (("a", va), ("b", vb)):
        size = v.dtype.real.size
        if v.address % size or any(s % size for s in v.strides):
            raise ValueError(f"{name} is not aligned to its {size}-byte elements")
    steps = tuple((extent, x, y, z) for extent, x, y, z in rows)
    s = products.Signature(
        a, b, acc, n * acc.size, False, steps, precision, fast, False, program
    )  # fmt: skip
    blocks = -(-m // 32) * -(-n // 32) * s.count
    if blocks > products.LARGEST_GRID:
        raise ValueError(f"a result of {m} x {n} in a batch of {s.count} is beyond one launch")
    return products.prepare(backend, device, s)
