"""Inputs that went wrong in other convolution libraries, with the right answers."""

import gc
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gemm.convolution as c

ALGORITHMS = ("auto", "im2col", "implicit", "indirect")


def ones(*shape, dtype="f4"):
    return np.ones(shape, dtype)


@pytest.mark.parametrize("algorithm", [*ALGORITHMS, "direct"])
def test_c01_pointwise_shortcut_keeps_the_stride(algorithm):
    x = np.arange(1, 10, dtype="f4").reshape(1, 1, 3, 3)
    got = c.conv2d(x, ones(1, 1, 1, 1), stride=2, algorithm=algorithm)
    assert got.ravel().tolist() == [1, 3, 7, 9]


@pytest.mark.parametrize("stride", [1, 2])
def test_c02_impossible_output_is_refused_at_any_stride(stride):
    with pytest.raises(ValueError, match="kernel is larger than the padded input"):
        c.conv2d(ones(1, 1, 4, 4), ones(1, 1, 3, 3), dilation=2, stride=stride)


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_c03_kernel_larger_than_input_has_one_wording(rank, algorithm):
    conv = getattr(c, f"conv{rank}d")
    wanted = (
        f"conv{rank}d: the kernel is larger than the padded input on spatial axis 0: kernel 2 with "
        "dilation 1 covers 2, input 1 with padding 0 + 0 has 1"
    )
    with pytest.raises(ValueError) as caught:
        conv(ones(1, 1, *(1,) * rank), ones(1, 1, *(2,) * rank), algorithm=algorithm)
    assert str(caught.value) == wanted


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize(
    "options, message",
    [
        ({"stride": 0}, "stride must be at least 1, got 0"),
        ({"dilation": 0}, "dilation must be at least 1, got 0"),
        ({"stride": -(2**63)}, "stride must be at least 1"),
        ({"padding": -1}, "padding must be at least 0, got -1"),
        ({"groups": 0}, "groups must be at least 1, got 0"),
        ({"groups": -1}, "groups must be at least 1, got -1"),
        ({"groups": -(2**63)}, "groups must be at least 1, got -9223372036854775808"),
        ({"groups": 3}, "not divisible into 3 groups"),
        ({"stride": (1, 1, 1, 1)}, "stride must have . entries, got 4"),
        ({"padding": ((1, 1, 1),)}, "padding must have"),
        ({"padding": "full"}, "padding must be 'valid', 'same'"),
    ],
)
def test_c04_c05_bad_parameters_are_refused_everywhere(rank, options, message):
    x, w = ones(1, 4, *(5,) * rank), ones(4, 4, *(3,) * rank)
    out = np.full((1, 4, *(3,) * rank), np.nan, "f4")
    calls = [
        lambda: getattr(c, f"conv{rank}d")(x, w, out=out, **options),
        lambda: getattr(c, f"conv_transpose{rank}d")(x, w, **options),
        lambda: getattr(c, f"conv{rank}d_input")(x.shape, w, out, **options),
        lambda: getattr(c, f"conv{rank}d_weight")(x, w.shape, out, **options),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()
    assert np.isnan(out).all()


def test_c05_channels_must_fit():
    with pytest.raises(ValueError, match="x has 3 channels, but filters of 2 channels in 2 groups"):
        c.conv2d(ones(1, 3, 5, 5), ones(4, 2, 3, 3), groups=2)


@pytest.mark.parametrize("value", [1.5, "2", None, (1, 2.0)])
def test_parameters_must_be_integers(value):
    with pytest.raises(TypeError, match="stride must be an integer or 2 integers"):
        c.conv2d(ones(1, 1, 5, 5), ones(1, 1, 3, 3), stride=value)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_c07_same_with_stride(algorithm):
    x = np.arange(35, dtype="f4").reshape(1, 1, 7, 5)
    y = c.conv2d(x, ones(1, 1, 3, 3), stride=2, padding="same", algorithm=algorithm)
    assert y.shape == (1, 1, 4, 3)
    assert y[0, 0, 0].tolist() == [12, 27, 24]
    assert y[0, 0, -1].tolist() == [112, 177, 124]


def test_c08_same_with_dilation():
    x = np.arange(22, dtype="f4").reshape(1, 1, 22)
    w = np.array([1, 10, 100], "f4").reshape(1, 1, 3)
    y = c.conv1d(x, w, dilation=2, padding="same")
    np.testing.assert_array_equal(y, c.conv1d(x, w, dilation=2, padding=((2, 2),)))
    assert y.shape == (1, 1, 22)


def test_c09_even_kernel_side_of_the_extra_zero():
    x = np.array([1, 2, 3, 4], "f4").reshape(1, 1, 4)
    w = np.array([1, 10, 100, 1000], "f4").reshape(1, 1, 4)
    assert c.conv1d(x, w, padding="same").ravel().tolist() == [3210, 4321, 432, 43]
    assert c.conv1d(x, w, padding="same_lower").ravel().tolist() == [2100, 3210, 4321, 432]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_c10_transposed_output_padding_is_computed(algorithm):
    y = c.conv_transpose2d(
        np.full((1, 1, 5, 5), 0.5, "f4"),
        ones(1, 1, 2, 2),
        padding=3,
        dilation=2,
        output_padding=1,
        algorithm=algorithm,
    )
    assert y.shape == (1, 1, 2, 2)
    assert (y == 2).all()


def test_c11_transposed_size_with_stride_and_dilation():
    y = c.conv_transpose2d(
        ones(1, 1, 50, 50),
        ones(1, 1, 3, 5),
        stride=(2, 1),
        dilation=(3, 1),
        padding=((4, 4), (2, 2)),
    )
    assert y.shape == (1, 1, 97, 50)


def test_c12_transposed_output_padding_and_output_size():
    x, w = ones(1, 1, 28, 28), ones(1, 1, 3, 3)
    y = c.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1)
    assert y.shape == (1, 1, 56, 56)
    z = c.conv_transpose2d(x, w, stride=2, padding=1, output_size=(56, 56))
    np.testing.assert_array_equal(y, z)
    with pytest.raises(ValueError, match=r"output_size \(57, 57\) is out of reach"):
        c.conv_transpose2d(x, w, stride=2, padding=1, output_size=(57, 57))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_c15_c16_c17_empty_batch(layout):
    x, w, dy = ones(0, 3, 8, 8), ones(4, 3, 3, 3), ones(0, 4, 6, 6)
    if layout == "NHWC":
        x, w, dy = (np.moveaxis(a, 1, -1) for a in (x, w, dy))
    y = c.conv2d(x, w, layout=layout)
    assert y.shape == dy.shape
    assert c.conv2d_input(x.shape, w, dy, layout=layout).shape == x.shape
    gradient = np.full(w.shape, np.nan, "f4")
    c.conv2d_weight(x, w.shape, dy, layout=layout, out=gradient)
    assert (gradient == 0).all()
    assert (c.conv2d_bias(dy, layout=layout) == 0).all()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_c18_channels_last_filters_with_one_channel(algorithm):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 1, 100, 100)).astype("f4")
    w = rng.standard_normal((64, 1, 3, 3)).astype("f4")
    last = np.moveaxis(np.ascontiguousarray(np.moveaxis(w, 1, -1)), -1, 1)
    got = c.conv2d(x, last, padding=1, algorithm=algorithm)
    np.testing.assert_array_equal(got, c.conv2d(x, w, padding=1))


