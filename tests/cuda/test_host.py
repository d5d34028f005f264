"""The host side without a GPU: planning, refusals, launch arguments, on a pretended driver."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from gemm import device as engine
from gemm.backends.cuda import arrays, driver, kernels
from gemm.backends.cuda.targets import TARGETS
from gemm.microkernels.dtypes import DTYPES


class Pretended:
    """A device that records launches instead of making them."""

    units = 132
    index = 0

    def __init__(self, target):
        self.target, self.launched, self.live = TARGETS[target], [], 0

    def use(self):
        pass

    def box_map(self, address, kind, extents, steps, box, swizzled):
        """Refuses what the driver refuses."""
        assert address % 16 == 0 and 2 <= len(extents) == len(box) == len(steps) + 1 <= 5
        assert all(0 < step < 1 << 40 and step % 16 == 0 for step in steps), steps
        assert all(0 < e <= 1 << 32 for e in extents) and all(0 < e <= 256 for e in box)
        size = {0: 1, 6: 2, 9: 2, 3: 4, 7: 4, 11: 4, 8: 8, 5: 8}[kind]
        assert box[0] * size % 16 == 0 and (box[0] * size <= 128 or not swizzled)
        return struct.pack("q", address).ljust(128, b"\0")

    def allocate(self, nbytes, stream):
        self.live += 1
        return 1 << 20

    def free(self, address, stream):
        self.live -= 1

    def clear(self, *arguments):
        self.launched.append(("clear", *arguments))

    def constant(self, data):
        return 512

    def wait(self, stream, producer):
        self.launched.append(("wait", stream, producer))


class Array:
    """Described memory at a made-up address."""

    def __init__(self, shape, dtype="float32", strides=None, address=1 << 12, stream=None):
        self.dtype = DTYPES[dtype]
        self.shape, self.address, self.stream = tuple(shape), address, stream
        self.strides = strides or arrays._contiguous(shape, self.dtype.size)


@pytest.fixture
def backend():
    engine._prepared.clear()
    on = Pretended("sm_90a")

    def view(x):
        return arrays.View(x.address, x.shape, x.strides, x.dtype, 0, x.stream)

    def glance(a, b):
        streams = tuple(x.stream for x in (a, b) if x.stream is not None)
        facts = tuple((x.shape, x.strides, x.dtype, x.address & 15) for x in (a, b))
        return a.address, b.address, facts, streams

    def empty(like, shape, dtype):
        return Array(shape, dtype.name), 1 << 12

    def kernel(device, plan, build):
        def bind(grid, *last, together=False):
            return lambda stream, *first: on.launched.append((plan, grid, first, last))

        return SimpleNamespace(bind=bind)

    yield SimpleNamespace(
        view=view, glance=glance, empty=empty, kernel=kernel, on=on, device=lambda index: on,
        enter=lambda x, device: 7, box_kind=arrays.box_kind,
        refuse_conjugates=lambda *x: None, maker=lambda *x: None,
    )  # fmt: skip
    engine._prepared.clear()


def plans_of(backend, a, b, **options):
    backend.on.launched.clear()
    engine.matmul(backend, a, b, **options)
    return [entry[0] for entry in backend.on.launched if not isinstance(entry[0], str)]


def test_types_choose_the_unit_and_sizes_do_not(backend):
    """The bits of a product may not depend on its size or slice, so neither may the unit."""
    for dtype, unit in (("bfloat16", "wide"), ("float64", "matrix"), ("float32", "lanes"),
                        ("complex64", "lanes"), ("int64", "lanes")):  # fmt: skip
        units = set()
        for m, n, k in [(1, 1, 1), (16, 4096, 64), (4096, 4096, 4096), (33, 65, 7)]:
            units.add(plans_of(backend, Array((m, k), dtype), Array((k, n), dtype))[-1].tile.unit)
        assert units <= ({unit, "lanes"} if unit == "matrix" else {unit})


SHAPES = [
    (1, 1, 1), (130, 70, 50), (4096, 4096, 4096), (4096, 4096, 1), (1, 4096, 1), (4096, 1, 4096),
    (16384, 64, 256), (1, 8192, 8192), (511, 511, 511), (4096, 4100, 4104), (300, 8192, 1),
]  # fmt: skip


def test_large_batch_of_outer_products(backend):
    """Case G12: more than 2^31 results, K = 1."""
    (plan,) = plans_of(backend, Array((8209, 512, 1)), Array((8209, 1, 512)))[-1:]
    assert plan.illegal() == ""


def test_every_plan_is_legal(backend):
    for dtype in ("float32", "float64", "bfloat16", "int8", "float8_e4m3fn", "complex64"):
        for m, n, k in SHAPES:
            for turned in (False, True):
                strides = (DTYPES[dtype].size, k * DTYPES[dtype].size) if turned else None
                b = Array((k, n), dtype, strides)
                for plan in plans_of(backend, Array((m, k), dtype), b):
                    if hasattr(plan, "illegal"):
                        assert plan.illegal() == ""
                        assert plan.shared_bytes <= TARGETS["sm_90a"].shared


def test_unaligned_operands_are_packed_for_the_wide_unit(backend):
    a = Array((100, 3000), "bfloat16", address=4098)
    names = [type(p).__name__ for p in plans_of(backend, a, Array((3000, 64), "bfloat16"))]
    assert names == ["PackPlan", "TeamPlan"], "B is aligned"
    assert backend.on.live == 0, "the workspace is given back"


def test_a_short_product_of_unaligned_operands_is_one_launch(backend):
    (plan,) = plans_of(backend, Array((511, 511), "bfloat16"), Array((511, 511), "bfloat16"))
    assert (plan.tile.unit, plan.tile.a.route) == ("wide", "held")
    (plan,) = plans_of(backend, Array((100, 30), "int8", address=4097), Array((30, 64), "int8"))
    assert (plan.tile.unit, plan.tile.a.route) == ("wide", "held")


def test_grid_is_bounded_and_batches_are_not(backend):
    plans_of(backend, Array((70000, 16, 8)), Array((70000, 8, 16)))
    ((plan, grid, first, last),) = backend.on.launched
    assert grid <= 132 * 16 and last[-3] == 70000
    plans_of(backend, Array((1 << 33, 1, 1)), Array((1 << 33, 1, 1)))
    assert [entry[3][-3] for entry in backend.on.launched] == [2**31 - 1] * 4 + [4]
    starts = [entry[2][0] for entry in backend.on.launched]
    assert starts[1] - starts[0] == 4 * (2**31 - 1)


def test_empty_sum_clears(backend):
    plans_of(backend, Array((5, 0)), Array((0, 7)))
    assert backend.on.launched == [("clear", 1 << 12, 28, 28, 5, 7)]


def test_waits_for_the_producer(backend):
    plans_of(backend, Array((4, 4), stream=3), Array((4, 4), stream=7))
    assert ("wait", 7, 3) in backend.on.launched
    assert ("wait", 7, 7) not in backend.on.launched


@pytest.mark.parametrize(
    "a, b, options, error, words",
    [
        (Array((3, 4)), Array((3, 4)), {}, ValueError, "4 != 3"),
        (Array(()), Array((3, 4)), {}, ValueError, "no scalars"),
        (Array((2, 3, 4)), Array((3, 4, 5)), {}, ValueError, "do not broadcast"),
        (Array((3, 4)), Array((4, 3)), {"precision": "fast"}, ValueError, "precision='fast'"),
        (Array((3, 4), "float64"), Array((4, 3), "float64"), {"precision": "tf32"}, TypeError,
         "for float32 operands, not float64"),
        (Array((3, 4), "bfloat16"), Array((4, 3)), {}, TypeError, "convert one operand"),
        (Array((3, 4)), Array((4, 3)), {"dtype": "int32"}, TypeError, "cannot be stored"),
        (Array((3, 4)), Array((4, 3)), {"dtype": "float13"}, TypeError, "expected one of"),
        (Array((3, 4)), Array((4, 3)), {"split_k": -2}, ValueError, "split_k=-2"),
        (Array((3, 4), address=4098), Array((4, 3)), {}, ValueError, "not aligned"),
        (Array((3, 4)), Array((4, 3)), {"out": Array((3, 4))}, ValueError, "out has shape"),
    ],
)  # fmt: skip
def test_refusals(backend, a, b, options, error, words):
    with pytest.raises(error, match=words):
        engine.matmul(backend, a, b, **options)
    assert not backend.on.launched, "nothing runs before a refusal"


class Library:
    """A driver library of Python functions that succeed and write what they are told."""

    def __init__(self, **answers):
        self.calls, self.answers = [], answers
        self.cuLaunchKernelEx = SimpleNamespace(argtypes=None)

    def __getattr__(self, name):
        def call(*arguments):
            self.calls.append((name, arguments))
            return self.answers.get(name, 0)

        return call


def test_driver_errors_are_sentences(monkeypatch):
    monkeypatch.setattr(driver.ctypes, "CDLL", lambda name: (_ for _ in ()).throw(OSError()))
    with pytest.raises(RuntimeError, match="no NVIDIA driver"):
        driver._open()
    with pytest.raises(RuntimeError, match="no CUDA device"):
        driver.Driver(Library(cuInit=100))
    with pytest.raises(RuntimeError, match="cuInit failed with 999"):
        driver.Driver(Library(cuInit=999))


def test_launch_packs_its_arguments():
    seen = []

    def launch(config, function, pointers, extra):
        sizes = tuple((ctypes.c_uint32 * 7).from_address(config))
        stream, attributes, count = (ctypes.c_uint64 * 3).from_address(config + 32)
        assert (attributes, count, extra) == (0, 0, None)
        table = (ctypes.c_void_p * 4).from_address(pointers)
        big = ctypes.string_at(table[1], 128)
        numbers = [ctypes.c_int64.from_address(table[i]).value for i in (0, 2, 3)]
        seen.append((function, sizes, stream, numbers, big))
        return 0

    on = SimpleNamespace(driver=SimpleNamespace(launch_raw=launch, check=None))
    kernel = driver.Kernel(on, ctypes.c_void_p(99), [8, 128, 8, 8], 256, 1024)
    start = kernel.bind(12, bytes(range(128)), 5, -6)
    start(77, 4)
    start(78, 1 << 40)
    assert seen[0] == (99, (12, 1, 1, 256, 1, 1, 1024), 77, [4, 5, -6], bytes(range(128)))
    assert seen[1][2:4] == (78, [1 << 40, 5, -6])


def test_argument_sizes_match_the_compiler():
    from gemm.backends.cuda.compile import numba_type

    kinds = (DTYPES["float32"], "table128", "table672", "box2", "box4", "integer")
    assert kernels.argument_sizes(kinds) == [numba_type(k)[1] for k in kinds]


def test_asking_for_a_backend_imports_nothing():
    code = (
        "import sys, numpy\n"
        "from gemm.backends.devices import backend_of\n"
        "assert backend_of(numpy.zeros(3)) is None and backend_of([1]) is None\n"
        "bad = {'numba', 'llvmlite', 'torch', 'cupy', 'cuda'} & set(sys.modules)\n"
        "assert not bad, bad\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_workspace_of_the_default_stream_is_kept():
    counter = iter(range(1 << 20, 1 << 30, 1 << 12))

    def take(address, nbytes, stream):
        ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] = next(counter)
        return 0

    library = Library()
    library.cuMemAllocAsync = take
    on = driver.Device.__new__(driver.Device)
    on.driver, on.lock = driver.Driver(library), threading.Lock()
    on._spare, on._taken = [], {}
    first = on.allocate(1000, 0)
    on.free(first, 0)
    assert on.allocate(900, 0) == first
    assert on.allocate(900, 0) != first, "a block in use is not given twice"
    other = on.allocate(1000, 5)
    on.free(other, 5)
    assert on.allocate(1000, 5) != other, "other streams' memory goes back to the driver"
    assert [name for name, _ in library.calls if name == "cuMemFreeAsync"] == ["cuMemFreeAsync"]


def test_constants_and_meetings_take_workspace_under_one_lock():
    counter = iter(range(1 << 20, 1 << 30, 1 << 16))

    def take(address, nbytes, stream):
        ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] = next(counter)
        return 0

    library = Library()
    library.cuMemAllocAsync = take
    on = driver.Device.__new__(driver.Device)
    on.driver, on.lock, on.context = driver.Driver(library), threading.RLock(), ctypes.c_void_p(1)
    on._spare, on._taken, on._constants, on._meeting = [], {}, {}, (0, 0, 0)
    assert on.constant(b"1234") == on.constant(b"1234") != on.constant(b"4321")

    def count(name):
        return [called for called, _ in library.calls].count(name)

    space, flags, first = on.meeting(256, 0)
    assert on.meeting(200, 0) == (space, flags, first + 1), "the default stream's count launches"
    assert count("cuMemsetD2D8Async") == 1 and count("cuMemFreeAsync") == 0
    larger, *_ = on.meeting(1000, 0)
    assert larger != space and count("cuMemFreeAsync") == 1 and count("cuMemsetD2D8Async") == 2
    other, raised, value = on.meeting(256, 5)
    assert value == 1 and raised not in (flags, larger) and count("cuMemsetD2D8Async") == 3
    on.part(larger, 0)
    on.part(other, 5)
    assert count("cuMemFreeAsync") == 2


def test_host_arrays_go_in_and_out(monkeypatch):
    """Upload and copy back through a driver whose device memory is host memory."""
    import numpy as np

    rooms = {}

    def take(address, nbytes, stream):
        room = ctypes.create_string_buffer(nbytes.value)
        rooms[ctypes.addressof(room)] = room
        ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64))[0] = ctypes.addressof(room)
        return 0

    def move(to, source, nbytes, stream):
        ctypes.memmove(to.value, source.value, nbytes.value)
        return 0

    library = Library()
    library.cuMemAllocAsync = take
    library.cuMemcpyHtoDAsync_v2 = library.cuMemcpyDtoHAsync_v2 = move
    on = driver.Device.__new__(driver.Device)
    on.driver, on.lock, on.context = driver.Driver(library), threading.Lock(), ctypes.c_void_p(1)
    on._spare, on._taken = [], {}
    monkeypatch.setattr(arrays, "device", lambda index: on)
    x = np.arange(24.0).reshape(4, 6)[::2, ::3]
    there = arrays.upload(x)
    np.testing.assert_array_equal(there.copy_to_host(), x)
    facts = there.__cuda_array_interface__
    assert facts["shape"] == (2, 2) and facts["typestr"] == "<f8" and arrays.is_device_array(there)
    with pytest.raises(TypeError, match="not dtype"):
        arrays.upload(np.zeros(3, ">f8"))


def test_mixed_and_unknown_devices():
    import numpy as np

    from gemm.backends import devices

    with pytest.raises(TypeError, match="host memory and in device memory"):
        arrays.view(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="device='tpu'"):
        devices.named("tpu")
