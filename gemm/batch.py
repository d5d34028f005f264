"""Where the matrices of a batch lie.

`dims` is an int64 table of (extent, a step, b step, c step) rows, innermost first. A batch is
walked in runs along the innermost row, so that a step costs an addition and not a division.
"""

from __future__ import annotations

from gemm.microkernels.dtypes import int64
from gemm.microkernels.vocabulary import load, recast, shift

A, B, C = 8, 16, 24  # byte offsets of the steps in a row
ROW = 32


def offset(dims, index, operand):
    """Bytes from the first matrix of an operand to matrix `index`."""
    row = recast(dims, int64)
    total = 0
    rest = index
    while rest > 0:
        extent = load(row)
        total += rest % extent * load(shift(row, operand))
        rest = rest // extent
        row = shift(row, ROW)
    return total


def run_length(dims, index):
    """Matrices from `index` on that one step of the innermost row separates."""
    extent = load(recast(dims, int64))
    return extent - index % extent


def step(dims, operand):
    """Bytes between neighbours of the innermost row."""
    return load(shift(recast(dims, int64), operand))
