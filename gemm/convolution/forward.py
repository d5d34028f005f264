"""The one driver of every convolution: which kernel, on which views, with which write-back.

It knows arrays of one form only: input (N, groups, channels, *spatial), output (N, groups, filters,
*outputs), all of them views. Each output element is one chain over (taps, channels), channels
innermost, whatever the algorithm: which elements are computed together never changes how.

    im2col              the explicit matrix times the filters: the oracle
    implicit, direct    gathered in packing by arithmetic (a 1x1 kernel reads one pixel: no copy
                        but the packing's)
    indirect            gathered in packing through the int32 table
    auto                implicit, whose rule is always in the first-level cache; depthwise.py where
                        each group has one channel and one filter

Extra memory: product.py's for the gathered ones; the whole matrix for 'im2col'.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gemm import engine, targets
from gemm import threads as counts
from gemm.convolution import channels_last, depthwise, filters, im2col, product
from gemm.convolution.filters import PackedFilters
from gemm.convolution.geometry import Axis, pointwise
from gemm.convolution.write_back import WriteBack
from gemm.epilogues.job import bits
from gemm.epilogues.run import OperandTable, fused, operand_table
from gemm.execution import address

ALGORITHMS = ("auto", "im2col", "implicit", "indirect", "direct")


def check_algorithm(name: str, algorithm: str, direct: bool) -> None:
    """Refuse an unknown algorithm, and 'direct' where a pixel does not read exactly one input
    pixel.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"{name}: algorithm must be one of {ALGORITHMS}, got {algorithm!r}")
    if algorithm == "direct" and not direct:
        raise ValueError(f"{name}: algorithm 'direct' needs a 1x1 kernel without padding")


def convolve(
    source: np.ndarray,
    packed: PackedFilters,
    axes: tuple[Axis, ...],
    out: np.ndarray,
    *,
    algorithm: str,
    dtypes: tuple[np.dtype, np.dtype],
    write_back: WriteBack,
    threads: int | None = None,
) -> Any:
    """Convolve ``source`` with filters into ``out``; arrays are views of the forms named above.

    dtypes: what the operands are multiplied in. Returns what repeats the call on other arrays of
    the same form, None where something was copied on the way.
    """
    if out.size == 0:
        return None
    target = _target(out)
    given = source, packed
    taps = math.prod(len(a.offsets) for a in axes)
    zero = write_back.x_zero
    if write_back.has_zeros:
        if write_back.w_zero is not None or algorithm == "im2col" or not _takes_zero(packed):
            source, matrix = _without_zeros(source, packed.matrix, write_back)
            packed = filters.arrange(matrix, packed.kernel)
            dtypes, zero = (source.dtype, matrix.dtype), 0
        write_back = write_back.without_zeros()
    if algorithm == "im2col" or taps * packed.channels == 0:
        # A level may add bfloat16 products in an order of its own; convolutions never do.
        kinds = [np.dtype(np.float32) if d.name == "bfloat16" else d for d in dtypes]
        matrix = packed.matrix.astype(kinds[1], copy=False)
        rows = im2col.rows(source, axes, kinds[0])
        _multiply(_joined(rows, len(axes)), matrix, target, write_back, threads)
        return None
    source = source.astype(dtypes[0], copy=False)
    kind = targets.element_type(source.dtype)
    # Where an epilogue names the stored type, the accumulator is that of the operands.
    wide = kind if write_back.program is not None else targets.element_type(target.dtype)
    acc = targets.accumulator(kind, wide)
    packed = packed.as_for(targets.default_level(), dtypes[1], acc)
    in_bytes = isinstance(packed.operand, product.Panels) and packed.operand.units is not None
    allowed = counts.get_num_threads() if threads is None else counts.checked(threads)
    by_table = algorithm == "indirect"
    tries = ways(source, axes, out, in_bytes)
    if isinstance(packed.operand, depthwise.Taps) and not by_table:
        tries = [(depthwise.Ready, ""), *tries]
    for kernel, form in tries:
        if zero and not in_bytes and form:
            continue
        operand: Any = packed.panels(form) if form else packed.operand
        try:
            if write_back.is_plain:
                ready = kernel(source, axes, operand, target, by_table, allowed, zero=zero)
                ready.run(source, operand, target)
                repeat: Repeat | None = Repeat(ready, operand)
            else:
                repeat = _fused(
                    kernel, source, operand, axes, target, by_table, allowed, write_back, zero
                )
            if packed is not given[1] or source is not given[0]:
                return None  # copies, which another call would not have
            return repeat
        except product.Refused:
            continue
    if kernel is channels_last.Turned:
        # Only neighbouring channels will do, and the image is too large to be turned whole.
        source = np.moveaxis(np.ascontiguousarray(np.moveaxis(source, 2, -1)), -1, 2)
        convolve(source, packed, axes, out, algorithm=algorithm, dtypes=dtypes,
                 write_back=write_back, threads=threads)  # fmt: skip
        return None
    if zero:
        source, _ = _without_zeros(source, packed.matrix, WriteBack(x_zero=zero))
        dtypes = source.dtype, np.dtype(np.int16)
        convolve(source, filters.arrange(packed.matrix.astype(np.int16), packed.kernel), axes, out,
                 algorithm=algorithm, dtypes=dtypes, write_back=write_back,
                 threads=threads)  # fmt: skip
        return None
    # Pixels of the output are not one step apart: they are computed beside it.
    whole = np.empty(target.shape, target.dtype)
    again = np.moveaxis(whole, -1, 2).swapaxes(0, 1)
    inner = convolve(source, packed, axes, again, algorithm=algorithm, dtypes=dtypes,
                     write_back=write_back, threads=threads)  # fmt: skip
    target[...] = whole
    copied = packed is not given[1] or source is not given[0]
    return None if inner is None or copied else Beside(inner, whole.shape, whole.dtype)


