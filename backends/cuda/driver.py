"""The CUDA driver through ctypes: contexts, linking, loading, launching, tensor maps, memory.

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
from dataclasses import dataclass

from .targets import CudaTarget, target_of

PTX_INPUT = 1
ATTRIBUTES = {"major": 75, "minor": 76, "units": 16, "shared": 97, "pools": 115}
DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
LINK_ERROR_LOG, LINK_ERROR_LOG_SIZE = 5, 6
EVENT_WITHOUT_TIME = 2
RECENT_MAPS = 256


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
        self.launch_raw = library.cuLaunchKernel
        self.launch_raw.argtypes = [c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p]
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
        self.lock = threading.Lock()
        self._maps: dict[tuple, bytes] = {}

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

    def link(self, ptx: str) -> bytes:
        """PTX assembled by the driver for this device."""
        self.use()
        log = ctypes.create_string_buffer(8192)
        options = (c_int * 2)(LINK_ERROR_LOG, LINK_ERROR_LOG_SIZE)
        option_values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        state, cubin, size = c_void_p(), c_void_p(), c_size_t()
        self.driver.call("cuLinkCreate_v2", c_uint(2), options, option_values, byref(state))
        try:
            text = ptx.encode() + b"\0"
            status = self.driver.library.cuLinkAddData_v2(
                state, c_int(PTX_INPUT), c_char_p(text), c_size_t(len(text)), c_char_p(b"gemm"),
                c_uint(0), None, None,
            )  # fmt: skip
            if status:
                raise RuntimeError(f"the driver cannot assemble a kernel: {log.value.decode()}")
            self.driver.call("cuLinkComplete", state, byref(cubin), byref(size))
            return ctypes.string_at(cubin, size.value)
        finally:
            self.driver.call("cuLinkDestroy", state)

    def load(self, cubin: bytes, name: str, shared: int) -> c_void_p:
        """The function `name` of a cubin, allowed `shared` bytes of dynamic shared memory."""
        self.use()
        module, function = c_void_p(), c_void_p()
        self.driver.call("cuModuleLoadData", byref(module), c_char_p(cubin))
        self.driver.call("cuModuleGetFunction", byref(function), module, c_char_p(name.encode()))
        if shared > 48 * 1024:
            self.driver.call("cuFuncSetAttribute", function, c_int(DYNAMIC_SHARED), c_int(shared))
        return function

    # -- memory and order ------------------------------------------------------------------------

    def allocate(self, nbytes: int, stream: int) -> int:
        """Device memory that belongs to `stream`; `free` it on the same stream."""
        address = c_uint64()
        self.driver.call("cuMemAllocAsync", byref(address), c_size_t(max(nbytes, 1)), c_void_p(stream))
        return address.value

    def free(self, address: int, stream: int) -> None:
        self.driver.call("cuMemFreeAsync", c_uint64(address), c_void_p(stream))

    def clear(self, address: int, pitch: int, width: int, height: int, stream: int) -> None:
        """Zero bytes: `height` rows of `width` bytes, `pitch` bytes apart."""
        self.driver.call(
            "cuMemsetD2D8Async", c_uint64(address), c_size_t(pitch), c_int(0), c_size_t(width),
            c_size_t(height), c_void_p(stream),
        )  # fmt: skip

    def write(self, address: int, data: bytes, stream: int) -> None:
        """A few bytes, a multiple of four, from here to device memory."""
        for at in range(0, len(data), 4):
            word = int.from_bytes(data[at : at + 4], "little")
            self.driver.call(
                "cuMemsetD32Async", c_uint64(address + at), c_uint(word), c_size_t(1), c_void_p(stream)
            )

    def copy_in(self, address: int, host: int, nbytes: int, stream: int) -> None:
        self.driver.call(
            "cuMemcpyHtoDAsync_v2", c_uint64(address), c_void_p(host), c_size_t(nbytes), c_void_p(stream)
        )

    def copy_out(self, host: int, address: int, nbytes: int, stream: int) -> None:
        self.driver.call(
            "cuMemcpyDtoHAsync_v2", c_void_p(host), c_uint64(address), c_size_t(nbytes), c_void_p(stream)
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
        """The 128 bytes of a tensor map; recent ones are kept.

        kind: the driver's element type; extents, box: innermost first; steps: bytes between
        neighbours of each axis but the innermost.
        """
        key = (address, kind, extents, steps, box, swizzled)
        found = self._maps.get(key)
        if found is None:
            found = self._encode(*key)
            if len(self._maps) >= RECENT_MAPS:
                self._maps.clear()
            self._maps[key] = found
        return found

    def _encode(self, address, kind, extents, steps, box, swizzled) -> bytes:
        rank = len(extents)
        room = ctypes.create_string_buffer(192)
        start = -ctypes.addressof(room) % 64
        self.driver.call(
            "cuTensorMapEncodeTiled", c_void_p(ctypes.addressof(room) + start), c_int(kind),
            c_uint(rank), c_void_p(address), (c_uint64 * rank)(*extents),
            (c_uint64 * (rank - 1))(*steps), (c_uint * rank)(*box), (c_uint * rank)(*[1] * rank),
            c_int(0), c_int(3 if swizzled else 0), c_int(3), c_int(0),
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


@dataclass(frozen=True)
class Layout:
    """How a kernel's arguments are packed: struct format, and offset of each argument."""

    format: str
    offsets: tuple[int, ...]


def layout(sizes) -> Layout:
    """Arguments of these sizes; 8 is an integer or pointer, others are bytes passed by value."""
    text, offsets, at = "=", [], 0
    for size in sizes:
        offsets.append(at)
        text += "q" if size == 8 else f"{size}s"
        at += size
    return Layout(text, tuple(offsets))


class Kernel:
    """A loaded kernel; `launch` packs its arguments and starts it."""

    def __init__(self, device: Device, function: c_void_p, sizes, threads: int, shared: int):
        self.device, self.function = device, function.value
        self.threads, self.shared = threads, shared
        self.layout = layout(sizes)
        self.struct = struct.Struct(self.layout.format)
        self.raw = device.driver.launch_raw
        self.local = threading.local()

    def _room(self):
        buffer = ctypes.create_string_buffer(self.struct.size)
        start = ctypes.addressof(buffer)
        pointers = (c_void_p * len(self.layout.offsets))(*[start + o for o in self.layout.offsets])
        self.local.room = room = (buffer, pointers, ctypes.addressof(pointers))
        return room

    def launch(self, grid: int, stream: int, *arguments) -> None:
        """Starts `grid` teams on `stream`; the arguments are copied before it returns."""
        try:
            buffer, _, pointers = self.local.room
        except AttributeError:
            buffer, _, pointers = self._room()
        self.struct.pack_into(buffer, 0, *arguments)
        status = self.raw(
            self.function, grid, 1, 1, self.threads, 1, 1, self.shared, stream, pointers, None
        )
        if status:
            self.device.driver.check(status, "cuLaunchKernel")
