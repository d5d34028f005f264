"""Programs for the write-back: a user's plain Python function, fused into the product."""

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
