"""The outer-product micro-kernel: a register tile gains one rank-1 update a step of k.

              b   row of `columns` values, `b_step` bytes to the next k
            +-----------------+
      a   | |                 |
      rows| |   t += a x b    |   a: `rows` values `row_step` bytes apart,
          | |                 |      `a_step` bytes to the next k
            +-----------------+

Contract: t is returned, nothing is written; k >= 0; each element continues its own chain of
fused multiply-adds in ascending k. Packed panels have constant steps, which the compiler folds
into addresses; unpacked operands pass theirs at run time.
"""

from __future__ import annotations

import functools

from .vocabulary import outer_accumulate, prefetch_far, shift


@functools.cache
def make_outer_product(unroll: int = 4):
    """The micro-kernel as a function of (tile, a, row_step, a_step, b, b_step, n, k).

    n: columns of b that exist; a constant n of at least the tile's costs nothing.
    """

    def outer_product(t, a, row_step, a_step, b, b_step, n, k):
        for _ in range(k // unroll):
            for u in range(unroll):
                t = outer_accumulate(t, shift(a, u * a_step), row_step, shift(b, u * b_step), n)
            a = shift(a, unroll * a_step)
            b = shift(b, unroll * b_step)
        for _ in range(k % unroll):
            t = outer_accumulate(t, a, row_step, b, n)
            a = shift(a, a_step)
            b = shift(b, b_step)
        return t

    return outer_product


@functools.cache
def make_outer_product_ahead(unroll: int = 4):
    """The same for rows of A in place, which meanwhile asks for two rows of another panel.

    outer_product_ahead(tile, a, row_step, a_step, b, b_step, n, k, beyond): `beyond` is the first
    of two rows, row_step bytes apart, that go on as those of a do.
    """

    def outer_product_ahead(t, a, row_step, a_step, b, b_step, n, k, beyond):
        for _ in range(k // unroll):
            prefetch_far(beyond)
            prefetch_far(shift(beyond, row_step))
            for u in range(unroll):
                t = outer_accumulate(t, shift(a, u * a_step), row_step, shift(b, u * b_step), n)
            a = shift(a, unroll * a_step)
            b = shift(b, unroll * b_step)
            beyond = shift(beyond, unroll * a_step)
        for _ in range(k % unroll):
            t = outer_accumulate(t, a, row_step, b, n)
            a = shift(a, a_step)
            b = shift(b, b_step)
        return t

    return outer_product_ahead
