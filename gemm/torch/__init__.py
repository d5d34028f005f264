"""PyTorch layers on the matrix-multiplication engine: same constructors, same state, other
arithmetic.

``convert(model)`` turns the convolution and linear layers of an existing model into these in place,
``revert(model)`` turns them back. The layers differentiate twice, follow autocast and compile
without graph breaks. Needs the extra ``torch``.
"""

from gemm.torch.conversion import convert, revert
from gemm.torch.layers import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    Linear,
)

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Linear",
    "convert",
    "revert",
]
