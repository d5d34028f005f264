"""The convolution kernels on every kind of vector unit: bit for bit the explicit matrix's product.

The oracle gathers with NumPy (im2col.py) and multiplies with the engine, so nothing of the gather
rule, the packing, the loops or the write-back of a convolution is its own judge.
"""

import numpy as np
import pytest

import gemm.convolution as c
from gemm import engine, epilogue
from gemm.backends.cpu import kernels
from gemm.backends.cpu.machine import machine
from gemm.convolution import filters, gather, geometry, im2col, product
from gemm.targets import default_level

# One level for each kind of vector unit: levels that share it run the same kernels.
UNITS = list({(x.unit, x.fused): x.name for x in machine().levels}.values())


def same_bits(x, y):
    """Equal in every bit, so that -0 differs from +0 and NaN equals itself."""
    x, y = np.ascontiguousarray(x), np.ascontiguousarray(y)
    return x.dtype == y.dtype and x.shape == y.shape and x.tobytes() == y.tobytes()


# (batch, channels, height, width, filters, kernel, stride, padding, dilation, groups)
CASES = {
    "panels end inside rows": (2, 6, 9, 11, 10, 3, 1, 1, 1, 1),
    "several panels of filters": (1, 20, 5, 29, 70, 3, 1, 1, 1, 1),
    "stride 2": (2, 3, 23, 17, 40, 7, 2, 3, 1, 1),
    "stride 3": (1, 5, 13, 14, 7, 3, 3, 1, 1, 1),
    "dilation": (1, 4, 12, 13, 8, 3, 1, 2, 2, 1),
    "pointwise": (3, 70, 7, 7, 35, 1, 1, 0, 1, 1),
    "pointwise, stride 2": (2, 9, 8, 9, 16, 1, 2, 0, 1, 1),
    "groups": (2, 8, 6, 9, 12, 3, 2, 1, 1, 2),
    "depthwise": (2, 35, 13, 30, 35, 3, 1, 1, 1, 35),
    "depthwise, stride 2": (2, 18, 14, 19, 18, 5, 2, 2, 1, 18),
    "depthwise, dilation": (1, 20, 9, 9, 20, 3, 1, 2, 2, 20),
    "two filters a channel": (1, 6, 9, 9, 12, 3, 1, 1, 1, 6),
    "one channel": (1, 1, 9, 20, 5, 3, 1, 1, 1, 1),
}
DTYPES = ("float32", "float64", "float16", "complex64", "int16")


def operands(case, dtype, rng):
    n, channels, h, w, count, kernel, _, _, _, groups = CASES[case]
    shapes = (n, channels, h, w), (count, channels // groups, kernel, kernel), (count,)
    values = [rng.standard_normal(shape) for shape in shapes]
    if np.dtype(dtype).kind == "i":
        values = [100 * v for v in values]
    if np.dtype(dtype).kind == "c":
        values = [v + 1j * rng.standard_normal(v.shape) for v in values]
    return [v.astype(dtype) for v in values]


def variants(x, w, bias, options, algorithm):
    """(name, result channels first) of every way from memory to memory."""
    last, w_last = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w))
    packed = c.pack_filters(w, options[-1])
    stepped = np.repeat(x, 2, 3)[..., ::-2]
    for out_layout in ("NCHW", "NHWC"):

        def run(name, a, b, words, extra=None):
            y = c.conv2d(a, b, extra, *options, layout=words, algorithm=algorithm, threads=2)
            return name, y if words[2] == "NCHW" else np.moveaxis(y, -1, 1)

        yield run("first", x, w, ("NCHW", "OIHW", out_layout))
        yield run("last", last, w_last, ("NHWC", "OHWI", out_layout))
        yield run("packed", last, packed, ("NHWC", "OIHW", out_layout))
        yield run("stepped", stepped[..., ::-1], w, ("NCHW", "OIHW", out_layout))
        if algorithm == "auto" and bias is not None:
            yield run("bias first", x, packed, ("NCHW", "OIHW", out_layout), bias)
            yield run("bias last", last, packed, ("NHWC", "OIHW", out_layout), bias)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("level", UNITS)
