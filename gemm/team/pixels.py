"""Operand A of a convolution: gathered from images by whoever fills the stage.

        k:   tap 0, channels 0..  | tap 0, channels BK.. | .. | tap 1, channels 0.. | ..
    row i:   the pixel that tap 0 of output i reads ..        the pixel that tap 1 reads ..

A ring's filling lane moves a cursor over (tap, channels) and lets the copy engine gather: a tap
whose channels are no whole number of stages ends in zeros. Lanes that fill by themselves evaluate
the rule of every element, and K is (taps x channels) without gaps.
"""

from __future__ import annotations

from gemm.microkernels import pixels as words
from gemm.microkernels.cooperative import quotient
from gemm.microkernels.dtypes import int64
from gemm.microkernels.pixels import image_rule, pixels_begin, pixels_fetch
from gemm.microkernels.vocabulary import load, recast, shift

from .plan import TeamPlan

BATCH_BYTES = 128  # of the table of a batch, which the rule follows


def make_image_source(plan: TeamPlan):
    """How a filling lane goes along A and B, as of `ring.make_matrix_source`.

    A block starts at (image, a position on each axis); a cursor is (tap, its positions along the
    axes from the lowest, channel). B is seen as (channels, columns, taps, groups). u: of A,
    channels before those of the block's group; of B, its group.
    """
    from .ring import make_fill

    BK = plan.block[2]
    put_b = make_fill(plan.tile.b, plan.share[0], plan.peers)
    CHANNELS = 8 * words.CHANNELS
    X, Y, Z = (
        tuple(8 * words.entry(axis, fact) for fact in range(8)) for axis in range(words.AXES)
    )
    X_COUNT, X_STEP, _, _, _, X_FIRST, X_LOWEST, X_ADVANCE = X
    Y_COUNT, Y_STEP, _, _, Y_TAPS, Y_FIRST, Y_LOWEST, Y_ADVANCE = Y
    Z_COUNT, Z_STEP, _, _, Z_TAPS, Z_FIRST, Z_LOWEST, Z_ADVANCE = Z

    def start(a, row):
        rule = image_rule(a)
        count = load(shift(rule, Z_COUNT))
        above = quotient(row, count)
        z = row - above * count
        count = load(shift(rule, Y_COUNT))
        rest = quotient(above, count)
        y = above - rest * count
        count = load(shift(rule, X_COUNT))
        image = quotient(rest, count)
        x = rest - image * count
        x = x * load(shift(rule, X_STEP)) + load(shift(rule, X_LOWEST))
        y = y * load(shift(rule, Y_STEP)) + load(shift(rule, Y_LOWEST))
        z = z * load(shift(rule, Z_STEP)) + load(shift(rule, Z_LOWEST))
        return image, x, y, z

    def tap_zero(a, first, lowest):
        rule = image_rule(a)
        return load(shift(rule, first)) - load(shift(rule, lowest))

    def beyond(a, first, lowest, taps, advance):
        """Where a tap past the last of an axis would be."""
        rule = image_rule(a)
        return tap_zero(a, first, lowest) + load(shift(rule, taps)) * load(shift(rule, advance))

    def first(a, k):
        dx = tap_zero(a, X_FIRST, X_LOWEST)
        dy = tap_zero(a, Y_FIRST, Y_LOWEST)
        dz = tap_zero(a, Z_FIRST, Z_LOWEST)
        return 0, dx, dy, dz, 0

    def fill_a(dst, a, gate, place, cursor, further, u, v):
        image, x, y, z = place
        _, dx, dy, dz, channel = cursor
        pixels_fetch(dst, a, gate, channel + u, x, y, z, image, dx, dy, dz)

    def fill_b(dst, b, gate, column, cursor, further, u, v):
        tap, _, _, _, channel = cursor
        put_b(dst, b, gate, column, channel + further, tap, u)

    def after(a, cursor):
        rule = image_rule(a)
        tap, dx, dy, dz, channel = cursor
        channel += BK
        if channel >= load(shift(rule, CHANNELS)):
            channel = 0
            tap += 1
            dz += load(shift(rule, Z_ADVANCE))
            if dz == beyond(a, Z_FIRST, Z_LOWEST, Z_TAPS, Z_ADVANCE):
                dz = tap_zero(a, Z_FIRST, Z_LOWEST)
                dy += load(shift(rule, Y_ADVANCE))
                if dy == beyond(a, Y_FIRST, Y_LOWEST, Y_TAPS, Y_ADVANCE):
                    dy = tap_zero(a, Y_FIRST, Y_LOWEST)
                    dx += load(shift(rule, X_ADVANCE))
        return tap, dx, dy, dz, channel

    return start, first, fill_a, fill_b, after


def make_begin_pixels(stage, turned: bool):
    """How lanes start to move a panel of A, as of `lanes.make_begin_matrix`; turned: its rows are
    (tap, channel) and its k output pixels, as the gradient of the filters wants it."""

    TURNED = int(turned)

    def begin(dst, source, dims, row, first, row_step, k_step, rows, depth):
        rule = shift(recast(dims, int64), BATCH_BYTES)
        return pixels_begin(stage, dst, source, rule, row, first, rows, depth, TURNED)

    return begin
