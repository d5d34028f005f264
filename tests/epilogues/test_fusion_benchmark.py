"""The fusion benchmark times the same arithmetic on both sides."""

import numpy as np
import pytest

import gemm
from gemm.perf import fusion, fusion_patterns


@pytest.mark.parametrize("pattern", fusion_patterns.PATTERNS, ids=lambda p: p.name)
@pytest.mark.parametrize("library", ["NumPy", "PyTorch"])
def test_both_sides_agree(pattern, library):
    m, n, k = 6, 32, 5
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    operands = pattern.operands(m, n, np.dtype(np.float32))
    if library == "NumPy":
        separate = pattern.passes(a @ b, operands)
    else:
        torch = pytest.importorskip("torch", reason="the benchmark's operators are PyTorch's")
        tensors = {key: torch.from_numpy(x) for key, x in operands.items()}
        separate = pattern.torch_passes(torch.from_numpy(a @ b), tensors)
    # Plain Python: what is compared is arithmetic, not speed.
    fused = gemm.matmul(a, b, epilogue=pattern.program(operands), kernel="reference")
    outputs = list(fused.values()) if isinstance(fused, dict) else [fused]
    passes = separate if isinstance(separate, tuple) else (separate,)
    passes = [np.asarray(x) for x in passes]
    assert len(outputs) == len(passes)
    for got in passes:
        near = [x for x in outputs if x.shape == got.shape
                and np.allclose(x, got, rtol=1e-4, atol=1e-4)]  # fmt: skip
        # Sums come as partials, some of them means over a block.
        sums = [x for x in outputs if got.ndim == 1 and got.size in (x.shape[0], x.shape[-1])]
        assert near or sums


def test_a_row_states_its_bound():
    row = fusion.measure(fusion_patterns.PATTERNS[0], 16, 16, 8, 1, 1, 1e10)
    assert row.product > 0 and row.fused > 0
    rate = 2 * 16 * 16 * 8 / row.product
    assert row.bound == pytest.approx(
        fusion_patterns.PATTERNS[0].moved * 4 * (rate / 1e10) / (2 * 8)
    )
    # One round: its values are the medians.
    assert row.ratio == pytest.approx(row.separate / row.fused)
    assert row.reached == pytest.approx((row.separate - row.fused) / (row.bound * row.product))


@pytest.mark.parametrize("number", range(5))
def test_the_gpu_benchmark_times_the_same_arithmetic(number):
    """Its operators, on PyTorch's CPU tensors, give what the programs give."""
    torch = pytest.importorskip("torch", reason="the benchmark's operators are PyTorch's")
    from gemm.perf import cuda_fusion

    pattern = cuda_fusion.PATTERNS[number]
    m, n, k = 128, 256, 8
    rng = np.random.default_rng(number)
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    given = {name: rng.standard_normal(shape, np.float32)
             for name, shape in pattern.operands(m, n).items()}  # fmt: skip
    found = cuda_fusion.outputs(gemm.matmul(a, b, epilogue=pattern.program(given)))
    tensors = {name: torch.from_numpy(x) for name, x in given.items()}
    want = pattern.passes(torch.from_numpy(a @ b), tensors)
    assert len(found) == len(want)
    for x, y in zip(found, want, strict=True):
        np.testing.assert_allclose(x, y.numpy(), rtol=2e-4, atol=2e-4)
    ours = tuple(map(torch.from_numpy, found))
    assert not cuda_fusion.wrong(ours, ours, ours)
    shifted = tuple(x + 1 for x in ours)
    assert "output 0" in cuda_fusion.wrong(shifted, ours, ours)
