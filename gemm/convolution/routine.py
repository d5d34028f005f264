"""A small kernel beside the convolution's own, with its integers: one table, one call."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import numpy as np

from gemm import execution
from gemm.targets import levels


class Routine:
    """Kernel `spec` of a level with the integers that end its arguments, the team's size last."""

    def __init__(self, level: str, spec: Any, integers: tuple[int, ...], workers: int):
        self.level, self.spec = level, spec
        self.integers, self.workers = (*integers, workers), workers
        self.pack: Any = None
        self.team: Any = None
        if level != "reference":
            from gemm.backends.cpu import kernels
            from gemm.backends.cpu.team import team

            self.entry = kernels.entry(levels()[level], spec)
            if workers > 1:
                self.team = team(levels()[level])

    def run(self, *arrays: np.ndarray, at: int = 0) -> None:
        """On these arrays, the first from `at` bytes after its first element."""
        if self.level == "reference":
            from gemm.backends.reference.run import pointer, run

            function, kinds = self.spec.build()
            offsets = (at, *(0 for _ in arrays[1:]))
            pointers = [pointer(a, k, o) for a, k, o in zip(arrays, kinds, offsets, strict=False)]
            run(function, (*pointers, *self.integers), self.workers)
            return
        if self.pack is None:
            self.pack = struct.Struct(f"={len(arrays) + len(self.integers)}q").pack
        first, *others = map(execution.address, arrays)
        table = bytearray(self.pack(first + at, *others, *self.integers))
        held = ctypes.c_char.from_buffer(table)
        arguments = ctypes.addressof(held)
        if self.team is None:
            self.entry(arguments, 0)
        else:
            self.team.run(self.entry.address, arguments, self.workers)
