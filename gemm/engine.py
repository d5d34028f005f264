"""Problem to plan to kernel to run: the engine's interface.

`product` is all that the NumPy calls, convolution and the suite stand on.
"""

from __future__ import annotations

import numpy as np

from . import slices, symmetric
from .execution import batches, execute
from .planner import SKINNY_ROWS, SMALL_WORK, grain, inner_plan, make_plan
from .targets import (
    accumulator,
    check_level,
    computed_dtypes,
    default_level,
    element_type,
    environment,
    levels,
    parse_kernel,
    tile_for,
    unit_of,
)
from .threads import checked, get_num_threads

__all__ = [
    "accumulator",
    "again",
    "check_level",
    "default_level",
    "door",
    "element_type",
    "grain",
    "inner",
    "inner_door",
    "inner_planned",
    "levels",
    "make_plan",
    "parse_kernel",
    "product",
    "tile_for",
    "unit_of",
]


def product(
    a,
    b,
    out,
    *,
    accumulate=None,
    alpha=1,
    beta=0,
    threads=None,
    kernel=None,
    epilogue=None,
    split_k=None,
    resume=False,
):
    """out[...] = alpha * (a @ b) + beta * out.

    a (*batch, M, K), b (*batch, K, N), out (*batch, M, N): ndarrays of native byte order and any
    strides; batch dimensions are equal (broadcast by zero strides). a and b have one dtype, or
    are int8 and uint8. `out` may have another dtype of the same kind and must not overlap a or
    b. accumulate: accumulator dtype (default: docs/numerics.md). beta == 0 never reads out.
    threads: workers at most; kernel: 'LEVEL[:MRxNR][:MC,KC,NC]' forces one. epilogue: a program
    whose main output is `out`. split_k: parts of K that are summed afterwards (split_k.py).
    resume: each chain goes on from what `out`, of the accumulator's dtype, holds: K in several
    calls is one chain.
    """
    if split_k is not None:
        from . import split_k as parts

        if epilogue is not None or alpha != 1 or beta != 0:
            raise ValueError(
                f"split_k={split_k} goes with no epilogue=, and with alpha=1, beta=0: got "
                f"alpha={alpha}, beta={beta}"
            )
        parts.product(a, b, out, split_k, accumulate, threads, kernel)
        return
    if epilogue is not None:
        _with_epilogue(a, b, out, epilogue, accumulate, alpha, beta, threads, kernel)
        return
    if alpha != 1 or beta != 0:
        from .epilogues.run import scaled

        if out.size:
            scaled(a, b, out, alpha, beta, accumulate=accumulate, threads=threads, kernel=kernel)
        return
    if out.size == 0:
        return
    if resume:
        allowed = get_num_threads() if threads is None else checked(threads)
        plan, batch, rows, scratch_home = planned(a, b, out, accumulate, allowed, kernel, True)
        if scratch_home:
            raise ValueError(
                f"resume needs adjacent columns of the accumulator's dtype: {out.dtype}"
            )
        execute(plan, a, b, out, batch, rows, scratch_home)
        return
    if kernel is None and symmetric.applies(a, b, out):
        symmetric.product(a, b, out, lambda x, y, part: product(
            x, y, part, accumulate=accumulate, threads=threads
        ))  # fmt: skip
        return
    if turned(out, a.shape[-1]):
        # A real chain does not see which operand is called A.
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
    allowed = get_num_threads() if threads is None else checked(threads)
    parts = ((a, b, out),)
    if out.size * a.shape[-1] > slices.LONG * allowed:
        parts = slices.of(a, b, out, allowed)
    for part in parts:
        plan, batch, rows, scratch_home = planned(*part, accumulate, allowed, kernel)
        execute(plan, *part, batch, rows, scratch_home)
    if not kernel and a.dtype is out.dtype and a.dtype not in _through_the_door:
        from . import door as doorkeeper

        if doorkeeper.seen(element_type(a.dtype), a.dtype):
            _through_the_door.add(a.dtype)


_through_the_door: set[np.dtype] = set()


def turned(out, k: int) -> bool:
    """Whether to compute the transpose: its columns are adjacent, or it has the fewer rows."""
    if out.dtype.kind == "c":
        return False  # the order of a complex chain names A and B
    m, n = out.shape[-2:]
    rs, cs = out.strides[-2:]
    if cs != out.itemsize and rs == out.itemsize:
        return True
    return n <= SKINNY_ROWS < m and m * n * k > SMALL_WORK


def _layout(b, size: int) -> str:
    """Which of B's dimensions is adjacent in memory: 'columns', 'rows' or 'none'."""
    rs, cs = b.strides[-2:]
    return "columns" if cs == size or b.shape[-1] == 1 else "rows" if rs == size else "none"


