"""Device arrays of other libraries as operands, and results as the caller's kind of array.

Nothing is imported here that the caller has not imported: a library is recognised by the name
of its array's module. PyTorch and CuPy have a fast path; anything else is read through
`__cuda_array_interface__` or DLPack.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import threading
from typing import NamedTuple

from gemm.microkernels.dtypes import DTYPES, DType


class View(NamedTuple):
    """An array in device memory: strides in bytes; stream: where its producer works, or None."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: DType
    device: int
    stream: int | None = None


MIXED = "operands in host memory and in device memory: move one of them first"


def is_device_array(x) -> bool:
    """Whether x lives in CUDA memory; imports nothing and never fails."""
    kind = type(x).__module__.partition(".")[0]
    if kind == "torch":
        return bool(getattr(x, "is_cuda", False))
    if kind in ("numpy", "builtins"):
        return False
    if hasattr(x, "__cuda_array_interface__"):
        return True
    try:
        return x.__dlpack_device__()[0] in (2, 13)
    except Exception:
        return False


def library_of(x) -> str:
    """'torch', 'cupy', 'numba', 'jax', or 'other'."""
    name = type(x).__module__.partition(".")[0]
    return {"jaxlib": "jax"}.get(name, name) if name in KINDS else "other"


_torch_types: dict[object, DType] = {}


def _torch_type(dtype) -> DType:
    found = _torch_types.get(dtype)
    if found is None:
        found = DTYPES.get(str(dtype).removeprefix("torch."))
        if found is None:
            raise TypeError(f"gemm computes {', '.join(DTYPES)}, not {dtype}")
        _torch_types[dtype] = found
    return found


def _view_torch(x) -> View:
    if not _tensor:
        if sys.modules["torch"].cuda.device_count() > 1:
            _several.append(True)
        _tensor.append(sys.modules["torch"].Tensor)
    if not x.is_cuda:
        raise TypeError(MIXED)
    if x.is_neg():
        raise TypeError("a negated view is not an operand: call resolve_neg() first")
    dtype = _torch_type(x.dtype)
    size = dtype.size
    return View(
        x.data_ptr(), tuple(x.shape), tuple([s * size for s in x.stride()]), dtype,
        x.get_device(), None,
    )  # fmt: skip


def _contiguous(shape, size: int) -> tuple[int, ...]:
    strides = []
    for extent in reversed(shape):
        strides.append(size)
        size *= max(extent, 1)
    return tuple(reversed(strides))


def _device_of(address: int) -> int:
    from .driver import driver

    ordinal = ctypes.c_int()
    if address:
        driver().call(
            "cuPointerGetAttribute",
            ctypes.byref(ordinal),
            ctypes.c_int(9),
            ctypes.c_uint64(address),
        )
    return ordinal.value


def _view_interface(x) -> View:
    import numpy as np

    facts = x.__cuda_array_interface__
    if facts.get("mask") is not None:
        raise TypeError("masked device arrays are not supported")
    np_dtype = np.dtype(getattr(x, "dtype", None) or facts["typestr"])
    dtype = DTYPES.get(np_dtype.name)
    if dtype is None or not np_dtype.isnative:
        raise TypeError(f"gemm computes {', '.join(DTYPES)}, not {np_dtype!r}")
    shape = tuple(facts["shape"])
    strides = facts.get("strides") or _contiguous(shape, dtype.size)
    address = facts["data"][0] or 0
    # 1 and 2 name the legacy and the per-thread default stream; None asks for no ordering.
    stream = facts.get("stream")
    return View(address, shape, tuple(strides), dtype, _device_of(address), stream)


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


_DL_TYPES = {(0, "int"), (1, "uint"), (2, "float"), (4, "bfloat"), (5, "complex"), (6, "bool")}


