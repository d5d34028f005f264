"""gemm: a portable, single-source matrix-multiplication engine in pure Python."""

import os as _os
from typing import Any as _Any

if not _os.path.isdir(_os.path.join(__path__[0], "backends")):
    # A checkout: backends, microkernels and perf lie beside this folder.
    __path__.append(_os.path.dirname(__path__[0]))

# These names are also names of submodules: bound here, at once, so that the function wins.
from gemm.addmm import addmm, baddbmm  # noqa: E402
from gemm.dot import dot, inner, vdot  # noqa: E402
from gemm.einsum import einsum, einsum_path  # noqa: E402
from gemm.explain import explain  # noqa: E402
from gemm.matmul import matmul, matvec, vecdot, vecmat  # noqa: E402
from gemm.originals import kron, outer  # noqa: E402
from gemm.tensordot import tensordot, transpose  # noqa: E402
from gemm.threads import get_num_threads, num_threads, set_num_threads  # noqa: E402

_EPILOGUE_WORDS = (
    "Nibbles",
    "Packed",
    "as_type",
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
)

_CONVOLUTION = (
    "conv1d",
    "conv1d_bias",
    "conv1d_input",
    "conv1d_weight",
    "conv2d",
    "conv2d_bias",
    "conv2d_input",
    "conv2d_weight",
    "conv3d",
    "conv3d_bias",
    "conv3d_input",
    "conv3d_weight",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "fold",
    "pack_filters",
    "unfold",
)

__all__ = [
    *_CONVOLUTION,
    *_EPILOGUE_WORDS,
    "addmm",
    "array_api",
    "baddbmm",
    "dot",
    "einsum",
    "einsum_path",
    "explain",
    "get_num_threads",
    "inner",
    "kron",
    "linalg",
    "matmul",
    "matvec",
    "num_threads",
    "outer",
    "pack",
    "set_num_threads",
    "tensordot",
    "transpose",
    "use_in_numpy",
    "vdot",
    "vecdot",
    "vecmat",
]

_MODULES = ("array_api", "linalg")
_LAZY = {
    "pack": "packed",
    "use_in_numpy": "in_numpy",
    **dict.fromkeys(_CONVOLUTION, "convolution"),
    **dict.fromkeys(_EPILOGUE_WORDS, "epilogues"),
}


def __getattr__(name: str) -> _Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"gemm.{name}")
    if name in _LAZY:
        return getattr(import_module(f"gemm.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
