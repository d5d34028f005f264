"""`conv1d`, `conv2d`, `conv3d` and their transposed forms: check, see channels first, hand on.

Each family is written once for 1, 2 and 3 spatial axes; the docstring states its whole contract.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemm.backends import devices
from gemm.convolution import calls, filters, forward, geometry, layouts, operands
from gemm.convolution.calls import Function, collect, grouped, named, operand_pair, write_back_of
from gemm.convolution.filters import PackedFilters

Integers = int | Sequence[int]
_device_convolutions: dict[type, Any] = {}  # by array type, of libraries whose arrays have is_cuda


def _on_device(x: Any) -> Any:
    """What convolves device arrays like x, None for arrays of the host."""
    backend = devices.backend_of(x)
    if backend is None:
        return None
    from gemm.convolution import on_device

    quick = functools.partial(on_device.convolution, backend)
    if hasattr(x, "is_cuda"):
        _device_convolutions[type(x)] = quick
    return quick


def _conv(rank: int) -> Function:
    name = f"conv{rank}d"

    def conv(
        x: np.ndarray,
        w: np.ndarray | PackedFilters,
        bias: np.ndarray | None = None,
        stride: Integers = 1,
        padding: geometry.Padding = 0,
        dilation: Integers = 1,
        groups: int = 1,
        *,
        layout: layouts.Layout = "NCHW",
        x_zero_point: Any = None,
        w_zero_point: Any = None,
        epilogue: Any = None,
        algorithm: str = "auto",
        out: np.ndarray | None = None,
        threads: int | None = None,
    ) -> np.ndarray:
        if type(x) is not np.ndarray:
            quick = _device_convolutions.get(type(x))
            if quick is None or not x.is_cuda:  # type: ignore[attr-defined]
                quick = _on_device(x)
            if quick is not None:
                return quick(
                    name, rank, x, w, bias, stride, padding, dilation, groups, layout, epilogue,
                    algorithm, out, x_zero_point, w_zero_point,
                )  # fmt: skip
        key = calls.key(
            x, w, bias, stride, padding, dilation, groups, layout, x_zero_point, w_zero_point,
            epilogue, algorithm, out, threads,
        )  # fmt: skip
        if key is not None:
            result = calls.repeated(key, x, w, bias, epilogue, out)
            if result is not None:
                return result
        given, raw = x, w
        x = operands.array(name, "x", x)
        operands.check_rank(name, "x", x, rank + 2)
        order = layouts.parse(name, layout, rank)
        source = layouts.view(x, order.input)
        if isinstance(w, PackedFilters):
            packed = w
            if groups not in (1, packed.groups):
                raise ValueError(
                    f"{name}: groups is {groups}, but the filters were packed in {packed.groups}"
                )
            groups = packed.groups
            if len(packed.kernel) != rank:
                raise ValueError(
                    f"{name}: the packed filters have {len(packed.kernel)} spatial axes, not {rank}"
                )
            kernel, per_group, count = packed.kernel, packed.channels, packed.out_channels
        else:
            w = operands.array(name, "w", w)
            operands.check_rank(name, "w", w, rank + 2)
            taken = layouts.view(w, order.filter)
            count, per_group, kernel = taken.shape[0], taken.shape[1], taken.shape[2:]
            operands.check_groups(name, groups, count)
        operands.check_channels(name, "x", source.shape[1], per_group, groups)
        shape = geometry.forward(name, source.shape[2:], kernel, stride, padding, dilation)
        forward.check_algorithm(name, algorithm, shape.pointwise)
        dtypes = operands.result_dtypes(name, x.dtype, w.dtype)
        whole = (len(source), count, *shape.output)
        write_back = write_back_of(
            name, epilogue, whole, order.output, bias, x_zero_point, w_zero_point, dtypes, groups
        )
        result, target = operands.output(
            name,
            out,
            layouts.stored(whole, order.output),
            write_back.dtype or dtypes[2],
            x,
            packed.operand.data if isinstance(w, PackedFilters) else w,
            any_dtype=epilogue is not None,
        )
        images = grouped(source, groups)
        outputs = grouped(layouts.view(target, order.output), groups)
        if not isinstance(w, PackedFilters):
            _, form = forward.ways(images, shape.axes(), outputs)[0]
            packed = filters.of_array(taken, groups, dtypes[1], form)
        repeat = forward.convolve(
            images,
            packed,
            shape.axes(),
            outputs,
            algorithm=algorithm,
            dtypes=dtypes[:2],
            write_back=write_back,
            threads=threads,
        )
        if result is not target:
            result[...] = target
        elif key is not None and type(repeat) is forward.Repeat and x is given and w is raw:
            if isinstance(w, PackedFilters):
                calls.keep(w, key, repeat, result)
            elif w.dtype == dtypes[1]:
                again = filters.arranger(packed, taken, groups, order.filter)
                calls.keep(w, key, repeat.without_operand(), result, again)
        return result

    return named(
        conv,
        name,
        f"""{rank}-D convolution (cross-correlation, as in every deep-learning library).

        x: (N, C, *spatial). w: (O, C / groups, *kernel), or the result of ``pack_filters``.
        bias: (O,) or None. All of them in any strides.
        layout: 'NCHW' (channels first), 'NHWC' (channels last, filters (O, *kernel, I)), or three
        words (input, filter, output) of one letter an axis.
        stride, dilation: integers of at least 1, one or one an axis.
        padding: an integer, one an axis, one (before, after) pair an axis, 'valid', 'same' or
        'same_lower'; no padded copy is made.
        x_zero_point, w_zero_point: of int8 and uint8, which give int32. The result is that of
        (x - x_zero_point) and (w - w_zero_point), the latter one number or one a filter, and
        padding counts as x_zero_point.
        epilogue: a function made by ``gemm.epilogue``, bound to its operands, which are one number,
        one number a filter (O,) or an array of the result's shape. ``bias`` goes to its operand of
        that name, and its ``as_type`` sets the dtype of the result.
        algorithm: 'auto', 'implicit' (gathered by arithmetic), 'indirect' (through an int32 table),
        'direct' (1x1 without padding), 'im2col' (the explicit matrix, as an oracle). All give the
        same bits: one chain over (kernel axes, channels).
        out: an array to write into; it may overlap the operands. threads: workers at most.

        Returns (N, O, *outputs) in the layout's order, of dtype ``np.result_type(x, w)``; float16
        and bfloat16 are summed in float32. Raises ValueError for shapes, groups, strides or padding
        that do not fit and TypeError for dtypes; nothing has been written then.
        """,
    )


def transpose(
    name, x, w, bias, stride, padding, output_padding, groups, dilation, output_size=None,
    layout="NCHW", epilogue=None, algorithm="auto", out=None, threads=None, keep=False, key=None,
) -> np.ndarray:  # fmt: skip
    """A transposed convolution of the rank that ``name`` ends with ('..2d'); keep: the arranged
    filters stay for as long as the array ``w`` does (`filters.cached`); key: by which the call is
    remembered, None where it is not."""
    given, raw = x, w
    x, source, w, taken, order = operand_pair(name, "x", x, w, layout, int(name[-2]))
    operands.check_groups(name, groups, taken.shape[0])
    operands.check_channels(name, "x", source.shape[1], taken.shape[0] // groups, groups)
    shape = geometry.transposed(
        name, source.shape[2:], taken.shape[2:], stride, padding, output_padding, dilation,
        output_size,
    )  # fmt: skip
    return collect(
        name, x, source, w, taken, shape, bias, groups, order, epilogue, algorithm, out, threads,
        keep, key if x is given and w is raw else None,
    )  # fmt: skip


def _conv_transpose(rank: int) -> Function:
    name = f"conv_transpose{rank}d"

    def conv_transpose(
        x: np.ndarray,
        w: np.ndarray,
        bias: np.ndarray | None = None,
        stride: Integers = 1,
        padding: geometry.Padding = 0,
        output_padding: Integers = 0,
        groups: int = 1,
        dilation: Integers = 1,
        *,
        output_size: Sequence[int] | None = None,
        layout: layouts.Layout = "NCHW",
        epilogue: Any = None,
        algorithm: str = "auto",
        out: np.ndarray | None = None,
        threads: int | None = None,
    ) -> np.ndarray:
        own = ("transposed", stride, output_padding, output_size)
        key = calls.key(
            x, w, bias, own, padding, dilation, groups, layout, None, None, epilogue, algorithm,
            out, threads,
        )  # fmt: skip
        if key is not None:
            result = calls.repeated(key, x, w, bias, epilogue, out)
            if result is not None:
                return result
        return transpose(
            name, x, w, bias, stride, padding, output_padding, groups, dilation, output_size,
            layout, epilogue, algorithm, out, threads, key=key,
        )  # fmt: skip

    return named(
        conv_transpose,
        name,
        f"""{rank}-D transposed convolution: the input gradient of a convolution, as a layer.

        x: (N, C, *spatial). w: (C, O / groups, *kernel) ('NHWC': (C, *kernel, O / groups)).
        bias: (O,) or None.
        Along an axis the result has (extent - 1) * stride - before - after + dilation *
        (kernel - 1) + 1 + output_padding positions. ``output_size`` names the spatial extents
        instead, within reach of output_padding; padding 'same' and 'same_lower' give extent *
        stride. The order of the parameters is PyTorch's; the others, dtypes and errors are those of
        ``conv{rank}d``.

        Returns (N, O, *outputs). Each element is one chain over (the taps that reach it, channels).
        """,
    )


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))
