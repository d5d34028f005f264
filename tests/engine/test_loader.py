"""The loader: every object is complete and needs nothing from outside; anything else is refused."""

import ctypes
import platform
import struct

import numpy as np
import pytest

import gemm
from gemm.backends import ceiling, kernel_cache
from gemm.backends.cpu import kernels, loader
from gemm.backends.cpu.machine import machine
from gemm.microkernels.dtypes import TileShape, float64

LEVEL = machine().levels[0]
LANES = LEVEL.unit.lanes(float64)
SPEC = ceiling.ChainsSpec(TileShape(1, 1, LANES, float64), False)


@pytest.fixture(scope="module")
def data():
    return kernels.object_code(LEVEL, repr(SPEC), SPEC.build)


def test_a_kernel_runs_where_it_is_mapped(data):
    address = loader.load(data, kernels.ENTRY)
    operands = np.full((3, LANES), 2.0)
    table = np.array([operands.ctypes.data, 1], np.int64)
    ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(address)(table.ctypes.data)
    assert (operands[0] == 2**6 - 2).all()


@pytest.mark.parametrize("share", [0, 1, 10, 63, 64, 0.25, 0.5, 0.75, 0.99])
def test_a_truncated_object_is_refused(data, share):
    cut = data[: share if isinstance(share, int) else int(len(data) * share)]
    with pytest.raises(loader.LoadError):
        loader.load(cut, kernels.ENTRY)


def test_every_truncation_is_an_error_and_never_a_crash(data):
    for length in range(0, len(data), 7):
        with pytest.raises((loader.LoadError, struct.error, ValueError)):
            loader.load(data[:length], kernels.ENTRY)


def test_another_architecture_is_refused(data):
    other = bytearray(data)
    struct.pack_into("<H", other, 18, 8)
    with pytest.raises(loader.LoadError, match="for machine 8, this one is"):
        loader.load(bytes(other), kernels.ENTRY)


def test_text_and_missing_entries_are_refused(data):
    with pytest.raises(loader.LoadError, match="not a 64-bit"):
        loader.load(b"print('hello')" * 30, kernels.ENTRY)
    with pytest.raises(loader.LoadError, match="no function 'other'"):
        loader.load(data, "other")


def test_an_object_with_an_undefined_symbol_is_refused():
    """It would load and crash when called. The planted one calls the C library's exp."""
    import llvmlite.binding as llvm

    target = kernels.target_of(LEVEL)
    module = llvm.parse_assembly(
        f"""
        target triple = "{target.triple}"
        declare double @exp(double)
        define double @kernel(double %x) {{
          %y = call double @exp(double %x)
          ret double %y
        }}
        """
    )
    planted = target.machine().emit_object(module)
    assert loader.undefined_symbols(planted) == ["exp"]
    with pytest.raises(loader.LoadError, match="undefined symbols: exp"):
        loader.load(planted, kernels.ENTRY)


def test_no_kernel_in_the_cache_needs_anything_from_outside():
    """Whatever the other tests compiled: products of every family, door and team."""
    a = np.ones((80, 80))
    gemm.matmul(a, a)
    checked = 0
    for entry in kernel_cache.entries():
        payload = kernel_cache.get(entry.name.removesuffix(kernel_cache.SUFFIX))
        if payload is None or payload[:4] != b"\x7fELF":
            continue
        # Tests compile for other machines too; their objects are not this loader's.
        if int.from_bytes(payload[18:20], "little") == loader.MACHINES[platform.machine().lower()]:
            assert loader.undefined_symbols(payload) == [], entry
            checked += 1
    assert checked
