"""Installs the doors (see door_source.py) as Python callables; tests every layout they rely on.

Where the layout does not hold (free-threaded or debug builds, other implementations), where no
kernel can be had, or with GEMM_DOOR=0, `open_door` returns None and calls walk through Python.
"""

from __future__ import annotations

import ctypes
import os
import sys
import sysconfig

import numpy as np

from . import door_source as source
from . import kernels, loader

_kept: list = []


class _MethodDef(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("method", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    ]


METH_FASTCALL = 0x80


def supported() -> bool:
    """CPython, 64 bits, with the GIL, not a debug build."""
    return (
        sys.implementation.name == "cpython"
        and sys.maxsize > 2**32
        and not sysconfig.get_config_var("Py_GIL_DISABLED")
        and not hasattr(sys, "gettotalrefcount")
        and os.environ.get("GEMM_DOOR", "1") != "0"
    )


def layout_holds() -> bool:
    """The field offsets of door_source.py, read back from a live array."""
    array = np.empty((3, 5), np.float64)[:, ::2]
    base = id(array)

    def at(offset):
        return ctypes.c_int64.from_address(base + offset).value

    def at32(address):
        return ctypes.c_int32.from_address(address).value

    dims, strides = at(32), at(40)
    return (
        at(8) == id(np.ndarray)
        and at(16) == array.ctypes.data
        and at32(base + 24) == 2
        and [ctypes.c_int64.from_address(dims + 8 * i).value for i in (0, 1)] == [3, 3]
        and [ctypes.c_int64.from_address(strides + 8 * i).value for i in (0, 1)] == [40, 16]
        and at(56) == id(array.dtype)
        and at32(id(array.dtype) + 28) == array.dtype.num
        and bool(at32(base + 64) & source.WRITEABLE)
    )


EMPTY, SCALAR = 184, 60  # places of PyArray_Empty and PyArray_Scalar in NumPy's C API


def _numpy_function(place: int) -> int:
    """Address of a function of NumPy's C API."""
    try:
        from numpy._core import _multiarray_umath as umath  # type: ignore[attr-defined]
    except ImportError:
        from numpy.core import _multiarray_umath as umath
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    api = get(umath._ARRAY_API, None)
    return ctypes.c_int64.from_address(api + 8 * place).value


def _address(name: str) -> int:
    return ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0


class Door:
    """The callables and the table they work from.

    call: (x1, x2, out) -> ndarray or None. inner: (x, y) or, to conjugate x, (x, y, True) ->
    scalar or None; there after `open_inner`.
    """

    def __init__(self, level):
        self.level = level
        self.inner = None
        self.table = np.zeros(source.HEADER + source.ROW * source.ROWS, np.int64)
        table = self.table
        table[source.NDARRAY] = id(np.ndarray)
        table[source.NONE] = id(None)
        table[source.INCREF] = _address("Py_IncRef")
        table[source.SAVE] = _address("PyEval_SaveThread")
        table[source.RESTORE] = _address("PyEval_RestoreThread")
        table[source.EMPTY] = _numpy_function(EMPTY)
        table[source.SCALAR] = _numpy_function(SCALAR)
        table[source.DIMS] = 1
        self.call = self._built_in("door", source.make_door)

    def open_inner(self) -> None:
        self.inner = self._built_in("inner door", source.make_inner_door)

    def _built_in(self, name: str, build):
        address = kernels.load(self.level, name, build, entry="raw")
        definition = _MethodDef(name.encode(), address, METH_FASTCALL, None)
        new = ctypes.pythonapi.PyCFunction_NewEx
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.POINTER(_MethodDef), ctypes.py_object, ctypes.py_object]
        _kept.append((definition, self.table))
        return new(ctypes.byref(definition), self.table, None)

    def set_space(self, space: np.ndarray) -> None:
        """Scratch for products that are packed."""
        _kept.append(space)
        self.table[source.SPACE] = space.ctypes.data

    def set_row(self, dtype: np.dtype, descr: str, **fields: int) -> None:
        """Opens a door for one dtype; fields are the row's names in lower case, descr that of the
        one that says so."""
        base = source.HEADER + source.ROW * dtype.num
        for name, value in fields.items():
            self.table[base + getattr(source, name.upper())] = value
        self.table[base + source.SIZE] = dtype.itemsize
        self.table[base + getattr(source, descr.upper())] = id(dtype)


def open_door(level) -> Door | None:
    """A door for a CPU level, with no dtype served yet; None where it cannot be."""
    if not (supported() and layout_holds()):
        return None
    try:
        return Door(level)
    except (RuntimeError, loader.LoadError, AttributeError):
        return None