def test_same_bits_as_the_explicit_matrix(level, case, monkeypatch):
    monkeypatch.setenv("GEMM_ISA", level)
    x, w, bias = operands(case, "float32", np.random.default_rng(len(case)))
    options = CASES[case][6:]
    plain = c.conv2d(x, w, None, *options, algorithm="im2col")
    with_bias = plain + bias[:, None, None]
    # The table and the programs are the same source on every level: once is enough.
    thorough = level == UNITS[0]
    for algorithm in ("auto", "indirect") if thorough else ("auto",):
        for name, got in variants(x, w, bias if thorough else None, options, algorithm):
            wanted = with_bias if "bias" in name else plain
            assert same_bits(got, wanted), (name, algorithm)


@pytest.mark.parametrize("dtype", DTYPES[1:])
@pytest.mark.parametrize("case", ["stride 2", "depthwise", "pointwise, stride 2"])
def test_same_bits_in_every_dtype(dtype, case):
    x, w, bias = operands(case, dtype, np.random.default_rng(len(case)))
    options = CASES[case][6:]
    plain = c.conv2d(x, w, None, *options, algorithm="im2col")
    for algorithm in ("auto", "indirect"):
        for name, got in variants(x, w, bias, options, algorithm):
            if "bias" not in name:
                assert same_bits(got, plain), (name, algorithm)


