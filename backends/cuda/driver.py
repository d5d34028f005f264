"""The CUDA driver through ctypes: contexts, loading, launching, tensor maps, memory.

The driver's C interface is stable and comes with the driver, so nothing has to be installed
beside it. Every failure is a RuntimeError with the driver's own words.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
import threading
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from .targets import CudaTarget, target_of

ATTRIBUTES = {"major": 75, "minor": 76, "units": 16, "shared": 97, "pools": 115}
DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
ERROR_LOG, ERROR_LOG_SIZE = 5, 6
EVENT_WITHOUT_TIME = 2
COOPERATIVE = struct.pack("=I4xi60x", 2, 1)  # a launch attribute: all teams run together
FLAG_BYTES = 4096
# Workspace kept on the default stream, and how much larger than asked a block may be.
SPARE_BYTES, SPARE_SLACK = 1 << 28, 1 << 16
# What the second-level cache adds to a request of the copy engine: nothing. Its lines are 128
# bytes already, and 256 (code 3) was 13 % slower for float32 and 5 % for float64.
PROMOTION = 0


def _open():
    """The driver library; a function of its own so that tests can replace it."""
    name = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise RuntimeError(
            f"no NVIDIA driver: {name} was not found; device='cuda' needs a GPU and its driver"
        ) from None


class Driver:
    """One loaded driver library; each call checks its status."""

    def __init__(self, library):
        self.library = library
        # The form with a description in memory: four arguments to convert instead of eleven.
        self.launch_raw = library.cuLaunchKernelEx
        self.launch_raw.argtypes = [c_void_p] * 4
        self.call("cuInit", c_uint(0))

    def call(self, name: str, *arguments) -> None:
        self.check(getattr(self.library, name)(*arguments), name)

    def check(self, status: int, name: str) -> None:
        if status:
            text = c_char_p()
            self.library.cuGetErrorString(c_int(status), byref(text))
            words = text.value.decode() if text.value else "unknown error"
            if status == 100:
                raise RuntimeError("no CUDA device: the driver found no GPU")
            raise RuntimeError(f"{name} failed with {status}: {words}")

    def version(self) -> int:
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return number.value


@functools.cache
def driver() -> Driver:
    """The driver; RuntimeError in one sentence where there is none."""
    return Driver(_open())


class Device:
    """A GPU with its primary context: target, multiprocessors, loaded kernels."""

    def __init__(self, index: int):
        self.index, self.driver = index, driver()
        handle = c_int()
        self.driver.call("cuDeviceGet", byref(handle), c_int(index))
        self.handle = handle
        self.context = c_void_p()
        self.driver.call("cuDevicePrimaryCtxRetain", byref(self.context), handle)
        facts = {name: self._attribute(code) for name, code in ATTRIBUTES.items()}
        self.target: CudaTarget = target_of(facts["major"], facts["minor"])
        self.units = facts["units"]
        self.kernels: dict[object, Kernel] = {}
        self.lock = threading.RLock()
        self._constants: dict[bytes, int] = {}
        self._spare: list[tuple[int, int]] = []
        self._taken: dict[int, int] = {}
        self._meeting = (0, 0, 0)  # address, bytes of workspace, launches

    def _attribute(self, code: int) -> int:
        value = c_int()
        self.driver.call("cuDeviceGetAttribute", byref(value), c_int(code), self.handle)
        return value.value

    def use(self) -> None:
        """Makes this device's context the calling thread's, if it is not."""
        now = c_void_p()
        self.driver.call("cuCtxGetCurrent", byref(now))
        if now.value != self.context.value:
            self.driver.call("cuCtxSetCurrent", self.context)

    # -- kernels ---------------------------------------------------------------------------------

    def load(self, ptx: str, name: str, shared: int) -> c_void_p:
        """The function `name` of PTX text, allowed `shared` bytes of dynamic shared memory.

        The text is loaded as a whole program. The driver's linker would give a cubin to keep,
        but it assembles relocatable code: registers spill there and the wide matrix unit waits
        after every stage (measured: 0.87 instead of 1.0 of its rate). The driver keeps what it
        assembled in a cache of its own.
        """
        self.use()
        log = ctypes.create_string_buffer(8192)
        options = (c_int * 2)(ERROR_LOG, ERROR_LOG_SIZE)
        option_values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        module, function = c_void_p(), c_void_p()
        status = self.driver.library.cuModuleLoadDataEx(
            byref(module), c_char_p(ptx.encode()), c_uint(2), options, option_values
        )
        if status and log.value:
            raise RuntimeError(f"the driver cannot assemble a kernel: {log.value.decode()}")
        self.driver.check(status, "cuModuleLoadDataEx")
        self.driver.call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        if shared > 48 * 1024:
            self.driver.call("cuFuncSetAttribute", function, c_int(DYNAMIC_SHARED), c_int(shared))
        return function

    # -- memory and order ------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int) -> int:
        """Device memory that belongs to `stream`; `free` it on the same stream.

        Blocks of the default stream are kept for the next call: it is one and lasts, so work on
        it is in order. Other streams may end and their handles come back: those ask the driver.
        """
        if not stream:
            with self.lock:
                for i, (size, kept) in enumerate(self._spare):
                    if nbytes <= size <= 4 * nbytes + SPARE_SLACK:
                        del self._spare[i]
                        self._taken[kept] = size
                        return kept
        address, nbytes = c_uint64(), max(nbytes, 1)
        self.driver.call("cuMemAllocAsync", byref(address), c_size_t(nbytes), c_void_p(stream))
        if not stream:
            self._taken[address.value] = nbytes
        return address.value

    def free(self, address: int, stream: int) -> None:
        size = None if stream else self._taken.pop(address, None)
        if size is not None and size <= SPARE_BYTES:
            with self.lock:
                self._spare.append((size, address))
                if sum(s for s, _ in self._spare) <= SPARE_BYTES and len(self._spare) <= 8:
                    return
                _, address = self._spare.pop(0)
        self.driver.call("cuMemFreeAsync", c_uint64(address), c_void_p(stream))

    def meeting(self, nbytes: int, stream: int) -> tuple[int, int, int]:
        """(workspace, int32 flags, what they are to become) of a launch whose teams meet.

        The flags hold something else now. Those of the default stream, one block that grows, count
        its launches; other streams' are new. `part` with the workspace on the same stream.
        """
        if stream:
            address = self.allocate(nbytes + FLAG_BYTES, stream)
            self.clear(address, FLAG_BYTES, FLAG_BYTES, 1, stream)
            return address + FLAG_BYTES, address, 1
        with self.lock:
            address, size, launches = self._meeting
            if size < nbytes:
                if size:
                    self.driver.call("cuMemFreeAsync", c_uint64(address), c_void_p(0))
                room = c_uint64()
                total = c_size_t(nbytes + FLAG_BYTES)
                self._meeting = (0, 0, 0)
                self.driver.call("cuMemAllocAsync", byref(room), total, c_void_p(0))
                address, size, launches = room.value, nbytes, 0
                self.clear(address, FLAG_BYTES, FLAG_BYTES, 1, 0)
            launches = launches % (2**31 - 1) + 1
            self._meeting = (address, size, launches)
            return address + FLAG_BYTES, address, launches

    def part(self, workspace: int, stream: int) -> None:
        """Gives back what `meeting` gave."""
        if stream:
            self.free(workspace - FLAG_BYTES, stream)

    def clear(self, address: int, pitch: int, width: int, height: int, stream: int) -> None:
        """Zero bytes: `height` rows of `width` bytes, `pitch` bytes apart."""
        self.driver.call(
            "cuMemsetD2D8Async", c_uint64(address), c_size_t(pitch), c_int(0), c_size_t(width),
            c_size_t(height), c_void_p(stream),
        )  # fmt: skip

    def constant(self, data: bytes) -> int:
        """The address of these few bytes in device memory, kept for the process."""
        with self.lock:
            if data not in self._constants:
                self.use()
                address = self.allocate(len(data), 0)
                source = ctypes.cast(c_char_p(data), c_void_p).value or 0
                self.copy_in(address, source, len(data), 0)
                self.synchronize(0)
                self._constants[data] = address
            return self._constants[data]

    def copy_in(self, address: int, host: int, nbytes: int, stream: int) -> None:
        self.driver.call(
            "cuMemcpyHtoDAsync_v2",
            c_uint64(address),
            c_void_p(host),
            c_size_t(nbytes),
            c_void_p(stream),
        )

    def copy_out(self, host: int, address: int, nbytes: int, stream: int) -> None:
        self.driver.call(
            "cuMemcpyDtoHAsync_v2",
            c_void_p(host),
            c_uint64(address),
            c_size_t(nbytes),
            c_void_p(stream),
        )

    def synchronize(self, stream: int) -> None:
        self.driver.call("cuStreamSynchronize", c_void_p(stream))

    def wait(self, stream: int, producer: int) -> None:
        """Work put on `stream` from now on runs after what is now on `producer`."""
        if stream == producer:
            return
        event = c_void_p()
        self.driver.call("cuEventCreate", byref(event), c_uint(EVENT_WITHOUT_TIME))
        try:
            self.driver.call("cuEventRecord", event, c_void_p(producer))
            self.driver.call("cuStreamWaitEvent", c_void_p(stream), event, c_uint(0))
        finally:
            self.driver.call("cuEventDestroy_v2", event)

    # -- tensor maps -----------------------------------------------------------------------------

    def box_map(self, address: int, kind: int, extents, steps, box, swizzled: bool) -> bytes:
        """The 128 bytes of a tensor map.

        kind: the driver's element type; extents, box: innermost first; steps: bytes between
        neighbours of each axis but the innermost.
        """
        rank = len(extents)
        room = ctypes.create_string_buffer(192)
        start = -ctypes.addressof(room) % 64
        self.driver.call(
            "cuTensorMapEncodeTiled", c_void_p(ctypes.addressof(room) + start), c_int(kind),
            c_uint(rank), c_void_p(address), (c_uint64 * rank)(*extents),
            (c_uint64 * (rank - 1))(*steps), (c_uint * rank)(*box), (c_uint * rank)(*[1] * rank),
            c_int(0), c_int(3 if swizzled else 0), c_int(PROMOTION), c_int(0),
        )  # fmt: skip
        return room.raw[start : start + 128]

    def image_map(self, address: int, kind: int, extents, steps, lower, upper, channels: int,
                  pixels: int, between) -> bytes:  # fmt: skip
        """The 128 bytes of a tensor map that gathers pixels; a line of a box is 128 bytes.

        extents (channels, spatial axes, images), steps as of `box_map`; lower, upper: of each
        spatial axis, where first positions begin, from the image's first, and end, from its last;
        channels, pixels: of a box; between: from a first position to the next, 1 at either end.
        """
        rank = len(extents)
        room = ctypes.create_string_buffer(192)
        start = -ctypes.addressof(room) % 64
        self.driver.call(
            "cuTensorMapEncodeIm2col", c_void_p(ctypes.addressof(room) + start), c_int(kind),
            c_uint(rank), c_void_p(address), (c_uint64 * rank)(*extents),
            (c_uint64 * (rank - 1))(*steps), (c_int * (rank - 2))(*lower),
            (c_int * (rank - 2))(*upper), c_uint(channels), c_uint(pixels),
            (c_uint * rank)(*between), c_int(0), c_int(3), c_int(PROMOTION), c_int(0),
        )  # fmt: skip
        return room.raw[start : start + 128]


BOX_KINDS = {
    "uint8": 0, "int8": 0, "float8_e4m3fn": 0, "float8_e5m2": 0, "bool": 0, "uint16": 1,
    "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5, "float16": 6, "float32": 7,
    "float64": 8, "bfloat16": 9, "complex64": 5, "tf32": 11,
}  # fmt: skip


@functools.cache
def device(index: int) -> Device:
    """The GPU of this number."""
    return Device(index)


class Kernel:
    """A loaded kernel. `bind` fixes the grid and the last arguments of a launch."""

    def __init__(self, device: Device, function: c_void_p, sizes, threads: int, shared: int):
        """sizes: bytes of each argument; 8 is an integer or pointer, others pass by value."""
        self.device, self.function = device, function.value
        self.sizes, self.threads, self.shared = tuple(sizes), threads, shared

    def bind(self, grid: int, *last, together: bool = False) -> Launch:
        """A launch that is told the stream and the first arguments when it is called.

        together: the launch fails where not all teams fit the machine at once.
        """
        return Launch(self, grid, last, COOPERATIVE if together else b"")


def _format(sizes) -> str:
    return "=" + "".join("q" if size == 8 else f"{size}s" for size in sizes)


class Launch:
    """call(stream, *first arguments) starts the kernel; arguments are copied before it returns.

    A room is one block of memory: the driver's launch description, then the arguments.

        0 grid, team and shared sizes (7 x 4 bytes) | 32 stream | 40 attributes | 64 arguments
    """

    def __init__(self, kernel: Kernel, grid: int, last, attributes: bytes):
        first = kernel.sizes[: len(kernel.sizes) - len(last)]
        # From byte 32 on: what changes from call to call.
        changing = struct.Struct("=qqq8x" + _format(first)[1:])
        self.attributes = ctypes.create_string_buffer(attributes)
        self.attribute = (ctypes.addressof(self.attributes), 1) if attributes else (0, 0)
        self.pack, self.start = changing.pack_into, 32 + changing.size
        self.head = struct.pack("=7I4x", grid, 1, 1, kernel.threads, 1, 1, kernel.shared)
        self.last = struct.pack(_format(kernel.sizes[len(first) :]), *last)
        self.sizes, self.function = kernel.sizes, kernel.function
        self.raw, self.check = kernel.device.driver.launch_raw, kernel.device.driver.check
        # Rooms not in use; a thread takes one, so calls from several threads do not meet.
        self.rooms: list[tuple] = []

    def _room(self) -> tuple:
        buffer = ctypes.create_string_buffer(self.start + len(self.last))
        start, pointers = ctypes.addressof(buffer), (c_void_p * len(self.sizes))()
        ctypes.memmove(start, self.head, len(self.head))
        ctypes.memmove(start + self.start, self.last, len(self.last))
        at = start + 64
        for i, size in enumerate(self.sizes):
            pointers[i] = at
            at += size
        return buffer, start, ctypes.addressof(pointers), pointers

    def __call__(self, stream: int, *first) -> None:
        try:
            room = self.rooms.pop()
        except IndexError:  # asking first would let another thread take the last one
            room = self._room()
        self.pack(room[0], 32, stream, *self.attribute, *first)
        status = self.raw(room[1], self.function, room[2], None)
        self.rooms.append(room)
        if status:
            self.check(status, "cuLaunchKernelEx")
