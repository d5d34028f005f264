"""The team kernels as plain Python: the very source that is compiled, on `Grid`.

One Python thread a group, real gates and barriers, shared memory filled with NaN bytes: a wrong
phase, a missing arrival or a read of something nobody wrote shows here without a GPU.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gemm import team
from gemm.backends.cuda.targets import TARGETS
from gemm.microkernels import dtypes as t
from gemm.microkernels.cooperative import Box, Gate, Grid, _round19
from gemm.microkernels.fused import fused_multiply_add
from gemm.microkernels.vocabulary import Pointer, storage
from gemm.team import choice

HOPPER, AMPERE = TARGETS["sm_90a"], TARGETS["sm_80"]


def chain(a, b, acc):
    """a (m, k) @ b (n, k) transposed: the contract's chain (complex: interleaved real fmas)."""
    out = np.zeros((a.shape[0], b.shape[0]), acc)
    for k in range(a.shape[1]):
        x, y = a[:, k, None].astype(acc), b[None, :, k].astype(acc)
        if acc.kind != "c":
            out = fused_multiply_add(x, y, out)
            continue
        re = fused_multiply_add(x.real, y.real, out.real)
        im = fused_multiply_add(x.real, y.imag, out.imag)
        out.real = fused_multiply_add(-x.imag, y.imag, re)
        out.imag = fused_multiply_add(x.imag, y.real, im)
    return out


def random(dtype, shape, seed):
    rng = np.random.default_rng(seed)
    if dtype.kind in "iu":
        return rng.integers(-100, 100, shape).astype(storage(dtype))
    return rng.standard_normal(shape).astype(storage(dtype))


def pointer(x, dtype):
    return Pointer(x.reshape(-1).view(np.uint8), 0, dtype)


