"""Convolutions of device arrays: call -> geometry -> launches on the caller's current stream.

What a call's looks (shapes, steps, types, alignments, options) decide is kept, so that a call
like one before fills in addresses. Refusals are in the words of the host's functions.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm import device as products
from gemm.epilogues import bind, stock
from gemm.epilogues.contract import Bound
from gemm.epilogues.fitting import Problem
from gemm.epilogues.on_device import NUMBERS, lay_out
from gemm.epilogues.on_device import _number as number
from gemm.microkernels.dtypes import DTYPES, DType
from gemm.microkernels.vocabulary import storage

from . import device_plan, geometry, layouts, operands
from .geometry import Axis

KEPT = 512
_known: dict[Any, Decided] = {}
_prepared: dict[Any, tuple] = {}  # the same of calls without an epilogue, ready to run
WORDS = ("auto", "implicit", "direct")


@dataclass(frozen=True)
class Decided:
    """What a call runs. shape, dtype: of the result as its memory lies; turn: the order in which
    the caller sees its axes, None as they lie; launch: None where nothing is computed; space:
    bytes of a workspace that `copy` brings to the result, 0 for none; tiles: (name, bytes, copy)
    of operands that are brought into rows first."""

    shape: tuple[int, ...]
    dtype: DType
    turn: tuple[int, ...] | None
    device: Any
    launch: Any = None
    job: Any = None
    space: int = 0
    copy: Any = None
    tiles: tuple = ()

    def run(self, x: int, w: int, out: int, given: dict[str, int], values, stream: int) -> None:
        """On arrays at these addresses; given: of the program's operands; values: its numbers."""
        taken = []

        def take(nbytes: int) -> int:
            taken.append(self.device.allocate(nbytes, stream))
            return taken[-1]

        try:
            target = take(self.space) if self.space else out
            extra = 0
            if self.job is not None:
                given = dict(given)
                for name, nbytes, copy in self.tiles:
                    space = take(nbytes)
                    copy(given[name], space, stream)
                    given[name] = space
                slots = self.job.template.copy()
                for slot, (_, name), _ in self.job.addresses:
                    slots[slot] = target if isinstance(name, tuple) else given[name]
                for slot, value in values:
                    slots[slot] = value
                extra = self.job.pack(*slots)
            self.launch(x, w, target, stream, 0, 0, extra)
            if self.space:
                self.copy(target, out, stream)
        finally:
            for space in taken:
                self.device.free(space, stream)

    def new(self, backend: Any, like: Any) -> tuple[Any, int]:
        """(an array for the result, of the kind of `like`; its address)."""
        out, at = backend.empty(like, self.shape, self.dtype)
        return (out if self.turn is None else backend.turned(out, self.turn)), at

    def prepared(self, backend: Any, like: Any, fresh: bool) -> tuple:
        """(make(), run(x, w, out, stream, 0, 0, bias), device, whether values are complex) of a
        call whose program reads a bias at most, with as little between as there can be."""
        make = run = None
        if fresh:
            make = backend.maker(like, self.shape, self.dtype, self.turn)
            if make is None:
                make = functools.partial(self.new, backend, like)
        if self.launch is not None:
            run = self.launch
            if self.space or self.job is not None:

                def run(x, w, out, stream, scale_a, scale_b, bias):
                    self.run(x, w, out, {"bias": bias}, (), stream)

        return make, run, self.device, self.dtype.kind == "c"


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def _with_bias(name: str, bias: Any, epilogue: Any) -> Bound | None:
    """The epilogue with the bias among its operands, None where there is neither."""
    if epilogue is None:
        return None if bias is None else stock.bias(bias=bias)
    bound = bind(epilogue)
    if bias is None:
        return bound
    if "bias" not in bound.epilogue.operands or "bias" in bound.operands:
        raise TypeError(f"{name}: the epilogue takes no operand 'bias' for the bias given")
    return Bound(bound.epilogue, {**bound.operands, "bias": bias})


def _keep(known: dict, key: Any, value: Any) -> None:
    if len(known) >= KEPT:
        known.clear()
    known[key] = value


