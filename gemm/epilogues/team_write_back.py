"""A program as the write-back of a team's kernel (gemm/team): a group's tile goes through it.

The tile reaches shared memory 128 bytes of every row at a time. Columns go to lanes, so that
neighbouring lanes touch neighbouring elements of memory, and rows follow one another:

        lanes ->    +---+---+---+-     for each chunk of 128 bytes of columns
        rows        | v |   |   |        for each column v of this lane
                    +---+---+---+-         for the rows h that this warp of lanes holds
                                             acc -> program -> stores, values of partials

Where a chunk is whole, lanes take vectors of columns and several rows together
(team_vectors.py); what stands here takes element after element, at edges and where operands are
spread or not aligned. Partials are in team_partials.py.
"""

from __future__ import annotations

from gemm.microkernels import cooperative
from gemm.microkernels.cooperative import ROW, TeamTile
from gemm.microkernels.dtypes import TileShape, uint8

from .partials import identity, partial_value
from .program import Operand, Program
from .team_partials import column_chain, column_sums, leave_below, row_turns, state_bytes
from .team_vectors import Vectors
from .transfers import load_scalar, prepare_operand, prepare_output, put_origin, stored
from .writer import Writer, literal

# Values on their way down a column: one chunk's while those of the chunk before are summed.
BUFFERS = 2


def room_for(program: Program, kind: str, rows: int) -> int:
    """Bytes of shared memory that partials of this kind need for a tile of so many rows."""
    if kind == "row":
        sizes = [state_bytes(o) for o in program.outputs if o.kind == "row"]
        return sum(sizes) * rows
    return sum(o.kind == "column" for o in program.outputs) * BUFFERS * rows * ROW


def illegal(tile: TeamTile, program: Program) -> str:
    """Why the program does not run on this tile; empty when it does."""
    if program.acc is not tile.dtype:
        return f"a program of a {program.acc} product on a tile of {tile.dtype}"
    if program.pack_a or program.pack_b:
        return "programs that change an operand while it is packed run on the CPU"
    if program.float_type.size > tile.dtype.size:
        return f"{program.float_type} values behind a {tile.dtype} product"
    return ""