def boxed(x, panel, rows, batched, depth=None):
    """x (batch, rows, k) as the copy engine sees it."""
    depth = depth or panel.depth
    inner = (depth, rows)
    if panel.along == "rows":
        x = np.ascontiguousarray(x.swapaxes(1, 2))
        inner = (128 // panel.dtype.size if panel.swizzled else rows, depth)
    return (
        Box(x[None], (*inner, 1, 1), panel.swizzled)
        if batched
        else Box(x[0], inner, panel.swizzled)
    )


def shrunk(plan, rows, columns, stages=2):
    """The plan with tiles of rows x columns, so that plain Python gets through many blocks."""
    a = replace(plan.tile.a, rows=rows * plan.down)
    b = replace(plan.tile.b, rows=columns * plan.across)
    return replace(
        plan, tile=replace(plan.tile, rows=rows, columns=columns, a=a, b=b), stages=stages
    )


def run_ring(plan, m, n, k, workers, batch=1, trim=False):
    """trim: boxes along k hold only rows of their operand, in eights."""
    assert not plan.illegal()
    a, b = random(plan.a, (batch, m, k), 1), random(plan.b, (batch, n, k), 2)
    out = np.full((batch, m, n), 7).astype(storage(plan.out))
    bm, bn, bk = plan.block
    share, below = plan.share
    high = (min(bm, -(-m // 8) * 8), min(share, -(-n // 8) * 8)) if trim else (bm, share)
    expected = high[0] * bk * plan.a.size + plan.peers * high[1] * below * plan.b.size
    size = plan.out.size
    rows, columns = -(-m // (bm * plan.peers)), -(-n // bn)
    scale = pointer(np.asarray([2.0], np.float32), t.float32)
    Grid(workers, plan.groups + 1, plan.peers, patience=120).run(
        team.make_ring_kernel(plan),
        (
            boxed(a, plan.tile.a, high[0], plan.batched),
            boxed(b, plan.tile.b, high[1], plan.batched, below),
            Box(out[None] if plan.batched else out[0], (), True), pointer(out, plan.out),
            scale, scale, 0, m, n, -(-k // bk), expected, 0, rows, columns, rows * columns * batch,
            batch, 1, 0, 1, 0, n * size, m * n * size, 0, 1, 1,
        ),
        plan.shared_bytes,
    )  # fmt: skip
    acc = storage(plan.tile.dtype)
    step = bk * plan.chain or k
    for i in range(batch):
        want = np.zeros((m, n), acc)
        for first in range(0, k, step):
            part = slice(first, first + step)
            want = want + chain(a[i][:, part], b[i][:, part], acc)
        if plan.scaled:
            want = want * acc.type(4)
        np.testing.assert_array_equal(out[i], want.astype(out.dtype))


@pytest.mark.parametrize("peers", [1, 2])
def test_wide_ring(peers):
    along = ("rows", "rows") if peers == 1 else ("k", "rows")
    plan = choice.wide_plan(
        HOPPER, "bfloat16", t.bfloat16, t.bfloat16, t.bfloat16, (128, 128), along, peers
    )
    # Rows of A come in boxes of 64, columns of B in 64 for each peer.
    run_ring(shrunk(plan, 64 if peers == 1 else 8, 64 * peers), 70, 40, 150, 2 * peers)


def test_peers_share_k_where_columns_are_few():
    plan = choice.wide_plan(
        HOPPER, "bfloat16", t.bfloat16, t.bfloat16, t.bfloat16, (64, 64), ("k", "rows"), 2
    )
    plan = shrunk(plan, 8, 64)
    assert plan.share == (64, 32)
    run_ring(plan, 30, 70, 150, 2)


def test_boxes_end_with_the_operand():
    """Rows that no box brings are poison, and reach no result."""
    plan = choice.wide_plan(
        HOPPER, "bfloat16", t.bfloat16, t.bfloat16, t.float32, (64, 64), teams=2
    )
    run_ring(shrunk(plan, 32, 32), 3, 12, 150, 1, trim=True)


def test_promoted_and_scaled():
    f8 = t.float8_e4m3fn
    plan = choice.wide_plan(HOPPER, f8.name, f8, f8, t.float32, (64, 64), chain=2, scaled=True)
    run_ring(shrunk(plan, 8, 32, 3), 5, 40, 600, 1)


def test_batched_rows_of_bytes():
    plan = choice.wide_plan(
        HOPPER, "int8", t.int8, t.int8, t.int32, (64, 64), store="rows", batched=True
    )
    run_ring(shrunk(plan, 8, 16), 20, 3, 300, 3, batch=2)


@pytest.mark.parametrize("along", [("k", "rows"), ("rows", "k")])
def test_lanes_ring(along):
    plan = choice.ring_plan(HOPPER, "lanes", t.float32, t.float32, along, (128, 64), (8, 8), 1, 2)
    run_ring(shrunk(plan, 16, 8), 40, 30, 70, 2)


@pytest.mark.parametrize("along", [("k", "rows"), ("rows", "k")])
def test_float64_ring(along):
    plan = choice.ring_plan(
        HOPPER, "matrix", t.float64, t.float64, along, (64, 64), (8, 8), 1, 1, "rows"
    )
    run_ring(shrunk(plan, 16, 16), 40, 20, 35, 1)


def test_a_missing_arrival_is_named():
    """A kernel that would hang a device raises, and says what it waits for."""
    grid = Grid(1, 1, patience=0.05)

    def kernel():
        from gemm.microkernels.cooperative import gate_open, gate_wait, team_memory

        gate_open(team_memory(t.uint8), 3)
        gate_wait(team_memory(t.uint8), 0)

    with pytest.raises(RuntimeError, match="3 arrivals and 0 bytes are missing"):
        grid.run(kernel, (), 64)
    assert Gate(3).phase == 0


def table(batch):
    rows = [*batch, *[(1, 0, 0, 0)] * (4 - len(batch))]
    return pointer(np.asarray(rows, np.int64), t.int64)


@pytest.mark.parametrize("route", ["async", "held"])
@pytest.mark.parametrize("dtype", [t.float32, t.complex64, t.int8, t.bfloat16])
def test_team(dtype, route):
    acc = t.DTYPES[dtype.compute]
    if route == "async" and dtype != acc:
        pytest.skip("sixteen bytes at a time move without widening: route 'async' is acc's own")
    tile, lane = choice.lanes_shape(acc)
    plan = choice.team_plan(
        AMPERE, "lanes", "", dtype, dtype, dtype, acc, ("k", "k"), route, tile, lane, stages=3
    )
    plan = shrunk(plan, 16, 16, 3)
    m, n, k, batch = 20, 18, 40, 2
    a, b = random(dtype, (batch, m, k), 3), random(dtype, (n, k), 4)
    if dtype.kind == "c":
        a = (a + 1j * random(t.float32, a.shape, 5)).astype(a.dtype)
    out = np.full((batch, m, n), 7).astype(storage(dtype))
    size = dtype.size
    rows, columns = -(-m // plan.block[0]), -(-n // plan.block[1])
    arguments = (
        pointer(a, dtype), pointer(b, dtype), pointer(out, dtype), 0,
        table([(batch, m * k * size, 0, m * n * size)]), m, n, k, k * size, size, size, k * size,
        n * size, rows, columns, rows * columns * batch, 1, 1,
    )  # fmt: skip
    Grid(3, 1, patience=120).run(team.make_team_kernel(plan), arguments, plan.shared_bytes)
    for i in range(batch):
        want = chain(a[i], b, storage(acc))
        np.testing.assert_array_equal(out[i], want.astype(out.dtype))


def test_a_team_feeds_the_wide_unit():
    """Element by element into the stage that the unit reads by itself."""
    bf16 = t.bfloat16
    plan = choice.team_plan(HOPPER, "wide", "bfloat16", bf16, bf16, bf16, t.float32, ("k", "k"),
                            "held", (64, 64), near=("k", "rows"))  # fmt: skip
    plan = shrunk(plan, 16, 16)
    m, n, k = 20, 18, 140
    a, b = random(bf16, (m, k), 3), random(bf16, (k, n), 4)
    out = np.full((m, n), 7).astype(storage(bf16))
    rows, columns = -(-m // plan.block[0]), -(-n // plan.block[1])
    arguments = (
        pointer(a, bf16), pointer(b, bf16), pointer(out, bf16), 0, table([]), m, n, k, k * 2, 2,
        n * 2, 2, n * 2, rows, columns, rows * columns, 1, 1,
    )  # fmt: skip
    Grid(2, 1, patience=120).run(team.make_team_kernel(plan), arguments, plan.shared_bytes)
    np.testing.assert_array_equal(out, chain(a, b.T, np.dtype("f4")).astype(out.dtype))


@pytest.mark.parametrize("parts", [1, 2])
def test_pack(parts):
    plan = choice.pack_plan(t.float32, "rows", None, parts)
    rows, depth = 70, 40
    x = random(t.float32, (depth, rows), 6)
    line = 64
    out = np.full((rows, parts, line), np.nan, np.float32)
    across = -(-depth // plan.stage.depth)
    spans = -(-rows // plan.stage.rows) * across
    Grid(2, 1, patience=120).run(
        team.make_pack_kernel(plan),
        (
            pointer(out, t.float32), pointer(x, t.float32), table([]), rows, depth, 4, 4 * rows,
            4 * line * parts, 4 * line, across, spans,
        ),
        plan.shared_bytes,
    )  # fmt: skip
    if parts == 1:
        np.testing.assert_array_equal(out[:, 0, :depth], x.T)
    else:
        high, low = out[:, 0, :depth], out[:, 1, :depth]
        np.testing.assert_array_equal(high, _round19(x.T))
        np.testing.assert_allclose(high + low.astype(np.float64), x.T, rtol=2**-21)
        assert not (high.view(np.uint32) & 0x1FFF).any()
    beyond = out[:, :, depth:]
    assert (beyond == 0).all() if parts == 2 else np.isnan(beyond).all()