def perform(
    backend: Any, x: Any, w: Any, bound: Bound | None, out: Any, key: tuple, decide: Any,
    ready: Any = None,
) -> Any:  # fmt: skip
    """The result of a call: by what was decided for one like it, else by `decide`.

    key: what the decision depends on beside the arrays' looks; decide(x, w, bound, operands of
    the program by name, out): called with views, gives `Decided`; ready: a key of `_prepared`.
    """
    at_x, at_w, looks, producers = backend.glance(x, w)
    wanted: list[Any] = [key, looks, type(x)]
    given: dict[str, int] = {}
    if bound is not None:
        wanted.append(bound.epilogue)
        for name, value in bound.operands.items():
            if isinstance(value, NUMBERS) or (isinstance(value, np.ndarray) and value.ndim == 0):
                is_float = isinstance(value, float | np.floating)
                wanted.append((name, is_float or np.asarray(value).dtype.kind == "f"))
                continue
            given[name], _, seen, more = backend.glance(value, value)
            wanted.append((name, seen))
            producers += more
    at_out = 0
    if out is not None:
        at_out, _, seen, more = backend.glance(out, out)
        wanted.append(("out", seen))
        producers += more
    made = tuple(wanted)
    found = _known.get(made)
    if found is None:
        views = {name: backend.view(bound.operands[name]) for name in given}  # type: ignore[union-attr]
        found = decide(backend.view(x), backend.view(w), bound, views,
                       None if out is None else backend.view(out))  # fmt: skip
        _keep(_known, made, found)
    if ready is not None:
        _keep(_prepared, ready, found.prepared(backend, x, out is None))
    if found.dtype.kind == "c":
        arrays = [] if bound is None else [bound.operands[operand] for operand in given]
        backend.refuse_conjugates(x, w, *arrays)
    values = []
    if bound is not None and found.job is not None:
        values = [(at, number(bound, name, dtype)) for at, (_, name), dtype in found.job.numbers]
    if out is None:
        out, at_out = found.new(backend, x)
    stream = backend.enter(x, found.device)
    for producer in producers:
        if producer != stream:
            found.device.wait(stream, producer)
    if found.launch is not None:
        found.run(at_x, at_w, at_out, given, values, stream)
    return out


def convolution(backend: Any, name: str, rank: int, x: Any, w: Any, bias: Any, stride: Any,
                padding: Any, dilation: Any, groups: int, layout: Any, epilogue: Any,
                algorithm: str, out: Any, x_zero_point: Any = None,
                w_zero_point: Any = None) -> Any:  # fmt: skip
    """`gemm.conv1d` .. `conv3d` of device arrays; the result is of x's kind, and channels last
    where x is seen channels first and lies channels last."""
    ready = None
    if x_zero_point is not None or w_zero_point is not None:
        raise TypeError(f"{name}: zero points are for arrays of the host only")
    if epilogue is None:
        at_x, at_w, looks, producers = backend.glance(x, w)
        at_bias = at_out = 0
        more: Any = None
        if bias is not None or out is not None:
            at_bias, at_out, more, streams = backend.glance(
                out if bias is None else bias, bias if out is None else out
            )
            producers += streams
        ready = (name, looks, type(x), more, bias is None, out is None, stride, padding, dilation,
                 groups, layout, algorithm)  # fmt: skip
        try:
            found = _prepared.get(ready)
        except TypeError:  # a list among the options
            ready = found = None
        if found is not None:
            make, run, device, is_complex = found
            if is_complex:
                backend.refuse_conjugates(x, w, *([] if bias is None else [bias]))
            if out is None:
                out, at_out = make()
            current = backend.enter(x, device)
            for producer in producers:
                if producer != current:
                    device.wait(current, producer)
            if run is not None:
                run(at_x, at_w, at_out, current, 0, 0, at_bias)
            return out
    if algorithm not in WORDS:
        raise ValueError(f"{name}: on a device algorithm must be one of {WORDS}, got {algorithm!r}")
    bound = _with_bias(name, bias, epilogue)
    options = _plain(stride), _plain(padding), _plain(dilation), groups, _plain(layout), algorithm

    def decide(vx, vw, bound, views, vo):
        operands.check_rank(name, "x", vx, rank + 2)
        order = layouts.parse(name, layout, rank)
        operands.check_rank(name, "w", vw, rank + 2)
        source, taken = _seen(vx, order.input), _seen(vw, order.filter)
        operands.check_groups(name, groups, taken.shape[0])
        operands.check_channels(name, "x", source.shape[1], taken.shape[1], groups)
        shape = geometry.forward(name, source.shape[2:], taken.shape[2:], stride, padding, dilation)
        if algorithm == "direct" and not shape.pointwise:
            raise ValueError(f"{name}: algorithm 'direct' needs a 1x1 kernel without padding")
        return decided(backend, name, source, taken, shape.axes(), groups, order.output, bound,
                       views, vo, backend.turns(x))  # fmt: skip

    return perform(backend, x, w, bound, out, (name, *options), decide, ready)


