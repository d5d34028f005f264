"""Epilogues of a convolution: operands a filter, a whole residual, bias, zero points, 8-bit out."""

import numpy as np
import pytest

import gemm.convolution as c
from gemm.epilogues import as_type, epilogue, nearest


@epilogue
def scaled_sum(acc, scale, residual, bias=None):
    """acc * scale (+ bias) + residual."""
    x = acc * scale
    return (x if bias is None else x + bias) + residual


@epilogue
def quantised(acc, scale):
    """acc * scale, rounded and saturated."""
    return as_type(min(max(nearest(acc * scale), -128.0), 127.0), "int8")


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (3, 4, 6, 7)).astype("f4")
    w = rng.integers(-4, 5, (6, 2, 3, 3)).astype("f4")
    scale = rng.integers(1, 4, 6).astype("f4")
    return rng, x, w, scale


@pytest.mark.parametrize("algorithm", ["auto", "im2col", "indirect"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_operands_follow_the_layout(problem, layout, algorithm):
    rng, x, w, scale = problem
    plain = c.conv2d(x, w, stride=2, padding=1, groups=2)
    residual = rng.integers(-9, 9, plain.shape).astype("f4")
    wanted = plain * scale[:, None, None] + residual
    if layout == "NHWC":
        x, w, residual, wanted = (np.moveaxis(a, 1, -1) for a in (x, w, residual, wanted))
    got = c.conv2d(
        x,
        w,
        stride=2,
        padding=1,
        groups=2,
        layout=layout,
        algorithm=algorithm,
        epilogue=scaled_sum(scale=scale, residual=residual),
    )
    np.testing.assert_array_equal(got, wanted)


def test_transposed_takes_tiles_phase_by_phase(problem):
    rng, x, w, _ = problem
    w = w[:4]
    plain = c.conv_transpose2d(x, w, stride=2, groups=2)
    residual = rng.integers(-9, 9, plain.shape).astype("f4")
    got = c.conv_transpose2d(
        x, w, stride=2, groups=2, epilogue=scaled_sum(scale=2.0, residual=residual)
    )
    np.testing.assert_array_equal(got, 2 * plain + residual)


def test_bias_goes_to_the_operand_of_that_name(problem):
    _, x, w, scale = problem
    bias = np.arange(6, dtype="f4")
    got = c.conv2d(x, w, bias, groups=2, epilogue=scaled_sum(scale=scale, residual=1.0))
    plain = c.conv2d(x, w, groups=2)
    np.testing.assert_array_equal(got, plain * scale[:, None, None] + bias[:, None, None] + 1)
    with pytest.raises(TypeError, match="takes no operand 'bias' for the bias given"):
        c.conv2d(x, w, bias, groups=2, epilogue=quantised(scale=1.0))
    with pytest.raises(ValueError, match=r"operand scale of the epilogue must be one number, one"):
        c.conv2d(x, w, groups=2, epilogue=quantised(scale=scale[:5]))


def test_eight_bits_in_and_out_with_zero_points():
    rng = np.random.default_rng(1)
    x = rng.integers(0, 256, (2, 3, 6, 6)).astype("u1")
    w = rng.integers(-128, 128, (4, 3, 3, 3)).astype("i1")
    scale = np.array([0.5, 0.25, 0.125, 1.0], "f4") / 256
    zeros = {"x_zero_point": 130, "w_zero_point": np.array([0, 3, -5, 100])}
    sums = c.conv2d(x, w, padding=1, **zeros)
    wanted = np.clip(np.rint(sums * scale[:, None, None]), -128, 127).astype("i1")
    out = np.zeros(wanted.shape, "i1")
    got = c.conv2d(x, w, padding=1, **zeros, epilogue=quantised(scale=scale), out=out)
    assert got is out
    alone = c.conv2d(x, w, padding=1, **zeros, epilogue=quantised(scale=scale))
    assert alone.dtype == np.int8
    np.testing.assert_array_equal(alone, wanted)
    np.testing.assert_array_equal(out, wanted)