def test_c19_mixed_layouts():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 3, 7, 7)).astype("f4")
    w = rng.standard_normal((5, 3, 3, 3)).astype("f4")
    wanted = c.conv2d(x, w)
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    np.testing.assert_array_equal(c.conv2d(last.transpose(0, 3, 1, 2), w), wanted)
    got = c.conv2d(last, w, layout=("NHWC", "OIHW", "NCHW"))
    np.testing.assert_array_equal(got, wanted)
    with pytest.raises(ValueError, match="layout 'NCWX' does not name the axes N, C, H, W"):
        c.conv2d(x, w, layout="NCWX")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_c20_expanded_filters(algorithm):
    w = np.broadcast_to(np.float32(1), (2, 1, 1, 1))
    assert c.conv2d(ones(1, 1, 1, 1), w, algorithm=algorithm).ravel().tolist() == [1, 1]


def test_c23_filter_gradient_with_a_remainder():
    assert c.conv1d_weight(ones(1, 1, 6), (1, 1, 3), ones(1, 1, 2), stride=2).shape == (1, 1, 3)


def test_c24_input_gradient_with_a_remainder():
    dx = c.conv2d_input((1, 1, 16, 16), ones(1, 1, 7, 7), ones(1, 1, 5, 5), stride=3, padding=2)
    assert dx.shape == (1, 1, 16, 16)
    # Row 15 is position 17 of the padded image, which only the last window (12 .. 18) reads.
    assert dx[0, 0, 15].tolist() == [1, 2, 2, 2, 3, 2, 2, 3, 2, 2, 3, 2, 2, 2, 1, 1]