def _seen(view: Any, order: tuple[int, ...]) -> Any:
    """A view with its axes in this order."""
    return view._replace(
        shape=tuple(view.shape[i] for i in order), strides=tuple(view.strides[i] for i in order)
    )


def result_types(name: str, x: DType, w: DType) -> tuple[DType, DType]:
    """(what the operands are multiplied in, type of the result)."""
    if x.name in ("int8", "uint8") and w.name in ("int8", "uint8"):
        return (x if x == w else DTYPES["int32"]), DTYPES["int32"]
    try:
        common = products.result_type(x, w)
    except TypeError:
        raise TypeError(f"{name}: dtypes {x} and {w} have no common dtype") from None
    return common, common


def _check_alignment(name: str, **views: Any) -> None:
    for what, view in views.items():
        size = view.dtype.real.size
        if view.address % size or any(s % size for s in view.strides):
            raise ValueError(f"{name}: {what} is not aligned to its {size}-byte elements")


def _rows(view: Any, groups: int) -> Any:
    """(N, O, *outputs) as (N, *outputs, O) or, of several groups, (groups, N, *outputs, O / groups)
    without a copy."""
    rank = len(view.shape) - 2
    last = _seen(view, (0, *range(2, rank + 2), 1))
    if groups == 1:
        return last
    each, step = last.shape[-1] // groups, last.strides[-1]
    return last._replace(
        shape=(groups, *last.shape[:-1], each), strides=(each * step, *last.strides[:-1], step)
    )


def _flat(view: Any, groups: int) -> Any:
    """The pixels of `_rows` as one axis, None where they are not one step apart."""
    first = int(groups > 1)
    pixels, steps = view.shape[first:-1], view.strides[first:-1]
    rows = products.merged(pixels, steps)
    if len(rows) > 1:
        return None
    extent, step = rows[0] if rows else (1, view.shape[-1] * view.strides[-1])
    return view._replace(
        shape=(*view.shape[:first], extent, view.shape[-1]),
        strides=(*view.strides[:first], step, view.strides[-1]),
    )


def _fresh(view: Any, shape: tuple[int, ...], dtype: DType) -> Any:
    """A workspace (N, O, *outputs) whose filters are adjacent."""
    n, o, *outputs = shape
    steps = device_plan.contiguous((n, *outputs, o), dtype.size)
    return view._replace(
        address=0, shape=shape, strides=(steps[0], steps[-1], *steps[1:-1]), dtype=dtype
    )


def decided(backend, name: str, x, w, axes: tuple[Axis, ...], groups: int,
            order: tuple[int, ...], bound, views, out, turns: bool) -> Decided:  # fmt: skip
    """What a convolution of these views runs, every refusal before.

    x (N, C, *spatial), w (O, C / groups, *kernel); out: a view in the caller's order of axes,
    which `order` brings to (N, O, *outputs); views: of the program's operands; turns: whether a
    result may be given as a view of other memory order.
    """
    common, result = result_types(name, x.dtype, w.dtype)
    if common.kind not in "iufc":
        raise TypeError(f"{name}: x must be a numeric array, got dtype {x.dtype}")
    _check_alignment(name, x=x, w=w)
    if x.device != w.device or (out is not None and out.device != x.device):
        raise ValueError(f"{name}: operands and out must be on one device")
    device = backend.device(x.device)
    whole = (x.shape[0], w.shape[0], *(a.count for a in axes))
    acc = products.accumulator(common, result)
    program_of: Any = None
    if bound is not None:
        program_of = functools.partial(_program, name, whole, order, groups, acc, bound, views,
                                       common if common.kind in "fc" else acc, x)  # fmt: skip
        result = program_of(backend, device, None)[0]
    stored = layouts.stored(whole, order)
    turn = None
    if out is None:
        # Memory order: channels last where x lies so, else as the caller's axes stand.
        lies = tuple(range(len(whole)))
        if turns and order == lies and _lies_last(x):
            turn = (0, len(whole) - 1, *range(1, len(whole) - 1))
        shape = (whole[0], *whole[2:], whole[1]) if turn else stored
        steps = device_plan.contiguous(shape, result.size)
        if turn:
            steps = tuple(steps[i] for i in turn)
        target = x._replace(address=0, shape=stored, strides=steps, dtype=result)
    else:
        shape, target = out.shape, out
        if out.shape != stored:
            raise ValueError(f"{name}: out must have shape {stored}, got {out.shape}")
        kinds = np.dtype(storage(result)), np.dtype(storage(out.dtype))
        if bound is None and result != out.dtype and not np.can_cast(*kinds, "safe"):
            raise TypeError(
                f"{name}: a result of dtype {result} does not fit in out of dtype {out.dtype}"
            )
        _check_alignment(name, out=out)
        result = out.dtype
        acc = products.accumulator(common, result)
    if 0 in whole:
        return Decided(shape, result, turn, device)
    target = _seen(target, order)
    c_row = device_plan.rows_step(whole, target.strides)
    direct = c_row is not None and (target.strides[1] == result.size or whole[1] == 1)
    rows = target if direct else _fresh(target, whole, result)
    if c_row is None or not direct:
        c_row = whole[1] * result.size
    job, program, tiles = None, None, ()
    if program_of is not None:
        _, program, job, tiles = program_of(backend, device, rows)
    kept = acc if program is not None else result
    launch = device_plan.prepare(
        backend, device, x, w, c_row, rows.address % 16 == 0, axes, groups, kept, program
    )
    if direct:
        return Decided(shape, result, turn, device, launch, job, tiles=tiles)
    space = result.size * int(np.prod(whole, dtype=np.int64))
    of = [0, *range(2, len(whole)), 1]
    copy = device_plan.copier(
        backend, device, result, [whole[i] for i in of], [rows.strides[i] for i in of],
        [target.strides[i] for i in of],
    )  # fmt: skip
    return Decided(shape, result, turn, device, launch, job, space, copy, tiles)


