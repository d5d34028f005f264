"""Packing ahead of a kernel, for operands that no stage can fetch as they lie."""

from __future__ import annotations

from dataclasses import dataclass

from gemm.microkernels.cooperative import (
    StageShape,
    panel_end,
    panel_write,
    quotient,
    team_memory,
    team_sync,
    worker,
    workers,
)
from gemm.microkernels.dtypes import DType, uint8
from gemm.microkernels.vocabulary import shift

from .lanes import make_begin_matrix
from .pixels import make_begin_pixels
from .walk import batch_offsets


@dataclass(frozen=True)
class PackPlan:
    """Packing ahead of a kernel: any strides to adjacent k. parts: 1 a copy, 2 high and low;
    image: elements are found by a rule (pixels.py), which follows the batch, as zeros outside."""

    stage: StageShape
    source: DType
    out: DType
    parts: int = 1
    lanes: int = 256
    image: bool = False

    threads = property(lambda self: self.lanes)
    shared_bytes = property(lambda self: self.stage.bytes)
    peers = 1
    entry_registers = 0

    @property
    def teams_per_unit(self) -> int:
        """Teams at a time on a multiprocessor: as many as leave each lane the registers it needs
        (narrow elements are more of them)."""
        return 4 if self.stage.dtype.size >= 4 else 1

    @property
    def label(self) -> str:
        rule = " by a rule" if self.image else ""
        return (
            f"pack {self.source} near {self.stage.near} -> {self.out} in {self.parts} parts{rule}"
        )


def make_pack_kernel(plan: PackPlan):
    """dst[r, part, k] = src[r, k], panel by panel; `parts` 2 splits each value in two."""
    STAGE, PARTS = plan.stage, plan.parts
    ROWS, DEPTH = STAGE.rows, STAGE.depth
    SIZE = plan.out.size

    def write_whole(q, dst_row, panel, rows, depth, part_step):
        panel_write(STAGE, q, dst_row, panel, rows, depth, 0)

    def write_split(q, dst_row, panel, rows, depth, part_step):
        # Whole panels, zeros included: the box of both parts reaches beyond the first.
        panel_write(STAGE, q, dst_row, panel, rows, DEPTH, 1)
        panel_write(STAGE, shift(q, part_step), dst_row, panel, rows, DEPTH, 2)

    write = write_whole if PARTS == 1 else write_split
    begin = make_begin_pixels(STAGE, False) if plan.image else make_begin_matrix(STAGE)

    def kernel(dst, src, dims, rows, depth, row_step, k_step, dst_row, part_step, across, spans):
        """src: rows x depth at steps row_step, k_step; dst: dst_row bytes a row, adjacent k.

        dims: the batch, (extent, src step, dst step, 0); across: panels along k; spans: panels of
        the batch. part_step: bytes from a part of a row to the next.
        """
        memory = team_memory(uint8)
        down = quotient(rows + ROWS - 1, ROWS)
        for span in range(worker(), spans, workers()):
            matrix = quotient(span, down * across)
            rest = span - matrix * down * across
            i = quotient(rest, across)
            j = rest - i * across
            row = i * ROWS
            k = j * DEPTH
            at_src, at_dst, _ = batch_offsets(dims, matrix)
            p = shift(src, at_src + row * row_step)
            held = begin(memory, p, dims, row, k, row_step, k_step, rows - row, depth - k)
            team_sync()
            panel_end(STAGE, memory, held)
            team_sync()
            q = shift(dst, at_dst + row * dst_row + k * SIZE)
            write(q, dst_row, memory, rows - row, depth - k, part_step)

    kernel.label = plan.label  # type: ignore[attr-defined]
    return kernel
