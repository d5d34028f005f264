"""gemm: a portable, single-source matrix-multiplication engine in pure Python."""

import os as _os
import sys as _sys
from typing import TYPE_CHECKING as _TYPE_CHECKING
from typing import Any as _Any

if not _os.path.isdir(_os.path.join(__path__[0], "backends")):
    # A checkout: backends, microkernels and perf lie beside this folder.
    __path__.append(_os.path.dirname(__path__[0]))

if _TYPE_CHECKING:
    from gemm.addmm import addmm, baddbmm
    from gemm.dot import dot, inner, vdot
    from gemm.einsum import einsum, einsum_path
    from gemm.explain import explain
    from gemm.matmul import matmul, matvec, vecdot, vecmat
    from gemm.originals import kron, outer
    from gemm.tensordot import tensordot, transpose
    from gemm.threads import get_num_threads, num_threads, set_num_threads

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
    **dict.fromkeys(("addmm", "baddbmm"), "addmm"),
    **dict.fromkeys(("dot", "inner", "vdot"), "dot"),
    **dict.fromkeys(("einsum", "einsum_path"), "einsum"),
    "explain": "explain",
    **dict.fromkeys(("matmul", "matvec", "vecdot", "vecmat"), "matmul"),
    **dict.fromkeys(("kron", "outer"), "originals"),
    **dict.fromkeys(("tensordot", "transpose"), "tensordot"),
    **dict.fromkeys(("get_num_threads", "num_threads", "set_num_threads"), "threads"),
    "pack": "packed",
    "use_in_numpy": "in_numpy",
    **dict.fromkeys(_CONVOLUTION, "convolution"),
    **dict.fromkeys(_EPILOGUE_WORDS, "epilogues"),
}


def __getattr__(name: str) -> _Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"gemm.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"gemm.{_LAZY[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


class _Package(type(_sys)):  # type: ignore[misc]
    """This package: a submodule named like a public function does not take its place."""

    def __setattr__(self, name, value):
        if not (name in _LAZY and isinstance(value, type(_sys))):
            super().__setattr__(name, value)


_sys.modules[__name__].__class__ = _Package
