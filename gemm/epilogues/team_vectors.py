"""Whole chunks of a team's tile: a lane takes a vector of adjacent columns of several rows.

    lanes ->   +----+----+----+-   16 bytes of accumulators each: 4 columns, or 2 pairs
    rows       | v  |    |    |
               +----+----+----+-   the lane's other rows follow, a warp's height apart

All that a chunk reads of operands is asked for before its accumulators reach shared memory, so
that one wait serves all rows. Then row follows row: its program, stores and partials; more of
them side by side do not fit the registers beside the tile.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gemm.microkernels.cooperative import CHUNK, ROW, TeamTile
from gemm.microkernels.dtypes import TileShape, int32

from .partials import CHAINS, partial_value
from .program import Output, Program
from .team_partials import leave_below, row_chain, state_bytes
from .transfers import computed_as, load_scalar, stored
from .writer import Writer

# Names that each row has for itself.
OF_A_ROW = (
    r"i|h|acc[01]|both|front|back|sample|v\d+|k\d+|other\d+|chain\d+|c\d+_[01]|"
    r"(?:at|to|low|high)\d+"
)


@dataclass(frozen=True)
class Vectors:
    """lanes: columns of a vector; across: vectors of a chunk; rows: how many a lane takes at a
    time."""

    tile: TeamTile
    w: Writer
    lanes: int
    across: int
    rows: int

    @classmethod
    def of(cls, tile: TeamTile, program: Program, scalar: Writer) -> Vectors | None:
        """None where only single elements serve: an operand or a result whose columns are not
        adjacent, chains that do not begin with a chunk."""
        each = 2 if program.pairs else 1
        lanes = CHUNK // tile.dtype.size // each
        width = min(ROW // tile.dtype.size, tile.columns)
        if lanes == 0 or tile.dtype.kind == "c":
            return None
        across = width // each // lanes
        held = tile.rows // 4 * across // 32
        # As many as fit the registers beside the tile.
        rows = min(held, 4 if tile.unit == "wide" and tile.columns <= 128 else 2)
        asked = [x for i, x in enumerate(program.operands) if i in scalar.used]
        whole = held * 32 == tile.rows // 4 * across and held % max(1, rows) == 0
        spread = any(x.kind in ("row", "tile") and not x.unit for x in asked)
        spread |= any(x.kind == "tile" and not x.unit for x in program.outputs)
        chains = any(
            x.kind == "row" and (x.block % (across * lanes) or across * lanes % CHAINS)
            for x in program.outputs
        )
        if spread or chains or 32 % across or not rows or not whole:
            return None
        w = Writer(TileShape(tile.rows, width // lanes, lanes, program.acc), program)
        w.scope = scalar.scope
        return cls(tile, w, lanes, across, rows)

    @property
    def columns(self) -> int:
        """Columns, or pairs, of a chunk."""
        return self.across * self.lanes

    def _own(self, program: Program) -> list[int]:
        """Operands with a value for each row."""
        return [i for i in sorted(self.w.used) if program.operands[i].kind in ("tile", "column")]

    def prepare(self, w: Writer) -> None:
        """Lines before the loop over chunks: `whole`, how many of them vectors take."""
        program, lanes = w.program, self.lanes
        w.put(1, f"index_w = ramp({lanes}, I)")
        w.put(1, "zero_w = to_float(index_w, F)")
        w.put(1, f"own_w = lane() - quotient(lane(), {self.across}) * {self.across}")
        w.put(1, f"apart_w = max(1, quotient(lanes(), {self.across}))")
        w.put(1, f"whole = min(quotient(wide, {self.columns}), "
                 f"{self.tile.columns // (self.columns * w.per)})")  # fmt: skip
        tests = ["row_of(TILE, rows_held(TILE) - 1) >= m"]
        for i in sorted(w.used):
            operand = program.operands[i]
            bytes_ = min(CHUNK, lanes * operand.each * operand.dtype.size)
            if operand.kind in ("row", "tile"):
                tests.append(f"misalignment(p{i}, {bytes_}) != 0")
            if operand.kind == "tile":
                tests.append(f"r{i} & {bytes_ - 1} != 0")
        for o, output in enumerate(program.outputs):
            bytes_ = min(CHUNK, lanes * len(output.nodes) * output.dtype.size)
            if output.kind == "tile":
                tests.append(f"misalignment(q{o}, {bytes_}) != 0 or qr{o} & {bytes_ - 1} != 0")
        for test in tests:
            w.put(1, f"if {test}:")
            w.put(2, "whole = 0")
        for i, operand in enumerate(program.operands):
            if i in w.used and operand.kind == "number":
                w.put(1, f"x{i}_0_w = broadcast({_number(w, i)}, {lanes})")
            elif i in w.used and operand.kind == "scalar":
                self._renamed(w, 0, lambda i=i, x=operand: load_scalar(self.w, 1, i, x, f"p{i}"))

    def _renamed(self, w: Writer, row: int, write) -> None:
        """Lines of `write`, for row number `row` of this lane."""
        write()
        own = "|".join(f"x{i}_[01]|raw{i}_[01]|first{i}|second{i}" for i in self._own(w.program))
        each = re.compile(rf"\b({OF_A_ROW}{'|' + own if own else ''})\b")
        shared = re.compile(r"\b(x\d+_[01]|index|zero)\b")
        for line in self.w.lines:
            w.lines.append(shared.sub(r"\1_w", each.sub(rf"\1__{row}", line)))
        self.w.lines.clear()

    def put(self, w: Writer, partials: list[tuple[int, Output]]) -> None:
        """Lines for one whole chunk, inside the loop over chunks."""
        program, lanes, rows = w.program, self.lanes, self.rows
        own = self._own(program)
        w.put(3, f"for v in range(own_w, {self.across}, min(lanes(), {self.across})):")
        w.put(4, f"j = chunk * {self.columns} + v * {lanes}")
        w.put(4, "place = before + j")
        for i in sorted(w.used):
            if program.operands[i].kind == "row":
                self._renamed(w, 0, lambda i=i: self._load(4, i, f"p{i}"))
        w.put(4, f"for part in range(quotient(rows_held(TILE), {rows} * apart_w)):")
        w.put(5, f"g = quotient(lane(), {self.across}) + part * {rows} * apart_w")
        for u in range(rows):
            w.put(5, f"h__{u} = g + {u} * apart_w")
            w.put(5, f"i__{u} = row_of(TILE, h__{u})")
        for u in range(rows):
            for i in own:
                self._renamed(w, u, lambda i=i: self._load(5, i, f"shift(p{i}, i * r{i})"))
        # Alone, a program comes here for every vector of the chunk.
        w.put(5, "if part == 0 and (lanes() > 1 or v == 0):")
        w.put(6, "team_spill(TILE, t, room, chunk)")
        for i in sorted(w.used):
            if program.operands[i].kind == "row":
                self._renamed(w, 0, lambda i=i: self._values(5, i))
        for u in range(rows):
            self._renamed(w, u, lambda: self._row(own, partials))
        self._finish_rows(w, partials)

    def _row(self, own: list[int], partials: list[tuple[int, Output]]) -> None:
        """The program on a vector of one row, its stores, and its values of partials."""
        w = self.w
        for i in own:
            self._values(5, i)
        self._accumulators()
        w.put_nodes(5)
        self._stores()
        for o, output in partials:
            w.put(5, f"k{o} = {partial_value(w, output)}")
            if output.kind == "column":
                leave_below(w, o, output, 5)
            else:
                row_chain(w, o, output, self.columns)

    def _words(self, i: int) -> int:
        """32-bit words of a vector of the operand, which wait unwidened; 0: it is widened."""
        dtype, lanes = self.w.program.operands[i].dtype, self.lanes
        return lanes * dtype.size // 4 if dtype.size < 4 and lanes * dtype.size % 4 == 0 else 0

    def _load(self, depth: int, i: int, p: str) -> None:
        """Vectors of one row of an operand, as they are in memory where those are smaller."""
        w, operand, lanes, words = self.w, self.w.program.operands[i], self.lanes, self._words(i)
        if operand.kind == "column":
            load_scalar(w, depth, i, operand, p)
            return
        bytes_ = lanes * operand.dtype.size
        align = min(CHUNK, bytes_ * operand.each)
        at = f"aligned(shift({p}, j * {operand.each * operand.dtype.size}), {align})"
        if words:
            at = f"aligned(recast({at}, {w.name('D', int32)}), {align})"
        count = words or lanes
        for part in range(operand.each):
            if part:
                at = f"aligned(shift(at{i}, {bytes_}), {min(CHUNK, bytes_)})"
            else:
                w.put(depth, f"at{i} = {at}")
                at = f"at{i}"
            w.put(depth, f"raw{i}_{part} = load_lanes({at}, {count}, {count})")

    def _values(self, depth: int, i: int) -> None:
        """What `_load` brought as values of the program."""
        w, operand = self.w, self.w.program.operands[i]
        if operand.kind == "column":
            return
        names = [f"raw{i}_{part}" for part in range(operand.each)]
        if self._words(i):
            kind = w.name("D", computed_as(operand.dtype, w.program))
            names = [f"elements_of({name}, {kind})" for name in names]
        if operand.each == 1:
            w.put(depth, f"x{i}_0 = {names[0]}")
        else:
            w.put(depth, f"first{i} = {names[0]}")
            w.put(depth, f"second{i} = {names[1]}")
            w.put(depth, f"x{i}_0 = evens(first{i}, second{i})")
            w.put(depth, f"x{i}_1 = odds(first{i}, second{i})")

    def _accumulators(self) -> None:
        w, lanes = self.w, self.lanes
        at = f"aligned(spilled(TILE, room, h, v * {lanes * w.per}), {CHUNK})"
        if w.per == 1:
            w.put(5, f"acc0 = load_lanes({at}, {lanes}, {lanes})")
        else:
            bytes_ = lanes * self.tile.dtype.size
            w.put(5, f"both = {at}")
            w.put(5, f"front = load_lanes(both, {lanes}, {lanes})")
            second = f"aligned(shift(both, {bytes_}), {bytes_})"
            w.put(5, f"back = load_lanes({second}, {lanes}, {lanes})")
            w.put(5, "acc0 = evens(front, back)")
            w.put(5, "acc1 = odds(front, back)")
        kind = w.program.acc.kind
        w.put(5, "sample = acc0" if kind == "f" else "sample = to_float(acc0, F)")

    def _stores(self) -> None:
        w, lanes = self.w, self.lanes
        for o, output in enumerate(w.program.outputs):
            if output.kind != "tile":
                continue
            values = [stored(w, node, output.dtype) for node in output.nodes]
            bytes_ = lanes * output.dtype.size
            align = min(CHUNK, bytes_ * len(values))
            place = f"i * qr{o} + j * {len(values) * output.dtype.size}"
            w.put(5, f"to{o} = aligned(shift(q{o}, {place}), {align})")
            if len(values) == 1:
                w.put(5, f"store_lanes(to{o}, {values[0]}, {lanes})")
                continue
            w.put(5, f"low{o} = {values[0]}")
            w.put(5, f"high{o} = {values[1]}")
            w.put(5, f"store_lanes(to{o}, interleave_low(low{o}, high{o}), {lanes})")
            second = f"aligned(shift(to{o}, {bytes_}), {min(CHUNK, bytes_)})"
            w.put(5, f"store_lanes({second}, interleave_high(low{o}, high{o}), {lanes})")

    def _finish_rows(self, w: Writer, partials: list[tuple[int, Output]]) -> None:
        """Blocks of partials along rows that end with this chunk."""
        rows = [(o, x) for o, x in partials if x.kind == "row"]
        if not rows:
            return
        w.put(3, "lanes_sync()")
        w.put(3, f"past = before + (chunk + 1) * {self.columns}")
        for o, output in rows:
            ends = f"past == width{o}"
            if output.block:
                w.put(3, f"number = quotient(past - 1, {output.block})")
                ends += f" or past == (number + 1) * {output.block}"
            else:
                w.put(3, "number = 0")
            w.put(3, f"if {ends}:")
            w.put(4, "for h in range(lane(), rows_held(TILE), lanes()):")
            w.put(5, "i = row_of(TILE, h)")
            to = f"shift(q{o}, (row + i) * qr{o} + number * qc{o})"
            value = f"finish{o}(shift(s{o}, i * {state_bytes(output)}))"
            w.put(5, f"store_lanes({to}, {value}, 1)")
        w.put(3, "lanes_sync()")


def _number(w: Writer, i: int) -> str:
    kind = w.name("D", computed_as(w.program.operands[i].dtype, w.program))
    return f"table_number(extra, {w.program.slot(i)}, {kind})"