def _target(out: np.ndarray) -> np.ndarray:
    """(groups, N, *outputs, filters) of an output (N, groups, filters, *outputs), a view."""
    return np.moveaxis(out.swapaxes(0, 1), 2, -1)


def ways(
    source: np.ndarray, axes: tuple[Axis, ...], out: np.ndarray, in_bytes: bool = False
) -> list[tuple[Any, str]]:
    """What `convolve` tries in turn for these views: kernels, and the form of their panels.

    in_bytes: the panels hold units of neighbouring channels.
    """
    target, channels = _target(out), source.shape[2]
    # The order of a complex chain tells A from B.
    if in_bytes or source.dtype.kind == "c" or product.form_of(source, target) == "rows":
        adjacent = channels == 1 or source.strides[2] == source.itemsize
        return [(product.Ready if adjacent else channels_last.Turned, "rows")]
    tries: list[tuple[Any, str]] = [(product.Ready, "columns")]
    if channels > 1 and out.size and channels_last.fits(source):
        given, kept = (targets.element_type(a.dtype) for a in (source, target))
        tile = targets.tile_for(targets.default_level(), targets.accumulator(given, kept), None)
        taps, count = math.prod(len(a.offsets) for a in axes), target.shape[-1]
        pixels = math.prod(source.shape[3:]), math.prod(target.shape[2:-1])
        rows = product.filter_rows(tile.rows, count)
        lies = pointwise(axes) and pixels[0] == pixels[1]
        if channels_last.pays(*pixels, channels, count, taps, lies, tile, rows):
            tries.insert(0, (channels_last.Turned, "rows"))
    return tries


@dataclass(frozen=True)
class Repeat:
    """A call that needs no more than its arrays: the kernel, the filters, an epilogue's table, the
    slot in it where the output's address stands, and those of its operands: (slot, name, None for
    an address or the number's type).
    """

    ready: Any
    operand: Any
    table: OperandTable | None = None
    slot: int = 0
    fill: tuple[tuple[int, str, Any], ...] = ()

    def without_operand(self) -> Repeat:
        """The same for filters that each call brings."""
        return replace(self, operand=None)

    def __call__(self, x, out, operand=None, given=None) -> bool:
        """Convolve x into out, both of the form that the call was made for; operand: other filters
        of the same form; given: operands of the epilogue by name. False where a number does not
        fit: then nothing was done."""
        extra = None
        if self.table is not None:
            extra = self.table.memory.copy()
            extra[self.slot] = address(out)
            for slot, name, dtype in self.fill:
                value = given[name]
                if dtype is None:
                    extra[slot] = address(value)
                    continue
                value = value.item() if isinstance(value, (np.ndarray, np.generic)) else value
                if dtype.kind == "i" and not -(1 << 31) <= value < 1 << 31:
                    return False
                extra[slot] = bits(value, dtype)
        self.ready.run(x, self.operand if operand is None else operand, out, extra)
        return True


@dataclass(frozen=True)
class Beside:
    """A `Repeat` that computes (groups, N, *outputs, filters) beside the output, then copies it."""

    inner: Any
    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def operand(self) -> Any:
        """The filters, as `Repeat` has them."""
        return self.inner.operand

    def without_operand(self) -> Beside:
        """The same for filters that each call brings."""
        return replace(self, inner=self.inner.without_operand())

    def __call__(self, x, out, operand=None, given=None) -> bool:
        """As `Repeat`; out must be seen as (N, groups * filters, *outputs)."""
        whole = np.empty(self.shape, self.dtype)
        if not self.inner(x, whole, operand, given):
            return False
        groups, images, *outputs, filters_ = self.shape
        _target(out.reshape(images, groups, filters_, *outputs))[...] = whole
        return True