def source(tile: TeamTile, program: Program) -> tuple[str, dict[str, object]]:
    """(text of the hook `write_back`, the names it uses).

    write_back(t, room, state, below, m, n, row, column, batch, extra): tile t, of which m x n
    (either may be <= 0) lie in the matrix, its first element at (row, column) of matrix `batch`;
    room, state, below: shared memory of this group for the tile, for partials along rows and for
    values on their way down; extra: the table of operands.
    """
    width = min(ROW // tile.dtype.size, tile.columns)
    w = Writer(TileShape(tile.rows, width, 1, program.acc), program)
    w.scope |= {word.__name__: word for word in cooperative.WORDS}
    w.scope |= {"TILE": tile, "BYTES": uint8}
    across = width // w.per
    w.put(0, "def write_back(t, room, state, below, m, n, row, column, batch, extra):")
    w.put(1, "if m > 0 and n > 0:")
    w.put(2, "run(t, room, state, below, m, n, row, column, batch, extra)")
    w.put(0, "def run(t, room, state, below, m, n, row, column, batch, extra):")
    put_origin(w)
    w.put(1, "index = ramp(1, I)")
    w.put(1, "zero = to_float(index, F)" if program.acc.kind != "c" else "zero = index")
    w.put(1, f"wide = n // {w.per}")
    w.put(1, f"before = column // {w.per}")
    for i, operand in enumerate(program.operands):
        if i in w.used:
            prepare_operand(w, i, operand)
    _prepare_outputs(w, tile)
    partials = [(o, x) for o, x in enumerate(program.outputs) if x.kind != "tile"]
    chunks = tile.columns // width
    # Alone, a program takes all columns and rows; lanes share them.
    w.put(1, f"own = lane() - quotient(lane(), {across}) * {across}")
    w.put(1, f"apart = max(1, quotient(lanes(), {across}))")
    vectors = Vectors.of(tile, program, w)
    columns = [(o, output) for o, output in partials if output.kind == "column"]
    if vectors is not None:
        vectors.prepare(w)
    w.put(1, f"for chunk in range({chunks}):")
    for o, _ in columns:
        w.put(2, f"d{o} = shift(b{o}, (chunk - quotient(chunk, {BUFFERS}) * {BUFFERS})"
                 f" * {tile.rows * ROW})")  # fmt: skip
    if vectors is not None:
        w.put(2, "if chunk < whole:")
        vectors.put(w, partials)
        w.put(2, "else:")
        w.put(3, "team_spill(TILE, t, room, chunk)")
        _edge(w, partials, across, 3)
    else:
        w.put(2, "team_spill(TILE, t, room, chunk)")
        _edge(w, partials, across, 2)
    if columns:
        w.put(2, "group_sync()")
        # Lanes that read a spilled tile together take turns; the others go on.
        w.put(2, "bands = quotient(group_lanes(), lanes())")
        w.put(2, "if quotient(group_lane(), lanes()) == chunk - quotient(chunk, bands) * bands:")
        w.put(3, f"for v in range(lane(), {across}, lanes()):")
        w.put(4, f"j = chunk * {across} + v")
        w.put(4, "place = before + j")
        w.put(4, "if j < wide:")
        for o, output in columns:
            (column_sums if output.combine == "log_sum_exp" else column_chain)(
                w, o, output, tile.rows
            )
        if chunks % BUFFERS:
            w.put(1, "group_sync()")
    return "\n".join(w.lines) + "\n", w.scope


def _columns(w: Writer, depth: int, across: int) -> None:
    """The loop over this lane's columns of a chunk, with what belongs to a column."""
    w.put(depth, f"for v in range(own, {across}, min(lanes(), {across})):")
    w.put(depth + 1, f"j = chunk * {across} + v")
    w.put(depth + 1, "place = before + j")
    w.put(depth + 1, "near = min(j, wide - 1)")
    for i, operand in enumerate(w.program.operands):
        if i in w.used and operand.kind == "row":
            _load_one(w, depth + 1, i, operand, f"p{i}", "near")


def _edge(w: Writer, partials, across: int, depth: int) -> None:
    """Row by row, any part of a chunk."""
    _columns(w, depth, across)
    w.put(depth + 1, f"for h in range(quotient(lane(), {across}), rows_held(TILE), apart):")
    w.put(depth + 2, "i = row_of(TILE, h)")
    for o, output in partials:
        none = identity(output.combine, output.dtype)
        text = literal(none, w) if isinstance(none, float) else str(none)
        kind = "zero" if output.dtype.kind == "f" else "index"
        w.put(depth + 2, f"k{o} = fill({kind}, {text})")
    w.put(depth + 2, "if i < m and j < wide:")
    _loads(w, depth + 3)
    w.put_nodes(depth + 3)
    _stores(w, depth + 3)
    for o, output in partials:
        w.put(depth + 3, f"k{o} = {partial_value(w, output)}")
    for o, output in partials:
        if output.kind == "row":
            row_turns(w, o, output, across, depth + 2)
        else:
            leave_below(w, o, output, depth + 2)


def _prepare_outputs(w: Writer, tile: TeamTile) -> None:
    state = below = 0
    for o, output in enumerate(w.program.outputs):
        prepare_output(w, o, output, False)
        kind = w.name("D", output.dtype)
        if output.kind == "row":
            w.put(1, f"s{o} = recast(shift(state, {state}), {kind})")
            state += state_bytes(output) * tile.rows
        elif output.kind == "column":
            w.put(1, f"b{o} = recast(shift(below, {below}), {kind})")
            w.put(1, f"height{o} = table_integer(extra, 0)")
            below += BUFFERS * tile.rows * ROW


def _load_one(w: Writer, depth: int, i: int, operand: Operand, p: str, at: str) -> None:
    """The value or the pair of one column of an operand."""
    step = str(operand.dtype.size) if operand.unit else f"c{i}"
    for part in range(operand.each):
        where = f"shift({p}, ({at} * {operand.each} + {part}) * {step})"
        w.put(depth, f"x{i}_{part} = load_lanes({where}, 1, 1)")


def _loads(w: Writer, depth: int) -> None:
    """One element, or pair, of the tile and of each operand that has one for it."""
    program = w.program
    for part in range(w.per):
        at = f"spilled(TILE, room, h, v * {w.per} + {part})"
        w.put(depth, f"acc{part} = load_lanes({at}, 1, 1)")
    w.put(depth, "sample = acc0" if program.acc.kind in "fc" else "sample = to_float(acc0, F)")
    for i, operand in enumerate(program.operands):
        if i in w.used and operand.kind == "column":
            load_scalar(w, depth, i, operand, f"shift(p{i}, i * r{i})")
        elif i in w.used and operand.kind == "tile":
            _load_one(w, depth, i, operand, f"shift(p{i}, i * r{i})", "j")


def _stores(w: Writer, depth: int) -> None:
    """One element, or pair, of each tile output."""
    for o, output in enumerate(w.program.outputs):
        if output.kind == "tile":
            step = str(output.dtype.size) if output.unit else f"qc{o}"
            for part, node in enumerate(output.nodes):
                at = f"(j * {len(output.nodes)} + {part}) * {step}"
                value = stored(w, node, output.dtype)
                w.put(depth, f"store_lanes(shift(q{o}, i * qr{o} + {at}), {value}, 1)")


def make_team_ahead(tile: TeamTile, program: Program | None):
    """ahead(m, n, row, column, batch, extra): before a group computes its tile at (row, column), m
    x n of which are inside, it asks for what the program will read of operands as large."""
    if program is None or not program.reads_tiles:
        return lambda m, n, row, column, batch, extra: None
    w = Writer(TileShape(tile.rows, tile.columns, 1, program.acc), program)
    asked = [(i, x) for i, x in enumerate(program.operands) if x.kind == "tile" and x.unit]
    w.scope |= {word.__name__: word for word in cooperative.WORDS}
    w.put(0, "def ahead(m, n, row, column, batch, extra):")
    put_origin(w)
    for i, operand in asked:
        prepare_operand(w, i, operand)
        size = operand.each * operand.dtype.size
        w.put(1, f"bytes{i} = min(n, {tile.columns}) // {w.per} * {size}")
        w.put(1, f"for h in range(group_lane(), min(m, {tile.rows}), group_lanes()):")
        w.put(2, f"memory_ahead(shift(p{i}, h * r{i}), bytes{i})")
    exec(compile("\n".join(w.lines) + "\n", "<epilogue>", "exec"), w.scope)
    return w.scope["ahead"]


def make_team_write_back(tile: TeamTile, program: Program):
    """The hook of `source` as a function."""
    text, scope = source(tile, program)
    exec(compile(text, "<epilogue>", "exec"), scope)
    return scope["write_back"]
