"""Where every tap of every output pixel lies: the arithmetic of padding, stride and dilation.

Along one axis, output position ``o`` and tap ``k`` read input position

i = o * stride + k * dilation - before

which counts as zero when it is outside ``0 .. extent - 1``. Nothing else distinguishes a padded,
strided, dilated or 'same' convolution from a plain one, so padding is never materialised. The same
triple of numbers read the other way (which outputs does input ``i`` feed?) is the transposed
convolution: see `phases`.

Conventions of the padding words: TensorFlow's and ONNX's SAME (``ceil(extent / stride)`` outputs;
an odd total puts the extra zero after the image for 'same' and before it for 'same_lower').
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Padding = int | str | Sequence[int | Sequence[int]]


@dataclass(frozen=True)
class Axis:
    """One spatial axis of a gather: output ``o`` and tap ``k`` read input ``o * step +
    offsets[k]``.
    """

    extent: int
    count: int
    step: int
    offsets: tuple[int, ...]

    def position(self, output: int, tap: int) -> int:
        """The input position, or -1 where the tap falls outside the image."""
        i = output * self.step + self.offsets[tap]
        return i if 0 <= i < self.extent else -1

    def inside(self, tap: int, start: int, stop: int) -> tuple[int, int]:
        """The outputs of ``start .. stop - 1`` whose tap lies inside the image, as a half-open
        range.
        """
        offset = self.offsets[tap]
        first = max(start, -(offset // self.step))
        last = min(stop, (self.extent - 1 - offset) // self.step + 1)
        return first, max(first, last)


@dataclass(frozen=True)
class Geometry:
    """The spatial part of one convolution: all tuples have one entry a spatial axis."""

    input: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]
    output: tuple[int, ...]

    @property
    def pointwise(self) -> bool:
        """True when each output pixel reads exactly one input pixel inside the image."""
        return pointwise(self.axes())

    def axes(self) -> tuple[Axis, ...]:
        """How the outputs of the convolution read its input."""
        return tuple(
            Axis(i, o, s, tuple(t * d - b for t in range(k)))
            for i, o, k, s, d, b in zip(
                self.input,
                self.output,
                self.kernel,
                self.stride,
                self.dilation,
                self.before,
                strict=True,
            )
        )

    def phases(self) -> Iterator[Phase]:
        """How the inputs of the convolution collect from its outputs (the transposed convolution).

        Input ``i`` is fed by output ``o`` through tap ``k`` when ``i + before - k * dilation == o *
        stride``. All ``i`` of one remainder modulo the stride use the same taps, and for them ``o``
        advances by one from one ``i`` to the next: each remainder is a plain convolution of step 1
        over a subset of the taps, and no multiplication by an inserted zero is ever made.
        """
        per_axis = []
        for extent, count, kernel, stride, dilation, before in zip(
            self.input,
            self.output,
            self.kernel,
            self.stride,
            self.dilation,
            self.before,
            strict=True,
        ):
            choices = []
            for first in range(min(stride, extent)):
                taps = tuple(
                    k for k in range(kernel) if (first + before - k * dilation) % stride == 0
                )
                offsets = tuple((first + before - k * dilation) // stride for k in taps)
                positions = slice(first, extent, stride)
                axis = Axis(count, len(range(first, extent, stride)), 1, offsets)
                choices.append((positions, taps, axis))
            per_axis.append(choices)
        for combination in itertools.product(*per_axis):
            positions, taps, axes = zip(*combination, strict=True)
            yield Phase(positions, taps, axes)


@dataclass(frozen=True)
class Phase:
    """The positions of a transposed convolution that share one set of taps, and how they gather."""

    positions: tuple[slice, ...]
    taps: tuple[tuple[int, ...], ...]
    axes: tuple[Axis, ...]


def pointwise(axes: tuple[Axis, ...]) -> bool:
    """True when every output pixel reads exactly one input pixel, inside the image."""
    return all(len(a.offsets) == 1 and a.inside(0, 0, a.count) == (0, a.count) for a in axes)


def integers(
    name: str, what: str, value: int | Sequence[int], rank: int, least: int
) -> tuple[int, ...]:
    """``value`` as ``rank`` integers of at least ``least``; one integer stands for every axis.

    Raises TypeError for what is not an integer and ValueError for a wrong length or a value below
    ``least``.
    """
    try:
        numbers = (operator.index(value),) * rank  # type: ignore[arg-type]
    except TypeError:
        try:
            numbers = tuple(operator.index(v) for v in value)  # type: ignore[union-attr]
        except TypeError:
            raise TypeError(
                f"{name}: {what} must be an integer or {rank} integers, got {value!r}"
            ) from None
    if len(numbers) != rank:
        raise ValueError(f"{name}: {what} must have {rank} entries, got {len(numbers)}: {value!r}")
    if any(n < least for n in numbers):
        raise ValueError(f"{name}: {what} must be at least {least}, got {value!r}")
    return numbers


def _pairs(name: str, padding: Padding, rank: int) -> list[tuple[int, int]]:
    """Explicit padding as one (before, after) pair an axis."""
    if isinstance(padding, Sequence) and any(isinstance(p, Sequence) for p in padding):
        if len(padding) != rank:
            raise ValueError(
                f"{name}: padding must have {rank} entries, got {len(padding)}: {padding!r}"
            )
        return [tuple(integers(name, "padding", p, 2, 0)) for p in padding]  # type: ignore[arg-type,misc]
    return [(p, p) for p in integers(name, "padding", padding, rank, 0)]  # type: ignore[arg-type]


def _sides(total: int, lower: bool) -> tuple[int, int]:
    before = (total + 1) // 2 if lower else total // 2
    return before, total - before


WORDS = ("valid", "same", "same_lower")


def _check_word(name: str, padding: str) -> None:
    if padding not in WORDS:
        raise ValueError(
            f"{name}: padding must be 'valid', 'same', 'same_lower', an integer, one integer an "
            f"axis or one (before, after) pair an axis, got {padding!r}"
        )


def forward(
    name: str,
    input: Sequence[int],
    kernel: Sequence[int],
    stride: int | Sequence[int],
    padding: Padding,
    dilation: int | Sequence[int],
) -> Geometry:
    """The geometry of a convolution of spatial extents ``input``; ``name`` starts every error
    message.

    Raises ValueError when stride or dilation is below 1, padding is negative, a tuple has a wrong
    length, or the kernel is larger than the padded input.
    """
    rank = len(input)
    kernel = integers(name, "kernel size", kernel, rank, 1)
    stride = integers(name, "stride", stride, rank, 1)
    dilation = integers(name, "dilation", dilation, rank, 1)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    if isinstance(padding, str):
        _check_word(name, padding)
    if isinstance(padding, str) and padding != "valid":
        output = [-(-i // s) for i, s in zip(input, stride, strict=True)]
        before = tuple(
            _sides(max((o - 1) * s + r - i, 0), padding == "same_lower")[0]
            for i, o, s, r in zip(input, output, stride, reach, strict=True)
        )
        return Geometry(tuple(input), kernel, stride, dilation, before, tuple(output))
    pads = [(0, 0)] * rank if isinstance(padding, str) else _pairs(name, padding, rank)
    output = []
    for axis, (i, r, s, (b, a)) in enumerate(zip(input, reach, stride, pads, strict=True)):
        if r > i + b + a:
            raise ValueError(
                f"{name}: the kernel is larger than the padded input on spatial axis {axis}: "
                f"kernel {kernel[axis]} with dilation {dilation[axis]} covers {r}, input {i} "
                f"with padding {b} + {a} has {i + b + a}"
            )
        output.append((i + b + a - r) // s + 1)
    return Geometry(
        tuple(input), kernel, stride, dilation, tuple(b for b, _ in pads), tuple(output)
    )


def transposed(
    name: str,
    input: Sequence[int],
    kernel: Sequence[int],
    stride: int | Sequence[int],
    padding: Padding,
    output_padding: int | Sequence[int],
    dilation: int | Sequence[int],
    output_size: Sequence[int] | None,
) -> Geometry:
    """The geometry of the convolution whose input gradient a transposed convolution is.

    ``input`` is what the transposed convolution reads, so it becomes ``Geometry.output``. With
    ``padding`` of 'same' or 'same_lower' the result has ``input * stride`` positions (ONNX's rule).
    ``output_size`` names the spatial extents wanted and replaces ``output_padding``.

    Raises ValueError as `forward` does, when output_padding is not below max(stride, dilation),
    when output_size is out of reach, and when padding leaves nothing.
    """
    rank = len(input)
    kernel = integers(name, "kernel size", kernel, rank, 1)
    stride = integers(name, "stride", stride, rank, 1)
    dilation = integers(name, "dilation", dilation, rank, 1)
    extra = integers(name, "output_padding", output_padding, rank, 0)
    for e, s, d in zip(extra, stride, dilation, strict=True):
        if e and e >= max(s, d):
            raise ValueError(
                f"{name}: output_padding must be smaller than stride or dilation, got "
                f"output_padding {extra}, stride {stride}, dilation {dilation}"
            )
    reach = [
        (i - 1) * s + (k - 1) * d + 1
        for i, s, k, d in zip(input, stride, kernel, dilation, strict=True)
    ]
    if output_size is not None:
        output_size = integers(name, "output_size", output_size, rank, 0)
    if isinstance(padding, str):
        _check_word(name, padding)
    if isinstance(padding, str) and padding != "valid":
        output = output_size or tuple(i * s for i, s in zip(input, stride, strict=True))
        # A negative total means zeros beyond the last tap: they lie after the image.
        before = tuple(
            _sides(max(r + e - o, 0), padding == "same_lower")[0]
            for r, e, o in zip(reach, extra, output, strict=True)
        )
        return Geometry(output, kernel, stride, dilation, before, tuple(input))
    pads = [(0, 0)] * rank if isinstance(padding, str) else _pairs(name, padding, rank)
    least = [r - b - a for r, (b, a) in zip(reach, pads, strict=True)]
    if output_size is not None:
        bounds = [o + max(s, d) - 1 for o, s, d in zip(least, stride, dilation, strict=True)]
        if any(not lo <= o <= hi for lo, o, hi in zip(least, output_size, bounds, strict=True)):
            raise ValueError(
                f"{name}: output_size {tuple(output_size)} is out of reach: an input of "
                f"{tuple(input)} gives {tuple(least)} to {tuple(bounds)}"
            )
        output = output_size
    else:
        output = tuple(o + e for o, e in zip(least, extra, strict=True))
    if any(o < 1 for o in output):
        raise ValueError(
            f"{name}: padding {padding!r} leaves nothing of the {tuple(reach)} positions that an "
            f"input of {tuple(input)} reaches"
        )
    return Geometry(output, kernel, stride, dilation, tuple(b for b, _ in pads), tuple(input))
