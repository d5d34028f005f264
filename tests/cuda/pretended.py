"""A device that runs team kernels as plain Python, on host memory, and counts its launches."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np

from gemm.backends.cuda import arrays
from gemm.backends.cuda.targets import TARGETS
from gemm.microkernels.arithmetic import Table
from gemm.microkernels.cooperative import Box, Grid
from gemm.microkernels.dtypes import DTYPES, int64
from gemm.microkernels.pixels import AXES, COUNT, EXTENT, LOWEST, STEP, Image, entry
from gemm.microkernels.vocabulary import Pointer, storage
from gemm.team import TeamPlan


class Array:
    """Host memory that passes for an array in device memory."""

    def __init__(self, values: np.ndarray, on: Device):
        self.values, self.dtype = values, DTYPES[values.dtype.name]
        self.shape, self.strides = values.shape, values.strides
        self.address = on.address_of(values)

    def copy_to_host(self) -> np.ndarray:
        return self.values.copy()


class Cell(int):
    """A slot of a table: an integer, and the memory that it is the address of."""

    on: Device

    @property
    def memory(self):
        return self.on.pointer(int(self), None).memory

    @property
    def offset(self):
        return self.on.pointer(int(self), None).offset


class Device:
    """What gemm/device asks of a device; addresses are made up, each array far from the next."""

    units, index = 1, 0

    def __init__(self, target: str):
        self.target = TARGETS[target]
        self.memories: list[tuple[int, np.ndarray]] = []
        self.boxes: list = []
        self.launched: list = []
        self.free_from = 1 << 20

    def address_of(self, values: np.ndarray) -> int:
        base = values
        while isinstance(base.base, np.ndarray):
            base = base.base
        whole = base.reshape(-1).view(np.uint8)
        inside = values.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
        for start, memory in self.memories:
            if memory.__array_interface__["data"][0] == whole.__array_interface__["data"][0]:
                return start + inside
        start, self.free_from = self.free_from, self.free_from + (len(whole) + 8191) // 4096 * 4096
        self.memories.append((start, whole))
        return start + inside

    def pointer(self, address: int, dtype) -> Pointer:
        for start, memory in self.memories:
            if start <= address <= start + len(memory):
                return Pointer(memory, address - start, dtype)
        raise IndexError(f"address {address} is nobody's")

    def allocate(self, nbytes: int, stream: int) -> int:
        return self.address_of(np.full(nbytes, 0xFF, np.uint8))

    def free(self, address: int, stream: int) -> None:
        pass

    def clear(self, address, pitch, width, height, stream) -> None:
        p = self.pointer(address, None)
        for row in range(height):
            p.memory[p.offset + row * pitch : p.offset + row * pitch + width] = 0

    def box_map(self, address, kind, extents, steps, box, swizzled) -> bytes:
        self.boxes.append((address, extents, steps, box, swizzled))
        return (len(self.boxes) - 1).to_bytes(128, "little")

    def image_map(self, address, kind, extents, steps, lower, upper, channels, pixels, between):
        """Refuses what the driver refuses."""
        rank = len(lower)
        low, high = -(1 << 16 // rank - 1), (1 << 16 // rank - 1) - 1
        assert all(low <= x <= high for x in (*lower, *upper)) and max(between) <= 8
        assert len(extents) == rank + 2 == len(steps) + 1 == len(between)
        assert address % 16 == 0 and all(0 < x < 1 << 40 and x % 16 == 0 for x in steps)
        assert channels <= 256 and pixels <= 1024
        self.boxes.append((address, extents, steps, (lower, upper, channels, pixels, between)))
        return (len(self.boxes) - 1).to_bytes(128, "little")

    def image(self, raw: bytes, dtype) -> Image:
        address, extents, steps, facts = self.boxes[int.from_bytes(raw[:128], "little")]
        lower, upper, channels, pixels, between = facts
        array = self.seen(address, extents, steps, dtype)
        rule = np.frombuffer(raw[128:], np.int64).copy()
        for i, (a, b) in enumerate(zip(lower, upper, strict=True)):
            # What the engine reads off the map is what the rule says.
            of = rule[entry(AXES - 1 - i, 0) : entry(AXES - 1 - i, 8)]
            assert (of[LOWEST], of[STEP], of[EXTENT]) == (a, between[1 + i], extents[1 + i])
            assert (extents[1 + i] - 1 + b - a) // of[STEP] + 1 == of[COUNT]
        return Image(array, rule, channels, pixels)

    def seen(self, address, extents, steps, dtype) -> np.ndarray:
        p = self.pointer(address, dtype)
        flat = p.memory[p.offset :]
        kind = np.dtype(storage(dtype))
        strides = (*reversed(steps), kind.itemsize)
        last = sum((e - 1) * s for e, s in zip(reversed(extents), strides, strict=True))
        assert last + kind.itemsize <= len(flat), "a box reaches beyond its array"
        first = np.frombuffer(flat.data, kind, 1)
        return np.lib.stride_tricks.as_strided(first, tuple(reversed(extents)), strides)

    def box(self, raw: bytes, dtype) -> Box | None:
        number = int.from_bytes(raw, "little")
        address, extents, steps, box, swizzled = self.boxes[number]
        return Box(self.seen(address, extents, steps, dtype), box, swizzled)

    def constant(self, data: bytes) -> int:
        return self.address_of(np.frombuffer(data, np.uint8).copy())

    def meeting(self, nbytes: int, stream: int) -> tuple[int, int, int]:
        flags = self.address_of(np.full(4096, 0xFF, np.uint8))
        return self.allocate(nbytes, stream), flags, 5

    def part(self, workspace: int, stream: int) -> None:
        pass

    def run(self, plan, grid: int, build, arguments) -> None:
        kernel, kinds = build(plan)
        values, element = [], iter((plan.a, plan.b, plan.out) if hasattr(plan, "a") else ())
        assert len(kinds) == len(arguments)
        for i, (kind, x) in enumerate(zip(kinds, arguments, strict=True)):
            if isinstance(kind, str) and kind.startswith("image"):
                values.append(self.image(x, next(element)))
            elif isinstance(kind, str) and kind.startswith("box"):
                dtype = next(element)
                values.append(self.box(x, dtype) if i < 2 or any(x) else None)
            elif isinstance(kind, str) and kind.startswith("table"):
                assert len(x) == int(kind.removeprefix("table"))
                table = np.frombuffer(x, np.int64)
                values.append(self.table(table) if plan_table(plan, kinds, i) else
                              Pointer(table.copy().view(np.uint8), 0, int64))  # fmt: skip
            elif isinstance(kind, str):
                values.append(x)
            else:
                nobody = Pointer(np.empty(0, np.uint8), 0, kind)
                values.append(self.pointer(x, kind) if x else nobody)
        groups = 1
        if isinstance(plan, TeamPlan):
            groups = plan.groups + (1 if plan.filler_lanes else 0)
        Grid(grid, groups, plan.peers, patience=60).run(kernel, values, plan.shared_bytes)

    def table(self, slots) -> Table:
        cell = type("Cell", (Cell,), {"on": self})
        return Table([cell(x) for x in slots])


def plan_table(plan, kinds, i: int) -> bool:
    """Whether argument i is the program's table and not a batch's."""
    if not isinstance(plan, TeamPlan) or not (plan.program or plan.joined):
        return False
    return i == (6 if plan.filler_lanes else 3)


def backend_on(target: str):
    """A backend, as gemm/device uses one, on a new pretended device `.on`."""
    on = Device(target)

    def view(x):
        return arrays.View(x.address, x.shape, x.strides, x.dtype, 0, None)

    def glance(a, b):
        looks = tuple((x.shape, x.strides, x.dtype, x.address & 15, id(on)) for x in (a, b))
        return a.address, b.address, looks, ()

    def empty(like, shape, dtype):
        out = np.full(shape, 77).astype(storage(dtype))
        array = Array(out, on)
        return array, array.address

    def kernel(device, plan, build):
        if isinstance(plan, TeamPlan):
            assert not plan.illegal(), plan.illegal()
        assert plan.shared_bytes <= device.target.shared

        def bind(grid, *last, together=False):
            def launch(stream, *first):
                on.launched.append(plan)
                on.run(plan, grid, build, (*first, *last))

            return launch

        return SimpleNamespace(bind=bind)

    return SimpleNamespace(
        view=view, glance=glance, empty=empty, kernel=kernel, on=on, device=lambda index: on,
        turns=lambda x: True, turned=lambda x, axes: Array(x.values.transpose(axes), on),
        enter=lambda x, device: 0, box_kind=arrays.box_kind,
        refuse_conjugates=lambda *x: None, maker=lambda *x: None,
        upload=lambda x: Array(np.array(x), on),
    )  # fmt: skip
