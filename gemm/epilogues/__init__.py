"""Programs for the write-back: a user's plain Python function, fused into the product."""

from typing import Any

from .contract import Bound, Epilogue, Nibbles, Packed, bind, epilogue
from .words import (
    as_type,
    column_index,
    nearest,
    per_column,
    per_row,
    row_index,
    rsqrt,
    select,
    sigmoid,
    significant,
    uniform,
)

__all__ = [
    "Bound",
    "Epilogue",
    "Nibbles",
    "Packed",
    "as_type",
    "bind",
    "column_index",
    "epilogue",
    "nearest",
    "per_column",
    "per_row",
    "row_index",
    "rsqrt",
    "select",
    "sigmoid",
    "significant",
    "uniform",
]


def __getattr__(name: str) -> Any:
    """The libraries, imported when they are named."""
    if name in ("coda", "stock"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