@pytest.mark.parametrize("case", ["stride 2", "depthwise"])
def test_bfloat16_is_the_chain_whatever_the_algorithm(case):
    """Also where the machine adds products of bfloat16 in an order of its own."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    x, w, _ = operands(case, "float32", np.random.default_rng(len(case)))
    x, w, options = x.astype(bfloat16), w.astype(bfloat16), CASES[case][6:]
    wanted = c.conv2d(x.astype("f4"), w.astype("f4"), None, *options).astype(bfloat16)
    for algorithm in ("auto", "indirect", "im2col"):
        assert same_bits(c.conv2d(x, w, None, *options, algorithm=algorithm), wanted), algorithm


@pytest.mark.parametrize("case", ["groups", "depthwise, stride 2", "one channel"])
def test_the_reference_target_agrees(case, monkeypatch):
    x, w, bias = operands(case, "float32", np.random.default_rng(len(case)))
    x, options = x[:1, :, :9, :9], CASES[case][6:]
    wanted = dict(variants(x, w, bias, options, "auto"))
    monkeypatch.setenv("GEMM_ISA", "reference")
    for name, got in variants(x, w, bias, options, "auto"):
        assert same_bits(got, wanted[name]), name


@pytest.mark.parametrize("groups", [1, 2, 12])
@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_bytes_with_zero_points_are_exact(groups, x_dtype, layout):
    rng = np.random.default_rng(groups)
    limits = np.iinfo(x_dtype)
    x = rng.integers(limits.min, limits.max + 1, (2, 12, 9, 31)).astype(x_dtype)
    w = rng.integers(-128, 128, (12 if groups == 12 else 24, 12 // groups, 3, 3)).astype("i1")
    for zero in (0, limits.min, limits.max, 3):
        for stride in (1, 2):
            wanted = c.conv2d(
                x.astype("i8") - zero, w.astype("i8"), None, stride, 1, 1, groups,
                algorithm="im2col",
            )  # fmt: skip
            a = x if layout == "NCHW" else np.moveaxis(x, 1, -1).copy()
            packed = c.pack_filters(w, groups)
            got = c.conv2d(a, packed, None, stride, 1, layout=layout, x_zero_point=zero, threads=2)
            got = got if layout == "NCHW" else np.moveaxis(got, -1, 1)
            np.testing.assert_array_equal(got, wanted)


def test_what_ran_was_compiled_for_convolution():
    """The kernels that gather while they pack, one for each form, and the depthwise ones."""
    rng = np.random.default_rng(0)
    for case in ("panels end inside rows", "depthwise"):
        x, w, bias = operands(case, "float32", rng)
        list(variants(x, w, bias, CASES[case][6:], "auto"))
    ran = [text for _, text in kernels.loaded()]
    for wanted in ("form='rows'", "form='columns'", "last=True", "last=False"):
        assert any(wanted in text for text in ran), wanted


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "complex128", "int8", "int16"])
@pytest.mark.parametrize("shape", [(5, 3, 3, 2), (70, 4, 1, 1), (12, 1, 3, 3)])
def test_packed_filters_hold_panels_and_give_the_filters_back(dtype, shape):
    rng = np.random.default_rng(0)
    w = (100 * rng.standard_normal(shape)).astype(dtype)
    groups = shape[0] if shape[1] == 1 else 1
    packed = c.pack_filters(w, groups)
    np.testing.assert_array_equal(packed.matrix, filters.matrix(w, groups))
    data = packed.operand.data
    assert data.ctypes.data % 64 == 0, "a panel's vectors must not straddle cache lines"
    if isinstance(packed.operand, product.Panels):
        assert data.shape[-1] == packed.operand.tile.columns
    w[...] = 0
    assert packed.matrix.any(), "a copy"
    assert packed.operand.level == default_level()


# -- repeated calls ------------------------------------------------------------------------------


@pytest.fixture
def layer():
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (1, 8, 12, 12)).astype("f4")
    w = rng.integers(-4, 5, (8, 8, 3, 3)).astype("f4")
    return x, w, c.pack_filters(w)


def test_a_repeated_call_sees_new_values(layer):
    x, w, packed = layer
    bias = np.zeros(8, "f4")
    for step in range(3):
        x += step
        bias += step
        wanted = c.conv2d(x, w, None, 1, 1, algorithm="im2col")
        np.testing.assert_array_equal(c.conv2d(x, packed, None, 1, 1), wanted)
        got = c.conv2d(x, packed, bias, 1, 1)
        np.testing.assert_array_equal(got, wanted + bias[:, None, None])
    assert len(packed.calls) == 2
    assert not np.shares_memory(got, c.conv2d(x, packed, bias, 1, 1))


def test_a_repeated_call_is_told_apart(layer):
    x, w, packed = layer
    for padding in (0, 1, 2):
        for a in (x, x[..., 1:], x.astype("f8"), np.asfortranarray(x)):
            wanted = c.conv2d(a, w, None, 1, padding, algorithm="im2col")
            for _ in range(2):
                got = c.conv2d(a, packed, None, 1, padding)
                assert got.dtype == wanted.dtype
                np.testing.assert_array_equal(got, wanted)


def test_a_repeated_call_still_refuses_and_still_copies(layer):
    x, w, packed = layer
    wanted = c.conv2d(x, w, None, 1, 1, algorithm="im2col")
    out = np.empty_like(wanted)
    for _ in range(2):
        assert c.conv2d(x, packed, None, 1, 1, out=out) is out
        np.testing.assert_array_equal(out, wanted)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        c.conv2d(x, packed, None, 1, 1, out=out)
    with pytest.raises(ValueError, match="stride must be at least 1"):
        c.conv2d(x, packed, None, 0, 1)
    c.conv2d(x, packed, None, 1, 1, out=x)
    np.testing.assert_array_equal(x, wanted)


def test_the_calls_that_filters_remember_are_bounded():
    from gemm.convolution import calls

    packed = c.pack_filters(np.ones((2, 1, 3, 3), "f4"))
    for n in range(4, 4 + 3 * calls.KEPT):
        c.conv2d(np.ones((1, 1, n, 4), "f4"), packed)
        assert len(packed.calls) <= calls.KEPT


# -- the gradient of the filters -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "complex64", "float16", "int16"])
@pytest.mark.parametrize("limit", [1 << 20, 700])
def test_the_weight_gradient_is_one_chain_whatever_the_boxes(dtype, limit, monkeypatch):
    """As one product over all pixels of the batch: (filters, pixels) by (pixels, taps * C)."""
    monkeypatch.setattr(gather.blocks, "__defaults__", (limit,))
    rng = np.random.default_rng(0)
    x, dy = ((10 * rng.standard_normal(s)).astype(dtype) for s in ((3, 4, 6, 7), (3, 5, 6, 7)))
    shape = geometry.forward("test", (6, 7), (3, 3), 1, 1, 1)
    rows = im2col.rows(x[:, None], shape.axes(), x.dtype).reshape(3 * 6 * 7, 9 * 4)
    wide = np.dtype({"float16": "float32", "int16": "int32"}.get(dtype, dtype))
    wanted = np.empty((5, 9 * 4), wide)
    engine.product(np.moveaxis(dy, 1, 0).reshape(5, -1).copy(), rows, wanted)
    wanted = np.moveaxis(wanted.reshape(5, 3, 3, 4), -1, 1).astype(dtype)
    assert same_bits(c.conv2d_weight(x, (5, 4, 3, 3), dy, 1, 1), wanted)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
@pytest.mark.parametrize(
    "case",
    [
        # (batch, channels, height, width, filters, kernel, stride): whole units, a tail of k and
        # of filters, pixels that are read as they lie and pixels at a border.
        (1, 64, 10, 40, 64, 1, 1),
        (2, 64, 9, 35, 70, 3, 1),
        (1, 3, 12, 13, 20, 3, 2),
        (1, 128, 7, 7, 33, 3, 1),
    ],
)
def test_bytes_are_requantised_in_the_write_back(case, x_dtype, layout):
    """Against float32 arithmetic of NumPy on exact sums, one factor a filter."""
    from gemm.epilogues import as_type, nearest

    @epilogue
    def requantised(acc, scale, zero):
        return as_type(min(max(nearest(acc * scale) + zero, 0.0), 255.0), "uint8")

    rng = np.random.default_rng(0)
    n, channels, h, w, count, kernel, stride = case
    limits = np.iinfo(x_dtype)
    x = rng.integers(limits.min, limits.max + 1, (n, channels, h, w)).astype(x_dtype)
    filters_ = rng.integers(-128, 128, (count, channels, kernel, kernel)).astype("i1")
    sums = c.conv2d(
        x.astype("i8") - 3, filters_.astype("i8"), None, stride, kernel // 2, algorithm="im2col"
    )
    scale = rng.uniform(0.001, 0.01, count).astype("f4") / np.float32(np.sqrt(channels))
    wanted = np.rint(sums.astype("i4").astype("f4") * scale[:, None, None]) + np.float32(120)
    wanted = np.clip(wanted, 0, 255).astype("u1")
    a = x if layout == "NCHW" else np.moveaxis(x, 1, -1).copy()
    packed = c.pack_filters(filters_)
    for _ in range(2):  # the second call repeats the first
        bound = requantised(scale=scale, zero=np.float32(120))
        got = c.conv2d(a, packed, None, stride, kernel // 2, layout=layout, x_zero_point=3,
                       epilogue=bound)  # fmt: skip
        got = got if layout == "NCHW" else np.moveaxis(got, -1, 1)
        np.testing.assert_array_equal(got, wanted)


def test_whole_blocks_multiply_bytes_where_the_machine_has_them():
    level = default_level()
    if not machine().levels[0].unit.blocks:
        pytest.skip(f"{level} multiplies no whole blocks")
    x, w = np.ones((1, 8, 8, 64), "u1"), np.ones((64, 64, 3, 3), "i1")
    np.testing.assert_array_equal(
        c.conv2d(x, w, layout=("NHWC", "OIHW", "NHWC")), np.full((1, 6, 6, 64), 576)
    )
    ran = [text for name, text in kernels.loaded() if "ConvolutionSpec" in text]
    assert any("in blocks" in text for text in ran)


# -- channels first ------------------------------------------------------------------------------


@pytest.mark.parametrize("turned", [True, False])
@pytest.mark.parametrize("kernel, stride", [(1, 1), (3, 1), (3, 2)])
def test_small_images_are_turned_and_large_ones_are_not(turned, kernel, stride, monkeypatch):
    """Both ways give the bits of the explicit matrix, and the one that was asked for ran."""
    from gemm.convolution import channels_last

    monkeypatch.setattr(channels_last, "pays", lambda *_: turned)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 20, 9, 13)).astype("f4")
    w = rng.standard_normal((37, 20, kernel, kernel)).astype("f4")
    wanted = c.conv2d(x, w, None, stride, kernel // 2, algorithm="im2col")
    packed = c.pack_filters(w)
    for _ in range(2):
        got = c.conv2d(x, packed, None, stride, kernel // 2, threads=2)
        assert same_bits(got, wanted)
    (call,) = packed.calls.values()
    assert isinstance(call.repeat.ready, channels_last.Turned) is turned
    if turned:
        assert any("TurnSpec" in text for _, text in kernels.loaded())


def test_pixels_of_an_output_that_are_adjacent_along_one_axis_only():
    """The last axis has one position, so its step says nothing about the pixels."""
    rng = np.random.default_rng(0)
    x = rng.integers(-9, 9, (1, 3, 3, 1)).astype("f4")
    w = rng.integers(-9, 9, (3, 3, 3, 1)).astype("f4")
    got = c.conv_transpose2d(x, w, None, (3, 1))
    wanted = np.einsum("nchw,cokl->nohkw", x, w).reshape(1, 3, 9, 1)
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_repeated_call_packs_the_filters_it_is_given(groups, layout):
    rng = np.random.default_rng(0)
    x = rng.integers(-4, 5, (1, 8, 12, 12)).astype("f4")
    bias = np.zeros(16 if groups < 8 else 8, "f4")
    for step in range(3):
        w = rng.integers(-4, 5, (len(bias), 8 // groups, 3, 3)).astype("f4")
        bias = bias + step
        wanted = c.conv2d(x, w, None, 1, 1, 1, groups, algorithm="im2col")
        wanted = wanted + bias[:, None, None]
        a, b = (x, w) if layout == "NCHW" else (np.moveaxis(v, 1, -1).copy() for v in (x, w))
        got = c.conv2d(a, b, bias, 1, 1, 1, groups, layout=layout)
        got = got if layout == "NCHW" else np.moveaxis(got, -1, 1)
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (4, 2), (1, 2), (2, 2)])
@pytest.mark.parametrize("dtype", ["f4", "f2", "i1"])
def test_a_repeated_transposed_call_sees_new_values(layout, groups, kernel, stride, dtype):
    rng = np.random.default_rng(0)
    many = 2 if groups == 2 else 1
    out, biases = None, [None, np.zeros(many * groups, "i4" if dtype == "i1" else dtype)]
    for step in range(3):
        x = rng.integers(-4, 5, (2, 8, 5, 6)).astype(dtype)
        w = rng.integers(-4, 5, (8, many, kernel, kernel)).astype(dtype)
        a, b = (x, w) if layout == "NCHW" else (np.moveaxis(v, 1, -1).copy() for v in (x, w))
        for bias in biases:
            wanted = c.conv_transpose2d(
                x, w, bias, stride, groups=groups, algorithm="im2col"
            )  # never remembered
            got = c.conv_transpose2d(a, b, bias, stride, groups=groups, layout=layout, out=out)
            assert got.dtype == wanted.dtype
            shown = got if layout == "NCHW" else np.moveaxis(got, -1, 1)
            np.testing.assert_array_equal(shown, wanted)
        biases[1] += 1
        out = np.empty_like(got) if step == 1 else None


def test_a_repeated_transposed_call_is_told_apart():
    from gemm.convolution import calls

    rng = np.random.default_rng(0)
    x, w = (rng.integers(-4, 5, (8, 8, n, n)).astype("f4") for n in (6, 3))
    calls.recent.clear()
    ways = [
        {}, {"stride": 2}, {"stride": 2, "output_padding": 1}, {"stride": 2, "padding": 1},
        {"stride": 2, "output_size": (14, 14)}, {"dilation": 2}, {"groups": 2}, {"threads": 1},
    ]  # fmt: skip
    for _ in range(2):
        c.conv2d(x, w)
        for way in ways:
            wanted = c.conv_transpose2d(x, w, **way, algorithm="im2col")
            np.testing.assert_array_equal(c.conv_transpose2d(x, w, **way), wanted)
            turned = c.conv_transpose2d(x, np.asfortranarray(w), **way)
            np.testing.assert_array_equal(turned, wanted)
        assert len(calls.recent) == 1 + 2 * len(ways)
    square = c.conv_transpose2d(x, w, padding=1, algorithm="im2col")
    for wanted in (square, c.conv_transpose2d(square, w, padding=1, algorithm="im2col")):
        c.conv_transpose2d(x, w, padding=1, out=x)
        np.testing.assert_array_equal(x, wanted)
    with pytest.raises(ValueError, match="out must have shape"):
        c.conv_transpose2d(x, w, out=x[:1])


def test_a_repeated_transposed_call_takes_an_epilogue():
    @epilogue
    def scaled(acc, factor, bias=0.0):
        return acc * factor + bias

    rng = np.random.default_rng(0)
    for factor in (1.0, 2.0, 3.0):
        x, w = (rng.integers(-4, 5, (1, 8, n, n)).astype("f4") for n in (6, 3))
        w = np.broadcast_to(w, (8, 8, 3, 3)).copy()
        bias = rng.integers(-4, 5, 8).astype("f4")
        for stride in (1, 2):
            plain = c.conv_transpose2d(x, w, None, stride, algorithm="im2col")
            got = c.conv_transpose2d(x, w, bias, stride, epilogue=scaled(factor=factor))
            np.testing.assert_array_equal(got, plain * factor + bias[:, None, None])
            tile = got.copy()
            got = c.conv_transpose2d(x, w, None, stride, epilogue=scaled(factor=1.0, bias=tile))
            np.testing.assert_array_equal(got, plain + tile)


def test_the_calls_that_are_remembered_are_bounded():
    from gemm.convolution import calls

    w = np.ones((2, 1, 3, 3), "f4")
    for n in range(4, 4 + 2 * calls.RECENT):
        c.conv2d(np.ones((1, 1, n, 4), "f4"), w)
        assert len(calls.recent) <= calls.RECENT
