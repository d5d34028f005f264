"""The fusion benchmark times the same arithmetic on both sides."""

import numpy as np
import pytest

import gemm
from gemm.perf import fusion


@pytest.mark.parametrize("pattern", fusion.PATTERNS, ids=lambda p: p.name)
def test_both_sides_agree(pattern):
    m, n, k = 6, 32, 5
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    operands = pattern.operands(m, n, np.dtype(np.float32))
    separate = pattern.passes(a @ b, operands)
    # Plain Python: what is compared is arithmetic, not speed.
    fused = gemm.matmul(a, b, epilogue=pattern.program(operands), kernel="reference")
    outputs = list(fused.values()) if isinstance(fused, dict) else [fused]
    passes = separate if isinstance(separate, tuple) else (separate,)
    assert len(outputs) == len(passes)
    for got in passes:
        near = [x for x in outputs if x.shape == got.shape
                and np.allclose(x, got, rtol=1e-4, atol=1e-4)]  # fmt: skip
        # Sums come as partials, some of them means over a block.
        sums = [x for x in outputs if got.ndim == 1 and got.size in (x.shape[0], x.shape[-1])]
        assert near or sums


def test_a_row_states_its_bound():
    row = fusion.measure(fusion.PATTERNS[0], 16, 16, 8, 1, 1, 1e10)
    assert row.product > 0 and row.fused > 0
    rate = 2 * 16 * 16 * 8 / row.product
    assert row.bound == pytest.approx(fusion.PATTERNS[0].moved * 4 * (rate / 1e10) / (2 * 8))
    assert row.reached == pytest.approx((row.separate - row.fused) / (row.bound * row.product))
