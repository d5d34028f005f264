"""The kernels of the plan space: constants in, kernel source out.

A `KernelSpec` holds every compile-time constant of a kernel and nothing of the problem's size,
so a process needs few of them. Its text names the kernel in the cache; `build` makes the plain
Python function that a backend compiles, or that the reference target calls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gemm.microkernels.dtypes import DType, TileShape, uint8

from .halves import in_halves

INTEGER = "integer"
WORKER = "worker"  # the index that the team passes, always last


def group_of(tile: TileShape, a: DType, units: tuple[DType, DType] | None) -> int:
    """Values of k in an element of a panel of vectors: whole blocks count otherwise."""
    if units is None or tile.block > 1 or in_halves(a, units):
        return 1
    return units[0].group


@dataclass(frozen=True)
class KernelSpec:
    """family: which kernel; tile: its register tile; a, b, out: element types in memory.

    program: the write-back's; units: element types of the panels (grouping.py), None for values.
    ready_b: B comes as panels (packed.py). resume: chains go on from what `out` holds.
    unpacked_a: rows of A are read where they lie. triangle: only tiles on and below the diagonal
    are computed (symmetric.py). sizes: of the matrices of a batch that has a kernel of its own
    (tiny.py).
    """

    family: str
    tile: TileShape
    a: DType
    b: DType
    out: DType
    unroll: int = 4
    program: object = None
    units: tuple[DType, DType] | None = None
    ready_b: bool = False
    resume: bool = False
    unpacked_a: bool = False
    triangle: bool = False
    sizes: object = None

    @property
    def group(self) -> int:
        return group_of(self.tile, self.a, self.units)

    def unpacked(self) -> KernelSpec:
        """The same on rows of A in place. More steps of k in a row would have their factors
        loaded early, and a tile spilled for them."""
        return replace(self, unpacked_a=True, unroll=2 if self.tile.vectors <= 2 else 1)

    @property
    def label(self) -> str:
        operands = f"{self.a} x {self.b} -> {self.out}"
        panels = f", panels of {self.units[0]}" if self.units else ""
        family = f"{self.family}, A unpacked," if self.unpacked_a else self.family
        return f"{family} {self.tile.rows}x{self.tile.columns} {operands}{panels}"

    def build(self):
        """(function, argument kinds): each kind is a DType for a pointer, INTEGER or WORKER."""
        tile, a, b, out = self.tile, self.a, self.b, self.out
        kinds = (a, b, out, uint8, *[INTEGER] * 18, uint8, *[INTEGER] * 3, uint8, WORKER)
        if self.family == "blocked":
            from .blocked import make_blocked

            function = make_blocked(
                tile,
                a,
                b,
                out,
                self.unroll,
                self.program,
                self.units,
                self.ready_b,
                self.resume,
                self.unpacked_a,
                self.triangle,
            )
        elif self.family == "direct":
            from .small import make_direct

            function = make_direct(tile, a, b, out)
        elif self.family == "skinny":
            from .skinny import make_skinny

            function = make_skinny(tile, a, b, out, program=self.program)
        elif self.family in ("inner", "conjugate inner"):
            from .chains import make_inner

            function = make_inner(tile, a, b, out, self.family != "inner")
        elif self.family == "tiny":
            from .tiny import make_tiny

            function = make_tiny(tile, a, b, out, self.sizes)
        elif self.family == "narrow":
            from .narrow import make_narrow

            function = make_narrow(tile, a, b, out)
        elif self.family == "mirror":
            from .mirror import make_mirror

            function = make_mirror(tile, out)
        elif self.family == "small":
            from .small import make_small

            function = make_small(tile, a, b, out)
            kinds = (a, b, out, *[INTEGER] * 7)
        else:
            raise ValueError(f"no kernel family {self.family!r}")
        function.label = self.label
        return function, kinds
