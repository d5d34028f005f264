"""Loops 5 and 3: in which order teams take the blocks of an output, and the matrices of a batch."""

from __future__ import annotations

import math

from gemm.microkernels.cooperative import (
    quotient,
)
from gemm.microkernels.dtypes import int64
from gemm.microkernels.vocabulary import load, recast, shift

from .plan import TeamPlan


def make_locate(band: int):
    """(block row, block column) of the i-th block: bands of `band` rows, column by column."""

    def locate(i, rows, columns):
        above = quotient(i, band * columns) * band
        high = rows - above
        if high > band:
            high = band
        rest = i - above * columns
        column = quotient(rest, high)
        return above + rest - column * high, column

    return locate


def make_walk(plan: TeamPlan):
    """(visits, place): visits(down, across) is how many blocks a span holds, place(i, j, visit,
    down, across) the block row and column of one of them in span (i, j).

    A span is what one team takes in turn: where a chain of partials goes on from block to block,
    all of them, in the chain's order; without partials one block.
    """
    program = plan.program
    if program is None or all(output.kind == "tile" for output in program.outputs):
        return (lambda down, across: 1), (lambda i, j, visit, down, across: (i, j))

    def visits(down, across):
        return down * across

    def place(i, j, visit, down, across):
        row = quotient(visit, across)
        return i * down + row, j * across + visit - row * across

    return visits, place


def walk(plan: TeamPlan, m: int, n: int) -> tuple[int, int, int, int]:
    """(blocks of a span down, across, spans down, across) of an m x n output."""
    bm, bn, _ = plan.block
    rows, columns = -(-m // (bm * plan.peers)), -(-n // bn)
    program, down, across = plan.program, 1, 1
    for output in () if program is None else program.outputs:
        if output.kind == "row":
            lanes = bn // (2 if program is not None and program.pairs else 1)
            across = min(columns, math.lcm(across, _together(output.block, lanes, columns)))
        elif output.kind == "column":
            down = min(rows, math.lcm(down, _together(output.block, bm, rows)))
    return down, across, -(-rows // down), -(-columns // across)


def _together(block: int, extent: int, count: int) -> int:
    """How many of `count` blocks of the output one team must take for partials over `block`."""
    if block and extent % block == 0:
        return 1
    return min(count, block // extent) if block and block % extent == 0 else count


def batch_offsets(dims, index):
    """Byte steps of a, b and c to matrix `index` of a batch.

    dims: int64 table of (extent, a step, b step, c step) rows, innermost first.
    """
    at_a = 0
    at_b = 0
    at_c = 0
    row = recast(dims, int64)
    while index > 0:
        extent = load(row)
        digit = index % extent
        index = index // extent
        at_a += digit * load(shift(row, 8))
        at_b += digit * load(shift(row, 16))
        at_c += digit * load(shift(row, 24))
        row = shift(row, 32)
    return at_a, at_b, at_c
