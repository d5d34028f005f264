"""Deformable convolution (Dai et al. 2017, Zhu et al. 2019): taps at fractional positions.

Each tap of each output pixel reads the bilinear mixture of four input pixels; pixels outside the
image count as zero. The sampled rows are one more way to fill operand A.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gemm import engine
from gemm.convolution import filters, geometry, operands


def convolve(
    x: np.ndarray,
    w: np.ndarray,
    offset: np.ndarray,
    bias: np.ndarray | None,
    mask: np.ndarray | None,
    *,
    stride: int | Sequence[int],
    padding: Any,
    dilation: int | Sequence[int],
    groups: int,
    offset_groups: int,
) -> np.ndarray:
    """(N, O, OH, OW) of x (N, C, H, W), w (O, C / groups, KH, KW).

    offset: (N, offset_groups * KH * KW * 2, OH, OW), in pixels, rows before columns. mask: None or
    (N, offset_groups * KH * KW, OH, OW). Raises ValueError for shapes that do not fit.
    """
    name = "DeformConv"
    operands.check_rank(name, "X", x, 4)
    operands.check_groups(name, groups, w.shape[0])
    operands.check_groups(name, offset_groups, x.shape[1], "channels")
    operands.check_channels(name, "X", x.shape[1], w.shape[1], groups)
    shape = geometry.forward(name, x.shape[2:], w.shape[2:], stride, padding, dilation)
    taps, images = (*w.shape[2:],), x.shape[0]
    wanted = (images, offset_groups * taps[0] * taps[1] * 2, *shape.output)
    if offset.shape != wanted:
        raise ValueError(f"{name}: offset must have shape {wanted}, got {offset.shape}")
    moves = offset.reshape(images, offset_groups, *taps, 2, *shape.output)
    weights = None if mask is None else mask.reshape(images, offset_groups, *taps, *shape.output)
    y = np.empty((images, w.shape[0], *shape.output), x.dtype)
    matrix = filters.matrix(w, groups)
    for n in range(images):
        sampled = _sample(x[n], moves[n], shape.axes(), offset_groups)
        if weights is not None:
            sampled *= weights[n][:, None]
        # (C, *taps, *outputs) to (groups, pixels, taps * C / groups), channels innermost.
        sampled = sampled.reshape(groups, -1, *taps, *shape.output)
        rows = np.moveaxis(sampled, 1, 3).reshape(groups, matrix.shape[1], -1).swapaxes(1, 2)
        out = y[n].reshape(groups, -1, rows.shape[1]).swapaxes(1, 2)
        engine.product(rows.astype(x.dtype, copy=False), matrix, out)
    if bias is not None:
        y += bias.reshape(-1, 1, 1)
    return y


def _sample(
    image: np.ndarray, moves: np.ndarray, axes: tuple[geometry.Axis, ...], offset_groups: int
) -> np.ndarray:
    """(offset_groups, C / offset_groups, *taps, OH, OW) of an image (C, H, W)."""
    wide = operands.accumulator(image.dtype)
    channels = image.reshape(offset_groups, -1, *image.shape[1:])
    lower, share = [], []
    for d, axis in enumerate(axes):
        grid = np.arange(axis.count) * axis.step + np.array(axis.offsets)[:, None]
        spread = (
            (len(axis.offsets), 1, axis.count, 1)
            if d == 0
            else (1, len(axis.offsets), 1, axis.count)
        )
        position = grid.reshape(spread) + moves[:, :, :, d]
        floor = np.floor(position)
        lower.append(floor.astype(np.int64))
        share.append((position - floor).astype(wide))
    result = np.zeros((offset_groups, channels.shape[1], *lower[0].shape[1:]), wide)
    for corner in itertools.product((0, 1), repeat=2):
        index, weight, inside = [], wide.type(1), True
        for axis, low, part, c in zip(axes, lower, share, corner, strict=True):
            inside = inside & (low + c >= 0) & (low + c < axis.extent)
            index.append(np.clip(low + c, 0, axis.extent - 1))
            weight = weight * (part if c else 1 - part)
        weight = np.where(inside, weight, 0)
        for g in range(offset_groups):
            result[g] += channels[g][:, index[0][g], index[1][g]] * weight[g]
    return result
