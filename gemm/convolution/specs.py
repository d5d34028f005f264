"""The convolution kernels as constants: what their text in the kernel cache says."""

from __future__ import annotations

from dataclasses import dataclass

from gemm.microkernels.dtypes import DType, TileShape, uint8

from ..kernels import INTEGER, WORKER


@dataclass(frozen=True)
class ConvolutionSpec:
    """tile: register tile, pixels x filters; a, out: element types in memory; the rest as in
    loops.py."""

    tile: TileShape
    a: DType
    out: DType
    form: str
    by_table: bool
    turned: bool
    program: object = None
    units: tuple[DType, DType] | None = None

    @property
    def label(self) -> str:
        words = [self.form, "by table" if self.by_table else "by arithmetic"]
        words += ["turned"] * self.turned + ["in units"] * (self.units is not None)
        tile = f"{self.tile.rows}x{self.tile.columns}"
        return f"convolution {tile} {self.a} -> {self.out}, {', '.join(words)}"

    def build(self):
        """(function, argument kinds), as of `KernelSpec.build`."""
        from .loops import make_convolution

        function = make_convolution(
            self.tile,
            self.a,
            self.out,
            self.form,
            self.by_table,
            self.turned,
            self.program,
            self.units,
        )
        function.label = self.label  # type: ignore[attr-defined]
        kinds = (self.a, self.tile.dtype, self.out, *[uint8] * 3, *[INTEGER] * 33, WORKER)
        return function, kinds


def reach_of(lanes: int, taps: tuple[int, int], steps: tuple[int, int]) -> int:
    """Neighbouring pixels that a vector of outputs may read."""
    return lanes * steps[1] + taps[1] - 1


@dataclass(frozen=True)
class DepthwiseSpec:
    """tile: outputs x one vector; a, out: element types in memory; last: channels are adjacent;
    taps, steps: as in depthwise_loops.py."""

    tile: TileShape
    a: DType
    out: DType
    last: bool
    program: object = None
    taps: tuple[int, int] = (1, 1)
    steps: tuple[int, int] = (1, 1)

    @property
    def label(self) -> str:
        words = "last" if self.last else "first"
        taps, steps = ("x".join(map(str, pair)) for pair in (self.taps, self.steps))
        return f"depthwise {taps} / {steps}, {self.a} -> {self.out}, channels {words}"

    def build(self):
        """(function, argument kinds), as of `KernelSpec.build`."""
        from .depthwise_loops import make_first, make_last

        make = make_last if self.last else make_first
        function = make(self.tile, self.a, self.out, self.program, self.taps, self.steps)
        function.label = self.label
        integers = [INTEGER] * (22 if self.last else 21)
        return function, (self.a, self.tile.dtype, self.out, *[uint8] * 3, *integers, WORKER)


@dataclass(frozen=True)
class TurnSpec:
    """lanes: of a square; dtype: of the image's elements."""

    lanes: int
    dtype: DType

    @property
    def label(self) -> str:
        return f"turning of {self.dtype} images"

    def build(self):
        """(function, argument kinds), as of `KernelSpec.build`."""
        from .turning import make_turn_image

        function = make_turn_image(self.lanes, self.dtype)
        function.label = self.label
        return function, (self.dtype, self.dtype, *[INTEGER] * 8, WORKER)


@dataclass(frozen=True)
class FilterSpec:
    """width, wide: of the panels; lanes: of a square; source: element type in memory."""

    width: int
    lanes: int
    source: DType
    wide: DType

    @property
    def label(self) -> str:
        return f"packing of {self.source} filters into panels of {self.width} {self.wide}"

    def build(self):
        """(function, argument kinds), as of `KernelSpec.build`."""
        from .filter_packing import make_pack_filters

        function = make_pack_filters(self.width, self.lanes, self.source, self.wide)
        function.label = self.label
        return function, (self.source, self.wide, *[INTEGER] * 9, WORKER)