def _view_dlpack(x) -> View:
    capsule = x.__dlpack__(stream=1)
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    t = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    kind = dict(_DL_TYPES).get(t.code)
    name = "bool" if kind == "bool" else f"{kind}{t.bits}"
    dtype = DTYPES.get(name)
    if dtype is None or t.lanes != 1:
        raise TypeError(f"gemm computes {', '.join(DTYPES)}, not DLPack type {t.code}/{t.bits}")
    shape = tuple(t.shape[: t.ndim])
    if t.strides:
        strides = tuple(s * dtype.size for s in t.strides[: t.ndim])
    else:
        strides = _contiguous(shape, dtype.size)
    # The capsule is dropped unused: x itself keeps the memory alive through the call.
    return View((t.data or 0) + t.byte_offset, shape, strides, dtype, t.device_id, 1)


def view(x) -> View:
    """The operand in x; TypeError for an element type gemm does not compute."""
    if library_of(x) == "torch":
        return _view_torch(x)
    if not is_device_array(x):
        raise TypeError(MIXED)
    if hasattr(x, "__cuda_array_interface__"):
        return _view_interface(x)
    return _view_dlpack(x)


_tensor: list[type] = []  # torch.Tensor, once one was seen
_several: list[bool] = []  # not empty where PyTorch sees several devices


def glance(a, b) -> tuple:
    """(address of a, of b, what else a plan depends on as a key, their producers' streams)."""
    if type(a) in _tensor and type(b) in _tensor:
        x, y = a.data_ptr(), b.data_ptr()
        key: tuple = (a.dtype, a.shape, a.is_contiguous() or a.stride(),
                      b.dtype, b.shape, b.is_contiguous() or b.stride(),
                      (x & 15) << 4 | y & 15, a.is_cuda, b.is_cuda,
                      a.is_neg(), b.is_neg())  # fmt: skip
        if _several:
            key = (*key, a.get_device(), b.get_device())
        return x, y, key, ()
    u, v = view(a), view(b)
    # 1 names the legacy default stream, which the driver also calls 0.
    streams = tuple(0 if w.stream == 1 else w.stream for w in (u, v) if w.stream is not None)
    return u.address, v.address, (u[1:5], v[1:5], u.address & 15, v.address & 15), streams


def refuse_conjugates(*operands) -> None:
    """TypeError for PyTorch's lazily conjugated views, whose memory holds other values."""
    for x in operands:
        if type(x) in _tensor and x.is_conj():
            raise TypeError("a conjugate view is not an operand: call resolve_conj() first")


# -- the caller's library ------------------------------------------------------------------------


def current_stream(kind: str, index: int) -> int:
    """The stream on which the caller of this library works now."""
    if kind == "torch":
        return sys.modules["torch"]._C._cuda_getCurrentRawStream(index)
    if kind == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0


_entered = threading.local()


def enter(x, on) -> int:
    """Makes device `on` current for this thread and gives the stream of x's library."""
    if type(x) in _tensor:
        native = sys.modules["torch"]._C
        # PyTorch keeps its device's context current, but in a new thread not before it asks the
        # driver for something itself, which memory from its cache spares it.
        if getattr(_entered, "index", None) != on.index or (
            _several and native._cuda_getDevice() != on.index
        ):
            on.use()
            _entered.index = on.index
        return native._cuda_getCurrentRawStream(on.index)
    on.use()
    return current_stream(library_of(x), on.index)


def _empty_torch(like, shape, dtype: DType):
    torch = sys.modules["torch"]
    return torch.empty(shape, dtype=getattr(torch, dtype.name), device=like.device)


def _empty_cupy(like, shape, dtype: DType):
    return sys.modules["cupy"].empty(shape, dtype.name)


def _empty_numba(like, shape, dtype: DType):
    from numba import cuda

    return cuda.device_array(shape, dtype.name)


def _empty_jax(like, shape, dtype: DType):
    jax = sys.modules["jax"]
    # A fresh buffer of our own to fill: nobody else has seen it.
    return jax.numpy.empty(shape, dtype.name).block_until_ready()


