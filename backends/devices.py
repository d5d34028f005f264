"""Which backend an operand belongs to. Asking imports no GPU package and never fails."""

from __future__ import annotations

HOST = ("numpy", "builtins", "ml_dtypes")


def backend_of(x):
    """The device backend module that holds x's memory, or None for host data."""
    if type(x).__module__.partition(".")[0] in HOST:
        return None
    from .cuda import arrays

    return arrays if arrays.is_device_array(x) else None


def names() -> list[str]:
    """Names of the GPUs of this machine; empty where there is none or no driver."""
    import ctypes

    from .cuda.driver import driver

    try:
        driving = driver()
        count, label = ctypes.c_int(), ctypes.create_string_buffer(256)
        driving.call("cuDeviceGetCount", ctypes.byref(count))
        found = []
        for index in range(count.value):
            driving.call("cuDeviceGetName", label, ctypes.c_int(256), ctypes.c_int(index))
            found.append(label.value.decode())
        return found
    except RuntimeError:
        return []


def named(name: str):
    """The device backend a caller names; ValueError for one there is not."""
    if name != "cuda":
        raise ValueError(f"device={name!r}: expected 'cpu' or 'cuda'")
    from .cuda import arrays

    return arrays
