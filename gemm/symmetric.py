"""A matrix times its own transpose: the lower half is computed, the upper half mirrored.

Element (i, j) and element (j, i) are the same chain for real types, so the bits are those of
the whole product. Row blocks of the lower triangle are ordinary products:

    +----+
    | I0 |  . . . .
    +----+----+          block row I:  out[I, :end] = A[I] @ A[:end].T
    | I1      |  . .     then each block above the diagonal is the transpose of its twin
    +---------+----+
    | I2           |
    +--------------+
"""

from __future__ import annotations

from .execution import address

SMALLEST = 384  # rows below which halving does not pay
BLOCKS = 8
MIRROR = 64  # side of the blocks that the mirroring moves


def applies(a, b, out) -> bool:
    """Whether b is a's transpose, and the product is worth halving."""
    return (
        a.ndim == 2
        and a.shape[0] >= SMALLEST
        and a.shape == b.shape[::-1]
        and a.strides == b.strides[::-1]
        and a.dtype is b.dtype
        and out.dtype.kind != "c"
        and a.shape[1] >= 64
        and address(a) == address(b)
    )


def product(a, b, out, multiply) -> None:
    """out = a @ b, by multiply(a, b, out) on parts."""
    n = len(out)
    side = max(128, -(-n // BLOCKS))
    for top in range(0, n, side):
        end = min(n, top + side)
        multiply(a[top:end], b[:, :end], out[top:end, :end])
    mirror(out)


def mirror(out) -> None:
    """Copies the lower triangle of a square array onto the upper one."""
    n = len(out)
    for top in range(0, n, MIRROR):
        end = min(n, top + MIRROR)
        out[top:end, end:] = out[end:, top:end].T
        # The diagonal block was computed whole.