def planned(a, b, out, accumulate, allowed: int, kernel: str | None, resume: bool = False):
    """(plan, number of matrices, their steps, whether K blocks rest in scratch) of a product."""
    m, k = a.shape[-2:]
    n = b.shape[-1]
    batch, rows = batches(out.shape[:-2], a.strides[:-2], b.strides[:-2], out.strides[:-2])
    ta, tb, to = element_type(a.dtype), element_type(b.dtype), element_type(out.dtype)
    acc = accumulator(ta, to, accumulate)
    scratch_home = to.name != acc.name or (out.strides[-1] != out.itemsize and n > 1)
    isa = None if kernel else environment("GEMM_ISA")
    adjacent = n == 1 or out.strides[-1] == out.itemsize
    plan = make_plan(ta, tb, to, acc, m, n, k, batch, scratch_home, allowed, kernel, isa, None,
                     _layout(b, b.itemsize), adjacent, resume,
                     k == 1 or a.strides[-1] == a.itemsize)  # fmt: skip
    return plan, batch, rows, scratch_home


def _with_epilogue(a, b, out, epilogue, accumulate, alpha, beta, threads, kernel) -> None:
    from .epilogues import bind
    from .epilogues.run import fused

    if alpha != 1 or beta != 0:
        raise ValueError(f"alpha={alpha} and beta={beta} are part of the program with epilogue=")
    bound = bind(epilogue)
    if len(bound.epilogue.outputs) > 1:
        raise ValueError(f"{bound} returns {', '.join(bound.epilogue.outputs)}; only gemm.matmul "
                         "of matrices returns several outputs")  # fmt: skip
    fused(a, b, bound, out, accumulate=accumulate, threads_=threads, kernel=kernel,
          common=out.dtype)  # fmt: skip


def inner(x, y, out, *, conjugate=False, accumulate=None, threads=None, kernel=None) -> None:
    """x, y (*batch, K) -> out (*batch,): one inner product each, as gemm/chains.py adds them.

    Dtypes and options as of `product`; conjugate: x, where it is complex.
    """
    if out.size == 0:
        return
    allowed = get_num_threads() if threads is None else checked(threads)
    plan, batch, rows = inner_planned(x, y, out, conjugate, accumulate, allowed, kernel)
    execute(plan, x[..., None, :], y[..., :, None], out[..., None, None], batch, rows, False)
    if not kernel and x.dtype is y.dtype is out.dtype and x.dtype not in _through_the_inner_door:
        from . import door as doorkeeper

        if doorkeeper.seen(element_type(x.dtype), x.dtype, "inner door"):
            _through_the_inner_door.add(x.dtype)


def inner_planned(x, y, out, conjugate: bool, accumulate, allowed: int, kernel: str | None):
    """(plan, number of inner products, their steps)."""
    batch, rows = batches(out.shape, x.strides[:-1], y.strides[:-1], out.strides)
    tx, ty, to = element_type(x.dtype), element_type(y.dtype), element_type(out.dtype)
    acc = accumulator(tx, to, accumulate)
    isa = None if kernel else environment("GEMM_ISA")
    conjugate = conjugate and to.kind == "c"
    plan = inner_plan(tx, ty, to, acc, conjugate, batch, x.shape[-1], allowed, kernel, isa)
    return plan, batch, rows


_through_the_inner_door: set[np.dtype] = set()


def plain(x1, x2, out):
    """x1 @ x2 of plain matrices of one native dtype, into `out` or a new array, or None.

    Or of two batches of one shape. What the door leaves to Python, without the long way through
    NumPy's semantics.
    """
    if type(x1) is not np.ndarray or type(x2) is not np.ndarray or x1.ndim < 2 or x2.ndim < 2:
        return None
    dtype = x1.dtype
    shape = (*x1.shape[:-1], x2.shape[-1])
    if dtype is not x2.dtype or x1.shape[-1] != x2.shape[-2] or dtype not in computed_dtypes:
        return None
    if x1.shape[:-2] != x2.shape[:-2]:
        return None
    if out is None:
        if x1.ndim > 2 and not (x1.flags.c_contiguous and x2.flags.c_contiguous):
            return None  # NumPy's order of the batch axes follows the operands'
        out = np.empty(shape, dtype)
    elif (
        type(out) is not np.ndarray
        or out.dtype is not dtype
        or out.shape != shape
        or not out.flags.writeable
        or 0 in out.strides
        or np.may_share_memory(out, x1)
        or np.may_share_memory(out, x2)
    ):
        return None
    product(x1, x2, out)
    return out


def door(x1, x2, out):
    """The fast path for plain arrays; None when it does not apply."""
    return None


def again(x1, x2, out, keywords):
    """The result of a product with an epilogue like one before (epilogues/repeat.py); None when
    there was none."""
    return None


def inner_door(x, y, *conjugate):
    """The fast path for the inner product of plain vectors, as a scalar; None when it does not
    apply. A third argument asks for the conjugate of x."""
    return None
