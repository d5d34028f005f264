"""The blocked product in its level-mapped form: one block of the output for a team at a time.

Level map, beside gemm/blocked.py

    loops 5, 3   over N in BN, over M in BM   a grid of workers, in bands of `band` block rows
    loop 4       over K in BK                 sequential: the ring's stages, one chain of fma
    loops 2, 1   inside a block               groups of the team, then lanes inside the words

Staging: where the CPU packs a block before it computes, a team passes packed panels through a
ring of stages in shared memory. `make_ring_kernel` gives the packing to a group of its own, which
runs ahead of those that compute; `make_team_kernel` has every lane fetch the next stage before it
computes the current one. Write-back is the same hook in both: the finished tile, narrowed once.

    plan.py       constants and legality          ring.py       a filling group and a ring of stages
    walk.py       the order of blocks             lanes.py      every lane fills and drains
    leave.py      the write-back                  packing.py    what no stage can fetch as it lies
    join.py       slices of K, summed in order
    pixels.py     operand A gathered from images
"""

from __future__ import annotations

from gemm.microkernels.dtypes import float32
from gemm.microkernels.pixels import RULE_BYTES

from .join import SLOTS
from .lanes import make_team_kernel
from .packing import PackPlan, make_pack_kernel
from .plan import TeamPlan
from .ring import make_ring_kernel
from .walk import walk

TABLE_BYTES = 128  # four rows of a batch
TABLE = f"table{TABLE_BYTES}"

__all__ = [
    "PackPlan",
    "TeamPlan",
    "build",
    "make_pack_kernel",
    "make_ring_kernel",
    "make_team_kernel",
    "walk",
]


def build(plan):
    """(kernel, argument kinds): DType for a pointer, 'box2', 'box4', 'image1' .. 'image3',
    'integer', or 'table' with its number of bytes."""
    if isinstance(plan, PackPlan):
        dims = f"table{TABLE_BYTES + RULE_BYTES}" if plan.image else TABLE
        return make_pack_kernel(plan), (plan.out, plan.source, dims, *["integer"] * 8)
    extra = "integer" if plan.program is None else f"table{8 * plan.program.end}"
    if plan.joined:
        extra = f"table{8 * SLOTS}"
    if plan.filler_lanes:
        box = "box4" if plan.batched else "box2"
        a, b = (f"image{plan.image}", "box4") if plan.image else (box, box)
        kinds = (a, b, box, plan.out, float32, float32, extra, *["integer"] * 18)
        return make_ring_kernel(plan), kinds
    dims = f"table{TABLE_BYTES + RULE_BYTES}" if plan.image else TABLE
    kinds = (plan.a, plan.b, plan.out, extra, dims, *["integer"] * 13)
    return make_team_kernel(plan), kinds