class DeviceArray:
    """Memory of our own with `__cuda_array_interface__`: results for callers of no known library,
    and host arrays on the device. Its work is on the default stream."""

    def __init__(self, shape, dtype: DType, index: int):
        self.shape, self.kind, self._device = tuple(shape), dtype, device(index)
        self._device.use()
        self.nbytes = dtype.size
        for extent in self.shape:
            self.nbytes *= extent
        self.address = self._device.allocate(self.nbytes, 0)

    @property
    def dtype(self):
        """NumPy's (or ml_dtypes') dtype."""
        from gemm.microkernels.vocabulary import storage

        return storage(self.kind)

    @property
    def __cuda_array_interface__(self) -> dict:
        return {
            "shape": self.shape, "typestr": self.dtype.str, "strides": None,
            "data": (self.address, False), "version": 3, "stream": 1,
        }  # fmt: skip

    def copy_to_host(self):
        """The values as a NumPy array."""
        import numpy as np

        out = np.empty(self.shape, self.dtype)
        self._device.use()
        self._device.copy_out(out.ctypes.data, self.address, self.nbytes, 0)
        self._device.synchronize(0)
        return out

    def __del__(self):
        address, self.address = getattr(self, "address", 0), 0
        if address:
            self._device.use()
            self._device.free(address, 0)


def upload(array, index: int = 0) -> DeviceArray:
    """A copy of a host array in device memory."""
    import numpy as np

    array = np.ascontiguousarray(array)
    dtype = DTYPES.get(array.dtype.name)
    if dtype is None or not array.dtype.isnative:
        raise TypeError(f"gemm computes {', '.join(DTYPES)}, not {array.dtype!r}")
    out = DeviceArray(array.shape, dtype, index)
    out._device.copy_in(out.address, array.ctypes.data, array.nbytes, 0)
    out._device.synchronize(0)
    return out


def _empty_other(like, shape, dtype: DType):
    return DeviceArray(shape, dtype, view(like).device)


KINDS = {
    "torch": _empty_torch,
    "cupy": _empty_cupy,
    "numba": _empty_numba,
    "jax": _empty_jax,
    "jaxlib": _empty_jax,
    "other": _empty_other,
}


def empty(like, shape, dtype: DType):
    """(an uninitialised array of the kind of `like`, on its device; its address)."""
    if type(like) in _tensor and _torch_types.get(like.dtype) is dtype:
        out = like.new_empty(shape)
        return out, out.data_ptr()
    out = KINDS[library_of(like)](like, shape, dtype)
    return out, view(out).address


def maker(like, shape, dtype: DType, turn=None):
    """make() -> (array, address) as `empty` gives them, asked for often; None: ask `empty`.
    turn: the axes of `turned`, the channels of an image from last to second."""
    if type(like) not in _tensor:
        return None
    torch = sys.modules["torch"]
    # One element seen as many: its copies in shape are contiguous, and asked for by one argument.
    kind = getattr(torch, dtype.name)
    model = torch.empty((), dtype=kind, device=like.device).expand(shape)
    empty_like = torch.empty_like
    if turn is not None:
        model = model.permute(turn)
        order = {4: torch.channels_last, 5: torch.channels_last_3d}.get(len(shape))
        if order is None:
            return None
        empty_like = functools.partial(empty_like, memory_format=order)

    def make():
        out = empty_like(model)
        return out, out.data_ptr()

    return make


def turns(like) -> bool:
    """Whether the library of `like` sees an array's axes in another order without a copy."""
    return library_of(like) in ("torch", "cupy")


def turned(x, axes):
    """A view of x, of such a library, with its axes in this order."""
    return x.permute(axes) if library_of(x) == "torch" else x.transpose(axes)


# -- what the engine asks of a backend -----------------------------------------------------------


def device(index: int):
    """The device of this number: facts in `.target`, `.units`; memory and launches."""
    from . import driver

    return driver.device(index)


def kernel(on, plan, build):
    """The loaded kernel of a plan on a device; `build(plan)` gives its source."""
    from . import kernels

    return kernels.kernel(on, plan, build)


def box_kind(name: str) -> int:
    """The copy engine's number of an element type ('tf32' included)."""
    from .driver import BOX_KINDS

    return BOX_KINDS[name]