def _fused(
    kernel, source, operand, axes, target, by_table, allowed, write_back, zero
) -> Repeat | None:
    """With a program in the write-back: the engine fits its operands, then the kernel runs."""
    step = product.merged_step(target.shape[2:-1], target.strides[2:-1])
    if step is None:
        raise product.Refused
    groups, images, filters_ = target.shape[0], target.shape[1], target.shape[-1]
    pixels = math.prod(target.shape[2:-1])
    flat = np.lib.stride_tricks.as_strided(
        target,
        (groups, images, pixels, filters_),
        (*target.strides[:2], step, target.strides[-1]),
    )
    merged = kernel.merges_groups
    turned = kernel.is_turned(source, target)
    if turned and not write_back.may_turn:
        if merged:
            raise product.Refused
        turned = False
    view = np.moveaxis(flat, 0, 2)[..., 0] if merged else flat
    view = view.swapaxes(-1, -2) if turned else view

    repeat: list[Repeat] = []

    def run(problem, program, arrays, written):
        (result,) = written.values()
        table = operand_table(problem, program, arrays, written)
        whole = result.swapaxes(-1, -2) if turned else result
        if merged:
            whole = np.moveaxis(whole[..., None], 2, 0)
        whole = whole.reshape(target.shape)  # a view: one axis is split
        ready = kernel(source, axes, operand, whole, by_table, allowed, program, turned, zero)
        ready.run(source, operand, whole, table.argument(ready.level))
        slot = program.output_slot(0)
        fill, live = [], True
        for i, (key, o) in enumerate(zip(arrays, program.operands, strict=True)):
            number, at = o.kind == "number", program.slot(i)
            fill.append((at, key, o.dtype if number else None))
            lives = key not in write_back.numbers and write_back.lives_at(key, table.memory[at])
            live = live and (number or lives)
        if live and ready.level != "reference" and table.memory[slot] == address(target):
            repeat.append(Repeat(ready, operand, table, slot, tuple(fill)))

    acc = operand.tile.dtype
    common = source.dtype if acc.kind in "fc" else np.dtype(acc.name)
    lend = np.zeros((), common)
    fused(
        np.broadcast_to(lend, (*view.shape[:-1], 1)),
        np.broadcast_to(lend, (*view.shape[:-2], 1, view.shape[-1])),
        write_back.flat(pixels, merged, turned),
        view,
        accumulate=acc.name if acc.kind != "c" else None,
        common=common,
        run=run,
    )
    return repeat[0] if repeat else None


def _takes_zero(packed: PackedFilters) -> bool:
    """Whether the kernel of these filters takes a zero point off by itself."""
    operand = packed.operand
    if isinstance(operand, depthwise.Taps):
        return operand.tile.dtype.kind == "i"
    return operand.units is not None


def _without_zeros(
    source: np.ndarray, matrix: np.ndarray, write_back: WriteBack
) -> tuple[np.ndarray, np.ndarray]:
    """Operands with their zero points subtracted, in int16, for an epilogue of the whole sum."""
    source = source.astype(np.int16) - np.int16(write_back.x_zero)
    matrix = matrix.astype(np.int16)
    if write_back.w_zero is not None:
        matrix -= write_back.w_zero[:, None].astype(np.int16)
    return source, matrix


def _joined(rows: np.ndarray, rank: int) -> np.ndarray:
    """(groups, images, *outputs, *taps, channels) with the taps and channels as one axis, a
    view.
    """
    lead = rows.shape[: 2 + rank]
    return rows.reshape(*lead, math.prod(rows.shape[2 + rank :]))


def _multiply(
    rows: np.ndarray,
    matrix: np.ndarray,
    target: np.ndarray,
    write_back: WriteBack,
    threads: int | None,
) -> None:
    """target (groups, *pixels, filters) = rows (groups, *pixels, K) @ matrix (groups, K, filters),
    through the write-back.

    As many trailing pixel axes as the arrays allow become M; the others are batch axes.
    """
    options: dict[str, Any] = {"threads": threads}
    pixels = target.shape[1:-1]
    arrays = (rows, target, *write_back.tiles.values())
    first = 0
    while not all(_mergeable(pixels, a.strides[1:-1], first) for a in arrays):
        first += 1
    tiles = {name: _merged(tile, first) for name, tile in write_back.tiles.items()}
    options["epilogue"] = write_back.bound(first + 1, tiles)
    if options["epilogue"] is not None and rows.dtype.kind in "iu":
        options["accumulate"] = np.int32 if rows.dtype.itemsize < 4 else None
    batch = (matrix.shape[0], *pixels[:first])
    b = matrix.reshape(batch[0], *(1,) * first, *matrix.shape[1:])
    b = np.broadcast_to(b, (*batch, *matrix.shape[1:]))
    engine.product(_merged(rows, first), b, _merged(target, first), **options)


def _mergeable(shape: Sequence[int], strides: Sequence[int], first: int) -> bool:
    """True when the axes ``first ..`` are one strided axis."""
    step = None
    for extent, stride in zip(reversed(shape[first:]), reversed(strides[first:]), strict=True):
        if extent != 1:
            if step is not None and stride != step:
                return False
            step = stride * extent
    return True


def _merged(array: np.ndarray, first: int) -> np.ndarray:
    """(groups, *pixels, last) with the pixel axes ``first ..`` as one: a view, the axes being
    mergeable.
    """
    head, pixels = array.shape[: 1 + first], array.shape[1 + first : -1]
    steps = array.strides[1 + first : -1]
    step = next((s for n, s in zip(pixels[::-1], steps[::-1], strict=True) if n != 1), 0)
    return np.lib.stride_tricks.as_strided(
        array,
        (*head, math.prod(pixels), array.shape[-1]),
        (*array.strides[: 1 + first], step, array.strides[-1]),
    )
