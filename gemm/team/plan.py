"""The plan of a team kernel: its constants, what they cost in shared memory, and its legality."""

from __future__ import annotations

from dataclasses import dataclass

from gemm.microkernels.cooperative import (
    TeamTile,
)
from gemm.microkernels.dtypes import DType

from ..epilogues.program import Program
from ..epilogues.team_write_back import illegal, room_for

SWIZZLED_ROW = 128


@dataclass(frozen=True)
class TeamPlan:
    """Everything a team kernel is specialised for; no size of any problem.

    tile: what one group computes; across, down: groups side by side along N and M, so that a
    block is (down * tile.rows) x (across * tile.columns); stages: slots of the ring; peers:
    teams that share each other's B panels; band: block rows walked together in raster order;
    parts: panels an operand is split into (2: high and low part, three products a stage);
    program: the write-back's (gemm/epilogues), None for the plain store;
    sum_of: where not None, results are slices of K that the launch sums to this type (join.py);
    chain: k-steps summed by the matrix unit before they are added to the float32 total (0: all);
    store: 'box' (copy engine) or 'rows'; scaled: the result is multiplied by two scalars;
    registers: (filling, draining) a lane, (0, 0) leaves them; batched: boxes have batch axes;
    image: A is gathered from images of so many spatial axes (0: A is a matrix); turned: its rows
    are (tap, channel) and its k output pixels.
    """

    tile: TeamTile
    a: DType
    b: DType
    out: DType
    down: int
    across: int
    stages: int
    filler_lanes: int = 0
    peers: int = 1
    band: int = 8
    parts: int = 1
    chain: int = 0
    store: str = "rows"
    scaled: bool = False
    batched: bool = False
    registers: tuple[int, int] = (0, 0)
    lanes: int = 128
    teams_per_unit: int = 1
    program: Program | None = None
    sum_of: DType | None = None
    image: int = 0
    turned: bool = False

    @property
    def joined(self) -> bool:
        """Whether the launch sums slices of K."""
        return self.sum_of is not None

    @property
    def final(self) -> DType:
        """The result's type."""
        return self.sum_of or self.out

    @property
    def block(self) -> tuple[int, int, int]:
        """BM, BN, BK."""
        return self.tile.a.rows, self.tile.b.rows, self.tile.a.depth

    @property
    def groups(self) -> int:
        """Groups that compute."""
        return self.down * self.across

    @property
    def share(self) -> tuple[int, int]:
        """Columns and k of the panel of B that one of its peers fetches: columns in whole boxes,
        or where those are too few, all of them for a part of k."""
        columns, depth = self.tile.b.rows, self.tile.b.depth
        bytes_of_columns = columns // self.peers * self.tile.b.dtype.size
        if self.tile.b.along == "rows" and bytes_of_columns % SWIZZLED_ROW:
            return columns, depth // self.peers
        return columns // self.peers, depth

    @property
    def stage_bytes(self) -> int:
        return self.parts * (self.tile.a.bytes + self.tile.b.bytes)

    @property
    def room_bytes(self) -> int:
        """Shared memory in which one group reorders its tile for the write-back."""
        return self.room_slots * self.tile.rows * SWIZZLED_ROW

    @property
    def room_slots(self) -> int:
        return 2 if self.tile.rows <= 64 else 1

    @property
    def room_start(self) -> int:
        return self.stages * self.stage_bytes

    @property
    def gates_start(self) -> int:
        # Only a filler that runs ahead needs stages and room at the same time.
        apart = self.room_start if self.filler_lanes else 0
        return max(self.room_start, apart + self.groups * self.room_bytes)

    @property
    def partials_start(self) -> int:
        """Where the program's partials rest: of each group those along rows, then the others."""
        return self.gates_start + 16 * self.stages

    def partial_bytes(self, *kinds: str) -> int:
        """Of one group, for partials along a 'row' or a 'column', or both."""
        if self.program is None:
            return 0
        kinds = kinds or ("row", "column")
        return sum(room_for(self.program, kind, self.tile.rows) for kind in kinds)

    @property
    def shared_bytes(self) -> int:
        return self.partials_start + self.groups * self.partial_bytes()

    @property
    def threads(self) -> int:
        return self.groups * self.lanes + self.filler_lanes

    @property
    def entry_registers(self) -> int:
        """Registers a lane until a group claims or yields; 0: as many as fit."""
        if not self.registers[1]:
            return 0
        return 65536 // self.teams_per_unit // self.threads // 8 * 8

    @property
    def label(self) -> str:
        bm, bn, bk = self.block
        t = self.tile
        return (
            f"{t.unit} {bm}x{bn}x{bk} {self.a}{t.a.along[0]} x {self.b}{t.b.along[0]} -> {self.out}"
            f" {t.a.route} stages {self.stages} peers {self.peers}"
            + (f" image {self.image}{' turned' * self.turned}" if self.image else "")
        )

    def illegal(self) -> str:
        """Why the plan makes no kernel, with the numbers; empty when it does."""
        t = self.tile
        if (t.rows * self.down, t.columns * self.across) != (t.a.rows, t.b.rows):
            return (
                f"{self.down} x {self.across} tiles of {t.rows}x{t.columns} are not a block of"
                f" {t.a.rows}x{t.b.rows}"
            )
        for panel in (t.a, t.b):
            if panel.along == "k" and panel.depth * panel.dtype.size != SWIZZLED_ROW:
                return f"a panel along k holds 128 bytes of k, not {panel.depth} x {panel.dtype}"
        if t.a.depth != t.b.depth:
            return f"panels of depth {t.a.depth} and {t.b.depth}"
        if self.stages < 2:
            return f"a ring needs two stages, got {self.stages}"
        if self.peers > 1 and t.b.along == "rows" and not t.b.swizzled:
            return "peers share panels in boxes; an unswizzled panel is one piece"
        width = min(SWIZZLED_ROW // self.out.size, t.columns)
        if t.columns % width:
            return f"{t.columns} columns of {self.out} are no whole number of 128-byte runs"
        if self.share[1] % 8:
            return f"a share of {self.share[1]} k of B is no whole number of 8 lines"
        for panel, extent, count in ((t.a, t.rows, self.down), (t.b, t.columns, self.across)):
            if panel.along == "rows" and panel.swizzled and count > 1:
                if extent * panel.dtype.size % SWIZZLED_ROW:
                    return f"a group's {extent} rows of {panel.dtype} start inside a 128-byte box"
        few, many = self.registers
        pool = self.threads * self.entry_registers
        wanted = self.groups * self.lanes * many + self.filler_lanes * few
        if wanted > pool:
            # The claim would wait for ever.
            return f"groups claim {wanted} registers of {pool} the team enters with"
        if self.joined and (self.out != t.dtype or self.store == "box" or self.program):
            return f"slices are summed as {t.dtype} that leaves by rows, without a program"
        boxed = self.image and t.a.route == "box"
        if boxed and (t.a.along != "k" or self.parts > 1 or self.turned or self.joined):
            return f"boxes of pixels lie along k, in one part: {t.a.along}, {self.parts} parts"
        if self.parts not in (1, 2) or self.peers < 1:
            return f"parts = {self.parts}, peers = {self.peers}"
        return "" if self.program is None else self._illegal_program(self.program)

    def _illegal_program(self, program: Program) -> str:
        kinds = {output.kind for output in program.outputs}
        if "row" in kinds and self.across > 1:
            return f"partials along rows need one group across, the plan has {self.across}"
        if "column" in kinds and (self.down > 1 or self.peers > 1):
            return (
                f"partials down columns need one group down and no peers, the plan has {self.down}"
                f" and {self.peers}"
            )
        if program.pairs and self.tile.columns % 2:
            return f"pairs of columns on a tile of {self.tile.columns}"
        return illegal(self.tile, program)
