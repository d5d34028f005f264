"""Convolution on the matrix-multiplication engine: operand A is gathered, never materialised.

`geometry` says where each tap lies, `gather` turns that into rows, `forward` drives the product,
`transposed` and `gradients` are the same gather read the other way, `functions` holds what users
call.
"""

from gemm.convolution.columns import fold, unfold
from gemm.convolution.derivatives import (
    conv1d_bias,
    conv1d_input,
    conv1d_weight,
    conv2d_bias,
    conv2d_input,
    conv2d_weight,
    conv3d_bias,
    conv3d_input,
    conv3d_weight,
)
from gemm.convolution.filters import PackedFilters, pack_filters
from gemm.convolution.functions import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)

__all__ = [
    "PackedFilters",
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
]
