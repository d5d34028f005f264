"""Products of device arrays.

call.py        a call's signature, what was decided for it, and everything that is refused
shapes.py      broadcasting, batch steps, result types
signature.py   a problem without addresses; which unit computes it
batches.py     any batch, any K, any steps of the result   -+
slices.py      slices of K by name                          +-> choose.prepare
choose.py      a signature -> plan, operands packed ahead  -+
blocks.py      an estimate of time for each block of the group-wide unit
launches.py    a plan and sizes -> a launch that is told addresses
"""

from .batches import any_batch
from .blocks import wide_block
from .call import _prepared, matmul, matmul_of_host
from .choose import FLOAT8_CHAIN, prepare, team_plan
from .launches import (
    RECENT_BOXES,
    Boxes,
    Launch,
    NoBoxes,
    after_packs,
    box_of,
    launch_pack,
    load_kernel,
    spread,
    table_of,
)
from .shapes import batch_shape, broadcast, merged, result_type
from .signature import (
    DTYPES,
    LARGEST_GRID,
    PRECISIONS,
    TABLE_ROWS,
    Matrix,
    Signature,
    accumulator,
    round_up,
    unit_of,
)

__all__ = [
    "DTYPES",
    "Boxes",
    "FLOAT8_CHAIN",
    "LARGEST_GRID",
    "Launch",
    "PRECISIONS",
    "RECENT_BOXES",
    "TABLE_ROWS",
    "Matrix",
    "NoBoxes",
    "Signature",
    "_prepared",
    "accumulator",
    "after_packs",
    "any_batch",
    "batch_shape",
    "table_of",
    "box_of",
    "broadcast",
    "launch_pack",
    "load_kernel",
    "matmul",
    "matmul_of_host",
    "merged",
    "prepare",
    "result_type",
    "round_up",
    "spread",
    "team_plan",
    "unit_of",
    "wide_block",
]
