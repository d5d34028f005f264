"""Words for a panel that is gathered: element (i, j) of it is one pixel's channel, or zero.

Row i stands for an output pixel, column j for (tap, channel), channels innermost, as in
gemm/convolution/gather.py. Where that lies follows from a rule, `RULE` integers of 64 bits:

    0 channels   1 bytes to the next channel   2 bytes to the next image   3 images
    4 + 8 a ..   of spatial axis a (outermost first; axes there are not have extent 1):
                 count  outputs          pitch    bytes to the next position
                 step   between outputs  taps     kernel positions
                 extent of the image     first    position that tap 0 of output 0 reads
                 lowest of all first positions    advance  from a tap to the next

The copy engine evaluates it by itself (`pixels_fetch`); where there is none, or the image is not
as it wants it, lanes do (`pixels_begin`).
"""

from __future__ import annotations

import numpy as np

from . import cooperative as team
from .dtypes import int64
from .vocabulary import Pointer, computed, shift, storage

AXES = 3
RULE = 4 + 8 * AXES
RULE_BYTES = 8 * RULE
MAP_BYTES = 128
CHANNELS, CHANNEL_STEP, IMAGE_STEP, IMAGES = range(4)
COUNT, STEP, EXTENT, PITCH, TAPS, FIRST, LOWEST, ADVANCE = range(8)


def entry(axis: int, fact: int) -> int:
    """Where a fact of a spatial axis stands in the rule."""
    return 4 + 8 * axis + fact


class Image:
    """How the copy engine sees an image: pixels with adjacent channels, and a box of `pixels`
    output pixels by `channels`.

    array: ndarray (images, *spatial, channels); rule: the RULE integers.
    """

    def __init__(self, array: np.ndarray, rule, channels: int, pixels: int):
        self.array, self.channels, self.pixels = array, channels, pixels
        self.rule = np.asarray(rule, np.int64)
        self.rank = array.ndim - 2

    def content(self, channel, start, image, offsets) -> np.ndarray:
        """(pixels, channels) elements: from the pixel at `start` (one position an axis) on."""
        out = np.zeros((self.pixels, self.channels), self.array.dtype)
        axes = range(AXES - self.rank, AXES)
        at = list(start[AXES - self.rank :])
        for row in out:
            place = [p + offsets[a] for p, a in zip(at, axes, strict=True)]
            inside = 0 <= image < len(self.array) and all(
                0 <= p < extent for p, extent in zip(place, self.array.shape[1:-1], strict=True)
            )
            if inside:
                found = self.array[(image, *place)][channel : channel + self.channels]
                row[: len(found)] = found
            for i in reversed(range(self.rank)):
                facts = self.rule[entry(axes[i], 0) : entry(axes[i], 8)]
                at[i] += facts[STEP]
                if at[i] <= facts[LOWEST] + (facts[COUNT] - 1) * facts[STEP]:
                    break
                at[i] = facts[LOWEST]
            else:
                image += 1
        return out


def image_rule(image):
    """The rule that travels with an image, a pointer to its integers."""
    return Pointer(image.rule.view(np.uint8), 0, int64)


def pixels_fetch(dst, image, gate, channel, x, y, z, n, dx, dy, dz):
    """A box of output pixels by channels into shared memory at dst; its bytes count at the gate.

    The first output pixel starts at (x, y, z), outermost first, of image n; the tap is (dx, dy,
    dz) positions further; `channel` is the first. What is outside arrives as zeros. Lines are
    128 bytes, a pixel each, chunks permuted by the line number.
    """
    grid = team._current()
    start, offsets = (int(x), int(y), int(z)), (int(dx), int(dy), int(dz))
    values = image.content(int(channel), start, int(n), offsets)
    size = values.itemsize
    line, byte = np.divmod(np.arange(values.size) * size, image.channels * size)
    chunk, rest = np.divmod(byte, team.CHUNK)
    place = line * team.ROW + (chunk ^ (line & 7)) * team.CHUNK + rest
    at = dst.offset + place[:, None] + np.arange(size)
    grid.memories[grid.here.worker][at] = values.reshape(-1).view(np.uint8).reshape(at.shape)
    with grid.changed:
        gate_of = grid.gates[(grid.here.worker, gate.offset)]
        gate_of.bytes -= values.nbytes
        gate_of.turn()
        grid.changed.notify_all()


def pixels_begin(stage, dst, p, rule, row, k, rows, depth, turned):
    """`panel_begin` of a gathered panel: rows row.. are output pixels, k.. (tap, channel); the
    other way about where `turned`.

    p: channel 0 of the first pixel of the first image; rule: pointer to the rule. Elements with
    r >= rows or j >= depth become zero, as do taps outside the image; neither is read.
    """
    facts = rule.view(RULE, np.dtype(np.int64))
    held = np.zeros((stage.rows, stage.depth), computed(stage.dtype))
    for r in range(min(stage.rows, int(rows))):
        for j in range(min(stage.depth, int(depth))):
            pixel, column = int(row) + r, int(k) + j
            at = _address(facts, column, pixel) if turned else _address(facts, pixel, column)
            if at is not None:
                q = shift(p, at)
                held[r, j] = q.view(1, storage(q.dtype)).astype(held.dtype)[0]
    return held


def _address(facts, pixel: int, column: int) -> int | None:
    tap, channel = divmod(column, int(facts[CHANNELS]))
    at = channel * int(facts[CHANNEL_STEP])
    inside = True
    for axis in reversed(range(AXES)):
        of = [int(x) for x in facts[entry(axis, 0) : entry(axis, 8)]]
        pixel, output = divmod(pixel, of[COUNT])
        tap, t = divmod(tap, of[TAPS])
        position = output * of[STEP] + of[FIRST] + t * of[ADVANCE]
        inside = inside and 0 <= position < of[EXTENT]
        at += position * of[PITCH]
    return at + pixel * int(facts[IMAGE_STEP]) if inside else None