def _lies_last(x: Any) -> bool:
    """Whether channels are adjacent in memory, and not all that there is."""
    return x.shape[1] > 1 and x.strides[1] == x.dtype.size and any(e > 1 for e in x.shape[2:])


def _program(name, whole, order, groups, acc, bound, views, common, like, backend, device, rows):
    """(type of the result, program, its table, copies of operands) of a bound epilogue.

    rows: the view (N, O, *outputs) that the kernel writes, None where only the type is asked for.
    """
    epilogue, tiles, fitted = bound.epilogue, [], dict(bound.operands)
    if bound.epilogue is stock.bias and views["bias"].shape != whole[1:2]:
        operands.check_bias(name, views["bias"], whole[1])
    for key, view in views.items():
        extent = int(np.prod(view.shape, dtype=np.int64))
        each = whole[1] // groups
        if extent == 1:
            fitted[key] = view._replace(shape=(1, 1), strides=(0, 0))
        elif view.shape == whole[1:2]:
            step = view.strides[0]
            lead = ((groups, 1, each), (each * step, 0, step)) if groups > 1 else (
                (1, each), (0, step)
            )  # fmt: skip
            fitted[key] = view._replace(shape=lead[0], strides=lead[1])
        elif view.shape == layouts.stored(whole, order):
            tile = _seen(view, order)
            flat = _flat(_rows(tile, groups), groups)
            if flat is None:
                space = _fresh(tile, whole, tile.dtype)
                of = [0, *range(2, len(whole)), 1]
                copy = device_plan.copier(
                    backend, device, tile.dtype, [whole[i] for i in of],
                    [tile.strides[i] for i in of], [space.strides[i] for i in of],
                )  # fmt: skip
                tiles.append((key, extent * tile.dtype.size, copy))
                flat = _flat(_rows(space, groups), groups)
            fitted[key] = flat
        else:
            raise ValueError(
                f"{name}: operand {key} of the epilogue must be one number, one a filter "
                f"({whole[1]},) or of the result's shape {layouts.stored(whole, order)}, got "
                f"{view.shape}"
            )
    pixels = whole[0] * int(np.prod(whole[2:], dtype=np.int64))
    shape = (pixels, whole[1]) if groups == 1 else (groups, pixels, whole[1] // groups)
    problem = Problem(epilogue.name, shape, acc, epilogue.pairs)
    given = {} if rows is None else {"": _flat(_rows(rows, groups), groups)}
    laid = lay_out(lambda view: view, problem, Bound(epilogue, fitted), given, common, like.device)
    if len(laid.outputs) > 1 or laid.outputs[0][1] != shape:
        raise TypeError(f"{name}: an epilogue of a convolution has one output, of its shape")
    identity = laid.job is None
    return (laid.outputs[0][2], None if identity else laid.program, laid.job, tuple(tiles))