def peak_bytes(call):
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("algorithm", ["auto", "implicit", "indirect"])
@pytest.mark.parametrize("size", [300, 1500])
def test_c25_extra_memory_is_bounded(algorithm, size):
    x, w = np.zeros((1, 3, size, size), "f4"), np.zeros((32, 3, 7, 7), "f4")
    y = c.conv2d(x[:, :, :64, :64], w, stride=4, padding=3)  # compile outside the measurement
    y = np.empty((1, 32, (size - 1) // 4 + 1, (size - 1) // 4 + 1), "f4")
    extra = peak_bytes(lambda: c.conv2d(x, w, stride=4, padding=3, algorithm=algorithm, out=y))
    assert extra < 8 << 20


def test_c28_unsigned_by_signed_does_not_saturate():
    x = np.full((1, 4, 1, 1), 255, "u1")
    for value, wanted in ((127, 129540), (-128, -130560)):
        y = c.conv2d(x, np.full((1, 4, 1, 1), value, "i1"))
        assert y.dtype == np.int32
        assert y.item() == wanted


def test_c29_signed_by_signed_at_the_limit():
    for k, wanted in ((2, 32768), (4, 65536)):
        low = np.full((1, k, 1, 1), -128, "i1")
        assert c.conv2d(low, low).item() == wanted
        assert c.conv2d(low, np.full_like(low, -1)).item() == 128 * k


def test_c37_uneven_padding_without_a_copy():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 6, 7)).astype("f4")
    w = rng.standard_normal((4, 3, 3, 2)).astype("f4")
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1)))
    np.testing.assert_array_equal(c.conv2d(x, w, padding=((1, 2), (0, 1))), c.conv2d(padded, w))
    for word in ("same", "same_lower"):
        assert c.conv2d(x, w, padding=word, stride=2).shape == (2, 4, 3, 4)


def test_direct_needs_a_pointwise_kernel():
    with pytest.raises(ValueError, match="'direct' needs a 1x1 kernel without padding"):
        c.conv2d(ones(1, 1, 4, 4), ones(1, 1, 3, 3), algorithm="direct")
    with pytest.raises(ValueError, match="algorithm must be one of"):
        c.conv2d(ones(1, 1, 4, 4), ones(1, 1, 3, 3), algorithm="winograd")


def test_out_may_overlap_the_input():
    x = np.arange(16, dtype="f4").reshape(1, 1, 4, 4)
    wanted = c.conv2d(x, ones(1, 1, 3, 3), padding=1)
    got = c.conv2d(x, ones(1, 1, 3, 3), padding=1, out=x)
    assert got is x
    np.testing.assert_array_equal(x, wanted)


def test_out_is_written_in_any_strides_and_refused_untouched():
    x, w = ones(1, 2, 5, 5), ones(3, 2, 3, 3)
    wide = np.full((2, 6, 6, 6), np.nan, "f4")
    view = wide[::2, ::2, ::2, ::2]
    c.conv2d(x, w, out=view)
    assert (view == 18).all()
    assert np.isnan(wide).sum() == wide.size - view.size
    with pytest.raises(ValueError, match=r"out must have shape \(1, 3, 3, 3\)"):
        c.conv2d(x, w, out=wide)
    with pytest.raises(TypeError, match="does not fit in out of dtype int32"):
        c.conv2d(x, w, out=np.zeros((1, 3, 3, 3), "i4"))


