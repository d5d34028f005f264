"""Tensors as NumPy arrays of the same memory, and the memory format of a result."""

from __future__ import annotations

import numpy as np
import torch


def array(tensor: torch.Tensor) -> np.ndarray:
    """A CPU tensor as an array that shares its memory; bfloat16 becomes ml_dtypes.bfloat16.

    A tensor that is lazily conjugated or negated is resolved first. Raises TypeError for a tensor
    of another device.
    """
    if tensor.device.type != "cpu":
        raise TypeError(f"gemm.torch: a tensor on device {tensor.device} is not supported yet")
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype == torch.bfloat16:
        import ml_dtypes

        return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def result_format(*operands: torch.Tensor) -> torch.memory_format:
    """Channels last when an operand is stored that way and not also contiguous, as PyTorch
    chooses.
    """
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    last = formats.get(operands[0].ndim)
    if last is not None and any(
        t.is_contiguous(memory_format=last) and not t.is_contiguous() for t in operands
    ):
        return last
    return torch.contiguous_format
