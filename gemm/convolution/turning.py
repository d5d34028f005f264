"""An image turned from channels first to channels last, in squares transposed in registers.

            pixels                         channels
         +---------+                     +---------+
channels |  lanes x lanes     ->  pixels |         |     both sides whole vectors
         +---------+                     +---------+
"""

from __future__ import annotations

from gemm.microkernels.dtypes import DType, TileShape
from gemm.microkernels.vocabulary import prefetch, shift, tile_load, tile_store, tile_transpose


def make_turn_image(lanes: int, dtype: DType):
    """The kernel for elements of `dtype`; see `turn_image` below."""
    size = dtype.size
    row = lanes * size
    square = TileShape(lanes, 1, lanes, dtype.computed)

    def turn_image(x, y, images, pixels, channels, x_image, x_channel, y_image, y_pixel, team,
                   worker):  # fmt: skip
        """One worker's share of the pixels of all images.

        x: (images, channels, pixels) with adjacent pixels; y: (images, pixels, channels) with
        adjacent channels; the steps in bytes.
        """
        blocks = (pixels + lanes - 1) // lanes
        for index in range(
            worker * images * blocks // team, (worker + 1) * images * blocks // team
        ):
            image = index // blocks
            first = (index - image * blocks) * lanes
            n = min(lanes, pixels - first)
            from_ = shift(x, image * x_image + first * size)
            to = shift(y, image * y_image + first * y_pixel)
            for c in range(0, channels, lanes):
                m = min(lanes, channels - c)
                for i in range(lanes):  # rows lie pages apart: no hardware foresees them
                    prefetch(shift(from_, (c + i) * x_channel + 2 * row))
                t = tile_load(square, shift(from_, c * x_channel), x_channel, m, n)
                tile_store(shift(to, c * size), y_pixel, tile_transpose(t), n, m)

    return turn_image