def test_subnormal_and_non_native_and_packed_inputs():
    x = np.arange(25, dtype="f4").reshape(1, 1, 5, 5)
    w = ones(1, 1, 3, 3)
    wanted = c.conv2d(x, w)
    np.testing.assert_array_equal(c.conv2d(x.astype(">f4"), w.astype(">f4")), wanted)
    record = np.zeros(x.shape, np.dtype([("flag", "u1"), ("value", "f4")], align=False))
    record["value"] = x
    np.testing.assert_array_equal(c.conv2d(record["value"], w, algorithm="indirect"), wanted)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_halves_are_summed_in_float32(name):
    dtype = np.dtype(name) if name == "float16" else pytest.importorskip("ml_dtypes").bfloat16
    x = np.ones((1, 4096, 1, 1), dtype)
    y = c.conv2d(x, np.ones((1, 4096, 1, 1), dtype), np.ones(1, dtype))
    assert y.dtype == dtype
    assert float(y.item()) == 4096  # 4097 rounded to the output once
    dy = np.ones((1, 1, 64, 64), dtype)
    assert float(c.conv2d_bias(dy).item()) == 4096
    dw = c.conv2d_weight(np.ones((1, 1, 64, 64), dtype), (1, 1, 1, 1), dy)
    assert float(dw.item()) == 4096


def test_no_axis_no_channel_no_filter():
    assert c.conv2d(ones(1, 0, 5, 5), ones(2, 0, 3, 3), ones(2)).tolist() == (
        np.ones((1, 2, 3, 3)).tolist()
    )
    assert c.conv2d(ones(1, 2, 5, 5), ones(0, 2, 3, 3)).shape == (1, 0, 3, 3)
    with pytest.raises(ValueError, match="x must have 4 axes"):
        c.conv2d(ones(2, 5, 5), ones(2, 2, 3, 3))
    with pytest.raises(TypeError, match="x must be a numeric array"):
        c.conv2d(np.array([[["a"]]]), ones(1, 1, 1))


RESIDENT = """
import numpy as np, gemm.convolution as c

def sweep(first, last):
    for n in range(first, last):
        h, w = 3 + n % 30, 3 + n // 30  # kernels for every height at once
        x = np.zeros((1, 4, h, w), "f4")
        for f, groups in ((np.zeros((2, 4, 3, 3), "f4"), 1), (np.zeros((4, 1, 3, 3), "f4"), 4)):
            c.conv2d(x, f, None, 1, 1, 1, groups)
            c.conv2d(x, packed[groups], None, 1, 1)
            c.conv2d(x, f, None, 1, 1, 1, groups, algorithm="indirect")

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

packed = {g: c.pack_filters(np.zeros((4, 4 // g, 3, 3), "f4"), g) for g in (1, 4)}
sweep(0, 50)
before = resident()
sweep(50, 1000)
print(resident() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident size is read there")
def test_resident_memory_is_flat_over_a_thousand_shapes():
    ran = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 2 << 20


def test_memory_does_not_grow_with_the_number_of_shapes():
    def sweep(first, last):
        for n in range(first, last):
            h, w = 3 + n % 30, 3 + n // 30
            c.conv2d(np.zeros((1, 2, h, w), "f4"), np.zeros((2, 2, 3, 3), "f4"), padding=1)

    sweep(0, 50)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        sweep(50, 1000)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 1_000_000
    finally:
        tracemalloc.stop()


def test_images_of_one_pixel_whose_pixels_are_not_adjacent():
    rng = np.random.default_rng()
    x, w = rng.integers(-4, 5, (3, 2, 1, 1)), rng.integers(-4, 5, (1, 2, 1, 1))
    wide = np.full((3, 1, 2, 1), np.nan)
    c.conv2d(x.astype(float), w.astype(float), out=wide[:, :, ::2])
    assert (wide[:, 0, 0, 0] == np.einsum("ncij,fcij->n", x, w)).all()
    assert np.isnan(wide[:, :, 1]).all()
