"""A program becomes the write-back hook of a kernel, as plain Python in the words of the tile.

The tile is spilled, and the program runs over it a vector at a time:

        vectors ->  +---+---+      for each row i                    column operands are spread
        rows        | v |   |        for each vector v of columns    row operands are loaded
                    +---+---+          acc -> program -> stores, partials

(Along a row first: rows that are a multiple of 4096 bytes apart share a set of the cache.)

What the hook will touch lies in as many pages as the tile has rows, a few bytes in each, which
no hardware prefetcher foresees: `announce` asks for it while the micro-kernel runs, some rows
between every two pieces of k.
"""

from __future__ import annotations

from gemm.microkernels.dtypes import TileShape

from .partials import column_partial, row_partial
from .program import Program
from .transfers import (
    load_operand,
    load_scalar,
    prepare_operand,
    prepare_output,
    put_origin,
    store_output,
)
from .writer import Writer

LINE = 64  # bytes that one request to memory brings


def source(
    shape: TileShape, program: Program, resting: bool = False
) -> tuple[str, dict[str, object]]:
    """(text of the hook `write_back`, the names it uses); resting: as of `make_write_back`."""
    w = Writer(shape, program)
    lanes, per = shape.lanes, w.per
    w.put(0, "def write_back(t, c, rs, cs, m, n, row, column, batch, extra):")
    put_origin(w)
    w.put(1, "rows = t" if resting else "rows = tile_spill(t, ACC)")
    w.put(1, f"index = ramp({lanes}, I)")
    used = w.used
    for i, operand in enumerate(program.operands):
        if i in used:
            prepare_operand(w, i, operand)
    for o, output in enumerate(program.outputs):
        prepare_output(w, o, output)
    row_size, vector_size = shape.columns * shape.dtype.size, lanes * shape.dtype.size
    w.put(1, "for i in range(m):")
    for i, operand in enumerate(program.operands):
        if i in used and operand.kind == "column":
            load_scalar(w, 2, i, operand, f"shift(p{i}, i * r{i})")
    w.put(2, f"for v in range({shape.vectors // per}):")
    w.put(3, f"left = n // {per} - v * {lanes}")
    w.put(3, "if left > 0:")
    w.put(4, f"place = column // {per} + v * {lanes}")
    for i, operand in enumerate(program.operands):
        if i in used and operand.kind == "row":
            load_operand(w, 4, i, operand, f"p{i}")
    w.put(4, f"at = shift(rows, i * {row_size} + v * {per * vector_size})")
    if program.pairs:
        w.put(4, f"low = load_lanes(at, {lanes}, {lanes})")
        w.put(4, f"high = load_lanes(shift(at, {vector_size}), {lanes}, {lanes})")
        w.put(4, "acc0 = evens(low, high)")
        w.put(4, "acc1 = odds(low, high)")
    else:
        w.put(4, f"acc0 = load_lanes(at, {lanes}, {lanes})")
    w.put(4, "sample = acc0" if program.acc.kind in "fc" else "sample = to_float(acc0, F)")
    for i, operand in enumerate(program.operands):
        if i in used and operand.kind == "tile":
            load_operand(w, 4, i, operand, f"shift(p{i}, i * r{i})")
    w.put_nodes(4)
    for o, output in enumerate(program.outputs):
        {"tile": store_output, "row": row_partial, "column": column_partial}[output.kind](
            w, o, output
        )
    return "\n".join(w.lines) + "\n", w.scope


def announcement(shape: TileShape, program: Program) -> tuple[str, dict[str, object]]:
    """(text of `announce`, the names it uses): asks for the tile operands and outputs of a tile."""
    w = Writer(shape, program)
    w.put(0, "def announce(piece, pieces, m, row, column, batch, extra):")
    put_origin(w)
    lines = {}
    for i, operand in enumerate(program.operands):
        if i in w.used and operand.kind == "tile" and operand.unit:
            prepare_operand(w, i, operand)
            lines[f"p{i}", f"r{i}"] = operand.each * operand.dtype.size
    for o, output in enumerate(program.outputs):
        if output.kind == "tile" and output.unit:
            prepare_output(w, o, output)
            lines[f"q{o}", f"qr{o}"] = len(output.nodes) * output.dtype.size
    if not lines:
        w.put(1, "return")
        return "\n".join(w.lines) + "\n", w.scope
    w.put(1, "for i in range(piece, m, pieces):")
    for (p, step), size in lines.items():
        for at in range(0, shape.columns // w.per * size, LINE):
            w.put(2, f"prefetch(shift({p}, i * {step} + {at}))")
    return "\n".join(w.lines) + "\n", w.scope


def make_announce(shape: TileShape, program: Program | None):
    """announce(piece, pieces, m, row, column, batch, extra), called before each of `pieces` pieces
    of k of the micro-kernel whose tile of m rows the write-back hook will get."""
    if program is None:
        return silent
    text, scope = announcement(shape, program)
    exec(compile(text, "<epilogue>", "exec"), scope)
    return scope["announce"]


def silent(piece, pieces, m, row, column, batch, extra):
    """Nothing will be touched but the output."""


def make_write_back(shape: TileShape, program: Program, resting: bool = False):
    """The write-back hook (see gemm/blocked.py, `make_store`) that runs a program; resting: for a
    tile that lies in memory already, row by row, `t` being its address."""
    if program.pairs and shape.vectors % 2:
        raise ValueError(
            f"a program of pairs needs an even number of vectors, tile {shape.rows}x"
            f"{shape.columns} has {shape.vectors} of {shape.lanes} lanes"
        )
    text, scope = source(shape, program, resting)
    exec(compile(text, "<epilogue>", "exec"), scope)
    return scope["write_back"]
