"""Gradients of the filters and of the bias.

The filter gradient reduces over output pixels: dW[tap, c, o] = sum of x[pixel read by tap, c] *
dy[pixel, o]. Each sum is one chain over (n, *spatial). The pixels are gathered box by box, and each
box's product goes on from where the one before it stopped, so boxes do not show in the bits.
"""

from __future__ import annotations

import numpy as np

from gemm import engine, targets
from gemm.convolution import gather
from gemm.convolution.geometry import Axis


def filter_gradient(
    source: np.ndarray,
    gradient: np.ndarray,
    axes: tuple[Axis, ...],
    out: np.ndarray,
    *,
    dtypes: tuple[np.dtype, np.dtype],
    threads: int | None = None,
) -> None:
    """Write into ``out`` (groups, filters, channels, *kernel), of the accumulator's dtype, the
    gradient of filters.

    source: (N, groups, channels, *spatial). gradient: (N, groups, filters, *outputs).
    """
    groups, filters, channels = out.shape[:3]
    taps = out.shape[3:]
    rank = len(axes)
    given, kept = (targets.element_type(np.dtype(d)) for d in (dtypes[0], out.dtype))
    wide = np.dtype(targets.accumulator(given, kept).name)
    total = np.zeros((groups, filters, *taps, channels), wide)
    flat = total.reshape(groups, filters, -1)
    width = max(flat.shape[1], flat.shape[2])
    row_bytes = groups * width * max(d.itemsize for d in dtypes)
    counts = (gradient.shape[0], *gradient.shape[3:])
    wanted = np.moveaxis(gradient.swapaxes(0, 1), 2, -1)  # (groups, N, *outputs, filters)
    if flat.size:
        for block in gather.blocks(counts, row_bytes):
            rows = gather.by_arithmetic(source, axes, block, dtypes[0])
            pixels = int(np.prod(rows.shape[1 : 2 + rank]))
            a = wanted[(slice(None), *block)].reshape(groups, pixels, filters)
            b = rows.reshape(groups, pixels, flat.shape[2])
            a = a.astype(dtypes[1], copy=False).swapaxes(1, 2)
            engine.product(a, b, flat, threads=threads, resume=True)
    out[...] = np.moveaxis(total, -1, 2)


def bias_gradient(gradient: np.ndarray, out: np.ndarray, *, threads: int | None = None) -> None:
    """Write into ``out`` (O,), of the accumulator's dtype, the sum of ``gradient`` (N, O,
    *outputs).

    One chain over the pixels of an image, then one over the images.
    """
    images, filters = gradient.shape[:2]
    if gradient.dtype.name == "bfloat16":
        # A level may add bfloat16 products in an order of its own.
        gradient = gradient.astype(np.float32)
    pixels = int(np.prod(gradient.shape[2:]))
    sums = np.empty((images, filters, 1), out.dtype)
    # The reshape copies one image at a time where its pixels are not one strided axis.
    ones = np.ones((pixels, 1), gradient.dtype)
    for image, total in zip(gradient, sums, strict=True):
        engine.product(image.reshape(filters, pixels), ones, total, threads=threads)
    engine.product(
        np.ones((1, images), out.dtype), sums[..., 0], out.reshape(1, filters), threads=threads
    )
