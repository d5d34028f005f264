"""Problem to plan to kernel to run: the engine's interface.

`product` is all that the NumPy calls, convolution and the suite stand on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from . import slices, symmetric
from .execution import Arranged, address, batches, execute
from .planner import (
    NARROW,
    SKINNY_ROWS,
    SMALL_WORK,
    grain,
    inner_plan,
    is_narrow,
    make_plan,
)
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
    subnormals=None,
):
    """out[...] = alpha * (a @ b) + beta * out.

    a (*batch, M, K), b (*batch, K, N), out (*batch, M, N): ndarrays of native byte order and any
    strides; batch dimensions are equal (broadcast by zero strides). a and b have one dtype, or
    are int8 and uint8. `out` may have another dtype of the same kind and must not overlap a or
    b. accumulate: accumulator dtype (default: docs/numerics.md). beta == 0 never reads out.
    threads: workers at most; kernel: 'LEVEL[:MRxNR][:MC,KC,NC]' forces one. epilogue: a program
    whose main output is `out`. split_k: parts of K that are summed afterwards (split_k.py).
    resume: each chain goes on from what `out`, of the accumulator's dtype, holds: K in several
    calls is one chain. subnormals: 'keep' (as None) or 'flush'.
    """
    flush = flushes(subnormals, a.dtype)
    if flush and (epilogue is not None or split_k is not None or alpha != 1 or beta != 0):
        raise ValueError(
            "subnormals='flush' goes with no epilogue= or split_k=, and with alpha=1, beta=0: got "
            f"split_k={split_k}, alpha={alpha}, beta={beta}"
        )
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
        execute(plan, a, b, out, batch, rows, scratch_home, flush=flush)
        return
    if kernel is None and symmetric.applies(a, b, out):
        allowed = get_num_threads() if threads is None else checked(threads)
        symmetric.product(a, b, out, lambda x, y, part: product(
            x, y, part, accumulate=accumulate, threads=threads, subnormals=subnormals
        ), accumulate, allowed, flush)  # fmt: skip
        return
    if not narrow(a, b, out, accumulate, kernel) and turned(out, a.shape[-1]):
        # A real chain does not see which operand is called A.
        a, b, out = b.swapaxes(-1, -2), a.swapaxes(-1, -2), out.swapaxes(-1, -2)
    allowed = get_num_threads() if threads is None else checked(threads)
    parts = ((a, b, out),)
    if out.size * a.shape[-1] > slices.LONG * allowed:
        parts = slices.of(a, b, out, allowed)
    for part in parts:
        plan, batch, rows, scratch_home = planned(*part, accumulate, allowed, kernel)
        execute(plan, *part, batch, rows, scratch_home, flush=flush)
    if not kernel and a.dtype is out.dtype and a.dtype not in _through_the_door:
        from . import door as doorkeeper

        if doorkeeper.seen(element_type(a.dtype), a.dtype):
            _through_the_door.add(a.dtype)


_through_the_door: set[np.dtype] = set()


def flushes(subnormals, dtype: np.dtype) -> bool:
    """Whether subnormals= asks for flushing; ValueError for another word, TypeError for a dtype
    that has no subnormal numbers."""
    if subnormals in (None, "keep"):
        return False
    if subnormals != "flush":
        raise ValueError(f"subnormals={subnormals!r}: expected 'keep' or 'flush'")
    if element_type(dtype).kind not in "fc":
        raise TypeError(f"subnormals='flush': {dtype} has no subnormal numbers")
    return True


def turned(out, k: int) -> bool:
    """Whether to compute the transpose: its columns are adjacent, or it has the fewer rows."""
    if out.dtype.kind == "c":
        return False  # the order of a complex chain names A and B
    m, n = out.shape[-2:]
    rs, cs = out.strides[-2:]
    if cs != out.itemsize and rs == out.itemsize:
        return True
    return n <= SKINNY_ROWS < m and m * n * k > SMALL_WORK


def narrow(a, b, out, accumulate=None, kernel=None) -> bool:
    """Whether the product is one of narrow.py, which no transposition helps."""
    if kernel or out.shape[-1] > NARROW or a.dtype.kind != "f":
        return False
    (m, k), n = a.shape[-2:], b.shape[-1]
    kind, to = element_type(a.dtype), element_type(out.dtype)
    acc = accumulator(kind, to, accumulate)
    return is_narrow(kind, element_type(b.dtype), acc, m, n, k, _layout(b, b.itemsize),
                     out.strides[-1] == out.itemsize, a.strides[-1] == a.itemsize)  # fmt: skip


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


def inner(x, y, out, *, conjugate=False, accumulate=None, threads=None, kernel=None,
          subnormals=None) -> None:  # fmt: skip
    """x, y (*batch, K) -> out (*batch,): one inner product each, as gemm/chains.py adds them.

    Dtypes and options as of `product`; conjugate: x, where it is complex.
    """
    flush = flushes(subnormals, x.dtype)
    if out.size == 0:
        return
    allowed = get_num_threads() if threads is None else checked(threads)
    plan, batch, rows = inner_planned(x, y, out, conjugate, accumulate, allowed, kernel)
    execute(plan, x[..., None, :], y[..., :, None], out[..., None, None], batch, rows, False,
            flush=flush)  # fmt: skip
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
    if len(shape) == 2:
        product(x1, x2, out)
    else:
        _batch(x1, x2, out)
    return out


MOST_BATCHES = 256
_batches: dict[tuple, list] = {}  # [Arranged, calls] of what is like a call before
MOST_TINY = 32  # sizes of matrices that have a kernel of their own in a process
LONG_BATCH = 32  # matrices along the first axis from which it pays
PATIENCE = 16  # calls before such a kernel is worth its compilation
_tiny: set[object] = set()


def _batch(x1, x2, out) -> None:
    """out = x1 @ x2 of batches of one shape; small ones are arranged once for all such calls."""
    key = (x1.shape, x1.strides, x2.strides, out.shape, out.strides, x1.dtype, get_num_threads(),
           environment("GEMM_ISA"))  # fmt: skip
    found = _batches.get(key)
    if found is None:
        k = x1.shape[-1]
        if not 0 < out.size * k <= slices.LONG or turned(out, k):
            product(x1, x2, out)
            return
        plan, batch, rows, scratch_home = planned(x1, x2, out, None, key[-2], None)
        if plan.spec.family != "direct" or plan.level == "reference":
            product(x1, x2, out)
            return
        plan = _own_kernel(plan, x1, x2, out, compile_missing=False)
        found = [Arranged(plan, x1, x2, out, batch, rows, scratch_home), 0]
        if len(_batches) >= MOST_BATCHES:
            _batches.clear()
        _batches[key] = found
    found[1] += 1
    if found[1] == PATIENCE and len(out) >= LONG_BATCH:
        plan = _own_kernel(found[0].plan, x1, x2, out, compile_missing=True)
        batch, rows = batches(out.shape[:-2], x1.strides[:-2], x2.strides[:-2], out.strides[:-2])
        found[0] = Arranged(plan, x1, x2, out, batch, rows, False)
    found[0].run(address(x1), address(x2), address(out))


def _own_kernel(plan, x1, x2, out, compile_missing: bool):
    """The plan, or one with a kernel for the matrices' sizes (tiny.py) where that can be had."""
    from gemm.backends.cpu import kernels

    from .tiny import Sizes, tile_of

    kind = plan.spec.tile.dtype
    sizes = Sizes(x1.shape[-2], x2.shape[-1], x1.shape[-1])
    dense = all(x.strides[-2:] == (x.shape[-1] * x.itemsize, x.itemsize) for x in (x1, x2, out))
    unit, _ = unit_of(plan.level)
    tile = tile_of(sizes, unit.lanes(kind), unit.registers, kind)
    if not dense or tile is None or kind.kind == "c" or plan.spec.a is not kind:
        return plan
    spec = replace(plan.spec, family="tiny", tile=tile, sizes=sizes)
    if len(_tiny) >= MOST_TINY and spec not in _tiny:
        return plan
    level = levels()[plan.level]
    if not compile_missing and kernels.stored(level, repr(spec)) is None:
        return plan
    _tiny.add(spec)
    why = (*plan.why, f"a kernel for {sizes.m} x {sizes.k} by {sizes.k} x {sizes.n}")
    return replace(plan, spec=spec, why=why)


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
