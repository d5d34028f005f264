"""PyTorch's OpInfo samples on our functions: ``pytest tests/suites/torch_samples.py``.

Each sample of each dtype is computed by PyTorch on the CPU and by us, from the same operands in the
same strides. Complex and integer samples included where PyTorch has them.
"""

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402

import gemm  # noqa: E402
from gemm import convolution  # noqa: E402
from gemm.torch.arrays import array  # noqa: E402
from gemm.torch.layers import convolution as conv_layer  # noqa: E402
from gemm.torch.layers import transposed_convolution  # noqa: E402

DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
    torch.int64,
    torch.int8,
]
OPS = {(op.name, op.variant_test_name): op for op in op_db}
SEEN = Counter()


def _tuple(value, rank):
    return value if isinstance(value, str) else (value,) * rank if isinstance(value, int) else value


def _conv(rank):
    def run(x, w, bias=None, stride=1, padding=0, dilation=1, groups=1):
        batch = x if x.ndim == rank + 2 else x[None]
        y = getattr(convolution, f"conv{rank}d")(batch, w, bias, stride, padding, dilation, groups)
        return y if x.ndim == rank + 2 else y[0]

    return run


def _conv_transpose(rank):
    def run(x, w, bias=None, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
        batch = x if x.ndim == rank + 2 else x[None]
        y = getattr(convolution, f"conv_transpose{rank}d")(
            batch, w, bias, stride, padding, output_padding, groups, dilation
        )
        return y if x.ndim == rank + 2 else y[0]

    return run


def _linear(x, w, bias=None):
    if w.ndim == 1:
        return gemm.matmul(x, w) if bias is None else gemm.matmul(x, w) + bias
    y = np.asarray(gemm.matmul(x, w.T))
    return y if bias is None else y + bias


def _add(function):
    def run(c, a, b, *, beta=1, alpha=1):
        return function(c, a, b, beta=beta, alpha=alpha)

    return run


def _unfold(x, kernel_size, dilation=1, padding=0, stride=1):
    return convolution.unfold(x, _tuple(kernel_size, 2), dilation, padding, stride)


FUNCTIONS = {
    **{(f"nn.functional.conv{r}d", ""): _conv(r) for r in (1, 2, 3)},
    **{(f"nn.functional.conv_transpose{r}d", ""): _conv_transpose(r) for r in (1, 2, 3)},
    ("nn.functional.linear", ""): _linear,
    ("nn.functional.unfold", ""): _unfold,
    ("mm", ""): gemm.matmul,
    ("bmm", ""): gemm.matmul,
    ("matmul", ""): gemm.matmul,
    ("addmm", ""): _add(gemm.addmm),
    ("baddbmm", ""): _add(gemm.baddbmm),
    ("einsum", ""): lambda operands, equation: gemm.einsum(equation, *operands),
}


def _numpy(value):
    if isinstance(value, torch.Tensor):
        return array(value)
    if isinstance(value, (list, tuple)) and any(isinstance(v, torch.Tensor) for v in value):
        return [_numpy(v) for v in value]
    return value


def _close(got, wanted):
    """Rounding of a chain of some hundred terms, in the dtype that carries the sum."""
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.shape == wanted.shape
    if wanted.dtype.kind in "iub":
        np.testing.assert_array_equal(got, wanted)
        return
    single = {"complex64": 1e-5, "float32": 1e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
    rtol = single.get(wanted.dtype.name, 1e-12)
    if wanted.dtype.kind == "V" or wanted.dtype.itemsize < 4:
        got, wanted = got.astype(np.float32), wanted.astype(np.float32)
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1)
    np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol * scale)


def _cases():
    for key in FUNCTIONS:
        for dtype in DTYPES:
            if dtype in OPS[key].dtypes:
                name = f"{key[0]}-{str(dtype).removeprefix('torch.')}"
                yield pytest.param(key, dtype, id=name)


def _refused(key, sample, dtype):
    """Samples that PyTorch alone defines: NumPy's einsum keeps an ellipsis, integers scale by
    integers.
    """
    if key[0] == "einsum":
        terms, result = sample.args[0].split("->")
        return "..." in terms and "..." not in result
    factors = [sample.kwargs.get(name, 1) for name in ("alpha", "beta")]
    return not (dtype.is_floating_point or dtype.is_complex) and any(f != int(f) for f in factors)


@pytest.mark.parametrize("key, dtype", list(_cases()))
def test_samples(key, dtype):
    op = OPS[key]
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=False):
        if _refused(key, sample, dtype):
            continue
        wanted = op(sample.input, *sample.args, **sample.kwargs)
        got = FUNCTIONS[key](
            _numpy(sample.input),
            *(_numpy(a) for a in sample.args),
            **{k: _numpy(v) for k, v in sample.kwargs.items()},
        )
        if dtype == torch.int8:
            # PyTorch wraps in int8 where a convolution here would give int32.
            got = np.asarray(got).astype(np.int8)
        _close(got, array(wanted))
        SEEN[key[0]] += 1


def _layer(key, sample):
    """The same sample through the tensor functions that the layers call, with gradients."""
    rank = int(key[0][-2])
    args = list(sample.args)
    w, bias = args[0], args[1] if len(args) > 1 else sample.kwargs.get("bias")
    options = {k: v for k, v in sample.kwargs.items() if k != "bias"}
    names = ("stride", "padding", "dilation", "groups")
    if "transpose" in key[0]:
        names = ("stride", "padding", "output_padding", "groups", "dilation")
    options.update(zip(names, args[2:], strict=False))
    defaults = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
    values = {n: options.get(n, defaults[n]) for n in names}
    spread = {n: v if n == "groups" else _tuple(v, rank) for n, v in values.items()}
    function = transposed_convolution if "transpose" in key[0] else conv_layer
    return function(sample.input, w, bias, **spread)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("key", [k for k in FUNCTIONS if "conv" in k[0]], ids=lambda k: k[0])
def test_tensor_samples_and_gradients(key, dtype):
    op = OPS[key]
    torch.manual_seed(0)
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        leaves = [t for t in (sample.input, *sample.args) if isinstance(t, torch.Tensor)]
        wanted = op(sample.input, *sample.args, **sample.kwargs)
        got = _layer(key, sample)
        torch.testing.assert_close(got, wanted)
        g = torch.randn_like(wanted)
        for ours, theirs in zip(
            torch.autograd.grad(got, leaves, g), torch.autograd.grad(wanted, leaves, g), strict=True
        ):
            torch.testing.assert_close(ours, theirs)
        SEEN[f"{key[0]} with gradients"] += 1


def test_counts():
    """The samples did run; PyTorch 2.13 has more than 1000 of them for these operators."""
    if not SEEN:
        pytest.skip("counts what the other tests of this file ran, and they were not selected")
    print(dict(SEEN))
    assert all(count > 0 for count in SEEN.values())
