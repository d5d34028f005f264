"""Convolutions on a GPU, against PyTorch in float64 and the host's bits."""

from __future__ import annotations

import numpy as np
import pytest

import gemm

pytestmark = pytest.mark.cuda
torch = pytest.importorskip("torch", reason="the GPU tests make their arrays with PyTorch")

LIMITS = {"bfloat16": 4e-3, "float16": 6e-4, "float32": 3e-6, "float64": 1e-14, "complex64": 3e-6}

# (images, channels, spatial extents), (filters, kernel), stride, padding, dilation
SHAPES = [
    ((3, 64, (14, 14)), (64, (3, 3)), 1, 1, 1),
    ((2, 128, (28, 30)), (96, (3, 3)), 2, 1, 1),
    ((4, 3, (31, 33)), (64, (7, 7)), 2, 3, 1),
    ((2, 40, (9, 12)), (24, (1, 1)), 1, 0, 1),
    ((5, 256, (7, 7)), (520, (1, 1)), 2, 0, 1),
    ((2, 72, (19, 17)), (33, (3, 2)), (2, 3), (2, 1), (3, 2)),
    ((3, 17, (11, 10)), (16, (5, 3)), 1, 2, 1),
    ((2, 64, (50,)), (48, (5,)), 3, 4, 2),
    ((2, 32, (6, 9, 8)), (40, (3, 2, 3)), (1, 2, 1), 1, 1),
    ((33, 64, (5, 5)), (128, (3, 3)), 1, 1, 1),
    ((1, 8, (40, 40)), (16, (3, 3)), 1, 20, 1),
    ((1, 16, (300, 300)), (16, (1, 1)), 9, 0, 1),
]


def random(shape, name):
    dtype = getattr(torch, name)
    if dtype.is_complex or dtype == torch.float64:
        return torch.randn(shape, device="cuda", dtype=dtype)
    return torch.randn(shape, device="cuda").to(dtype)


def channels_last(x):
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    if x.ndim in formats:
        return x.contiguous(memory_format=formats[x.ndim])
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def wanted(x, w, bias=None, **options):
    rank = x.ndim - 2
    wide = torch.complex128 if x.is_complex() else torch.float64
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[rank - 1]
    return function(x.to(wide), w.to(wide), None if bias is None else bias.to(wide), **options)


def error(found, want):
    assert found.shape == want.shape
    assert bool(torch.isfinite(torch.view_as_real(found) if found.is_complex() else found).all())
    return float((found.to(want.dtype) - want).abs().norm() / want.abs().norm().clamp_min(1e-300))


def convolve(x, w, **options):
    return getattr(gemm, f"conv{x.ndim - 2}d")(x, w, **options)


@pytest.mark.parametrize("last", [True, False], ids=["last", "first"])
@pytest.mark.parametrize("name", ["bfloat16", "float16", "float32", "float64"])
def test_forward(name, last):
    for (n, c, spatial), (o, kernel), stride, padding, dilation in SHAPES:
        x, w = random((n, c, *spatial), name), random((o, c, *kernel), name)
        if last:
            x, w = channels_last(x), channels_last(w)
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        want = wanted(x, w, **options)
        out = torch.full(want.shape, float("nan"), device="cuda", dtype=x.dtype)
        out = channels_last(out) if last else out
        found = convolve(x, w, out=out, **options)
        assert found is out
        assert error(found, want) <= LIMITS[name], (n, c, spatial, o, kernel)
        again = convolve(x, w, **options)
        assert torch.equal(again, found), "a second call differs"
        if last and c > 1 and x.ndim == 4:
            assert again.is_contiguous(memory_format=torch.channels_last)


def test_bits_do_not_depend_on_layout_batch_or_alignment():
    for name in ("bfloat16", "float32"):
        x, w = random((9, 64, 15, 16), name), random((72, 64, 3, 3), name)
        found = convolve(x, w, padding=1)
        for other in (channels_last(x), x.transpose(2, 3).contiguous().transpose(2, 3)):
            assert torch.equal(convolve(other, channels_last(w), padding=1), found)
        assert torch.equal(convolve(x[4:5], w, padding=1), found[4:5])
        room = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)
        shifted = room[1:].view(x.shape).copy_(x)
        assert torch.equal(convolve(shifted, w, padding=1), found)


@pytest.mark.parametrize("name", ["float32", "float64"])
def test_bits_are_the_cpus(name):
    for (n, c, spatial), (o, kernel), stride, padding, dilation in SHAPES[:9]:
        x, w = random((n, c, *spatial), name), random((o, c, *kernel), name)
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        host = convolve(x.cpu().numpy(), w.cpu().numpy(), **options)
        np.testing.assert_array_equal(convolve(x, w, **options).cpu().numpy(), host)


@pytest.mark.parametrize("groups, each", [(2, 64), (4, 20), (24, 1)])
@pytest.mark.parametrize("name", ["bfloat16", "float32"])
def test_groups_and_bias(name, groups, each):
    x, w = random((3, groups * each, 12, 11), name), random((groups * 8, each, 3, 3), name)
    bias = random((groups * 8,), name)
    for a, b in ((x, w), (channels_last(x), channels_last(w))):
        found = convolve(a, b, bias=bias, padding=1, groups=groups)
        assert error(found, wanted(a, b, bias, padding=1, groups=groups)) <= LIMITS[name]


def test_bytes_are_exact():
    x = torch.randint(-128, 128, (2, 32, 9, 9), device="cuda").to(torch.int8)
    w = torch.randint(-128, 128, (24, 32, 3, 3), device="cuda").to(torch.int8)
    for a, b in ((x, w), (channels_last(x), channels_last(w))):
        found = convolve(a, b, padding=1)
        assert found.dtype == torch.int32
        want = torch.conv2d(a.double(), b.double(), padding=1)
        assert torch.equal(found.double(), want)


def test_an_epilogue_in_the_write_back():
    from gemm.epilogues import stock

    x, w = (channels_last(random(s, "bfloat16")) for s in ((4, 64, 14, 14), (128, 64, 3, 3)))
    residual, bias = random((4, 128, 14, 14), "bfloat16"), random((128,), "bfloat16")
    want = wanted(x, w, bias, padding=1)
    for r in (residual, channels_last(residual)):
        found = convolve(x, w, padding=1, epilogue=stock.residual(residual=r))
        assert error(found, wanted(x, w, padding=1) + r.double()) <= 4e-3
    found = convolve(x, w, padding=1, bias=bias, epilogue=stock.relu)
    assert error(found, want.clamp_min(0)) <= 4e-3
