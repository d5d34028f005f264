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
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemm import engine, targets
from gemm import threads as counts
from gemm.convolution import depthwise, filters, im2col, product
from gemm.convolution.filters import PackedFilters
from gemm.convolution.geometry import Axis
from gemm.convolution.write_back import WriteBack
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
    target = np.moveaxis(out.swapaxes(0, 1), 2, -1)  # (groups, N, *outputs, filters)
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
    if in_bytes and source.strides[2] != 1:
        # Units hold neighbouring channels.
        source = np.moveaxis(np.ascontiguousarray(np.moveaxis(source, 2, -1)), -1, 2)
    allowed = counts.get_num_threads() if threads is None else counts.checked(threads)
    by_table = algorithm == "indirect"
    kernels: list[Any] = [product.Ready]
    if isinstance(packed.operand, depthwise.Taps):
        kernels = [depthwise.Ready, product.Ready]
    for kernel in kernels[by_table * (len(kernels) - 1) :]:
        operand: Any = packed.operand
        if kernel is product.Ready and isinstance(operand, depthwise.Taps):
            if zero:
                continue
            operand = operand.panels()  # the general kernel, group by group
        try:
            if write_back.is_plain:
                ready = kernel(source, axes, operand, target, by_table, allowed, zero=zero)
                ready.run(source, operand, target)
                repeat: Repeat | None = Repeat(ready, operand)
            else:
                repeat = _fused(
                    kernel, source, operand, axes, target, by_table, allowed, write_back, zero
                )
            return repeat if source is given[0] and packed is given[1] else None
        except product.Refused:
            continue
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
    convolve(source, packed, axes, again, algorithm=algorithm, dtypes=dtypes,
             write_back=write_back, threads=threads)  # fmt: skip
    target[...] = whole
    return None


@dataclass(frozen=True)
class Repeat:
    """A call that needs no more than its arrays: the kernel, the filters, an epilogue's operands
    and the slot of its table where the output's address stands.
    """

    ready: Any
    operand: Any
    table: OperandTable | None = None
    slot: int = 0

    def __call__(self, x: np.ndarray, out: np.ndarray) -> None:
        """Convolve x into out, both of the form that the call was made for."""
        extra = None
        if self.table is not None:
            extra = self.table.memory.copy()
            extra[self.slot] = address(out)
        self.ready.run(x, self.operand, out, extra)


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
        live = all(
            write_back.lives_at(key, None if o.kind == "number" else table.memory[program.slot(i)])
            for i, (key, o) in enumerate(zip(arrays, program.operands, strict=True))
        )
        if live and ready.level != "reference" and table.memory[slot] == address(target):
            repeat.append(Repeat(ready, operand, table, slot))

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
