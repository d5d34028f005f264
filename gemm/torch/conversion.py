"""Turning the layers of an existing model into ours and back, in place.

A layer is turned by changing its class: ours add no state, so parameters, buffers, hooks and every
reference to the layer stay as they are. Only layers of exactly PyTorch's classes are touched: a
subclass may have changed the very arithmetic that would be replaced.
"""

from __future__ import annotations

from torch import nn

from gemm.torch import layers

PAIRS = {
    getattr(nn, name): getattr(layers, name)
    for name in (
        "Conv1d",
        "Conv2d",
        "Conv3d",
        "ConvTranspose1d",
        "ConvTranspose2d",
        "ConvTranspose3d",
        "Linear",
    )
}


def convert(model: nn.Module) -> nn.Module:
    """Make every PyTorch convolution and linear layer of ``model`` run on the engine; returns
    it.
    """
    return _exchange(model, PAIRS)


def revert(model: nn.Module) -> nn.Module:
    """Undo `convert`; returns ``model``."""
    return _exchange(model, {ours: theirs for theirs, ours in PAIRS.items()})


def _exchange(model: nn.Module, classes: dict[type, type]) -> nn.Module:
    for module in model.modules():
        module.__class__ = classes.get(type(module), type(module))
    return model
