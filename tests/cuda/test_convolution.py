"""Convolutions of device arrays on a pretended device: planning, maps, rules and the kernels as
plain Python, compared with the host's bits."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

import gemm
from gemm.convolution import device_plan, geometry, on_device
from gemm.convolution.gather import Gather
from gemm.epilogues import stock
from gemm.microkernels.dtypes import DTYPES
from gemm.microkernels.pixels import AXES, LOWEST, STEP, Image, _address, entry

from .pretended import Array, backend_on

BF16 = np.dtype(ml_dtypes.bfloat16)


def normal(shape, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed + sum(shape))
    if np.dtype(dtype).kind in "iu":
        return rng.integers(-20, 20, shape).astype(dtype)
    if np.dtype(dtype).kind == "c":
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


GEOMETRIES = [
    ((5, 4), (1, 1), 1, 0, 1),
    ((5, 4), (3, 3), 1, 1, 1),
    ((7, 6), (3, 2), (2, 3), [(1, 2), (0, 1)], (1, 2)),
    ((9,), (4,), 3, [(2, 0)], 2),
    ((6, 5), (3, 3), 2, "same_lower", 1),
    ((3, 4, 5), (2, 3, 2), (1, 2, 2), 1, (1, 1, 2)),
    ((4, 4), (2, 2), 8, 3, 1),
]


def images(shape, axes, dtype=DTYPES["float32"]):
    """An image (N, *spatial, C) as a plan sees it."""
    n, *spatial, c = shape
    steps = device_plan.contiguous(shape, dtype.size)
    return device_plan.Images(dtype, n, c, steps[0], steps[-1], axes, steps[1:-1], True)


@pytest.mark.parametrize("spatial, kernel, stride, padding, dilation", GEOMETRIES)
def test_the_rule_is_the_gather_rule(spatial, kernel, stride, padding, dilation):
    """Both forms, the lanes' and the copy engine's, against gemm/convolution/gather.py."""
    shape = geometry.forward("conv", spatial, kernel, stride, padding, dilation)
    n, c, size = 2, 3, 4
    x = normal((n, *spatial, c))
    every = [shape.axes(), *(phase.axes for phase in shape.phases())]
    for axes in every:
        if any(not a.offsets for a in axes):
            continue
        if axes is not every[0]:
            x = normal((n, *(a.extent for a in axes), c))
        seen = images(x.shape, axes)
        rule = np.frombuffer(seen.rule(), np.int64)
        gather = Gather.of(np.moveaxis(x, -1, 1)[0], axes)
        rank = len(axes)
        for i, tap in itertools.product(range(n * gather.pixels), range(gather.taps)):
            image, pixel = divmod(i, gather.pixels)
            offset = gather.offset(pixel, tap)
            want = None if offset < 0 else (image * x[0].size + offset) * size
            found = _address(rule, i, tap * c + 1)
            assert found == (None if want is None else want + size)
        # All pixels as one box, from an uneven start.
        first = min(1, gather.pixels - 1)
        box = Image(x, rule, c, n * gather.pixels - first)
        for tap in itertools.product(*(range(len(a.offsets)) for a in axes)):
            facts = [
                rule[entry(AXES - rank + a, 0) : entry(AXES - rank + a, 8)] for a in range(rank)
            ]
            place = np.unravel_index(first, [a.count for a in axes])
            start = [int(o * f[STEP] + f[LOWEST]) for o, f in zip(place, facts, strict=True)]
            further = [a.offsets[t] - min(a.offsets) for a, t in zip(axes, tap, strict=True)]
            pad = (0,) * (AXES - rank)
            found = box.content(0, (*pad, *start), 0, (*pad, *further))
            flat = int(np.ravel_multi_index(tap, [len(a.offsets) for a in axes]))
            for row, i in zip(found, range(first, n * gather.pixels), strict=True):
                image, pixel = divmod(i, gather.pixels)
                offset = gather.offset(pixel, flat)
                want = np.zeros(c) if offset < 0 else x[image].reshape(-1)[offset : offset + c]
                np.testing.assert_array_equal(row, want)


def compared(target, x, w, out=None, **options):
    """The convolution on a pretended device has the host's bits; returns the plans launched."""
    backend = backend_on(target)

    def there(a):
        return Array(a, backend.on) if isinstance(a, np.ndarray) and a.ndim else a

    rank = x.ndim - 2
    name, given = f"conv{rank}d", dict(options)
    epilogue = given.pop("epilogue", None)
    moved = epilogue and epilogue[0](**{k: there(v) for k, v in epilogue[1].items()})
    target_of = None if out is None else there(out)
    found = on_device.convolution(
        backend, name, rank, there(x), there(w), there(given.get("bias")), given.get("stride", 1),
        given.get("padding", 0), given.get("dilation", 1), given.get("groups", 1),
        given.get("layout", "NCHW"), moved, "auto", target_of,
    )  # fmt: skip
    if out is not None:
        assert found is target_of
    wide = np.float32 if x.dtype.name in ("bfloat16", "float16") else x.dtype
    if "bias" in given:
        given["bias"] = given["bias"].astype(wide)
    if epilogue:
        given["epilogue"] = epilogue[0](
            **{
                k: v.astype(wide) if isinstance(v, np.ndarray) else v
                for k, v in epilogue[1].items()
            }
        )
    want = getattr(gemm, name)(x.astype(wide), w.astype(wide), **given)
    if wide != x.dtype:
        want = want.astype(x.dtype)
    assert found.values.shape == want.shape and found.values.dtype == want.dtype
    np.testing.assert_array_equal(found.values, want)
    return [(p, found) for p in backend.on.launched]


@pytest.mark.parametrize("spatial, kernel, stride, padding, dilation", GEOMETRIES)
def test_the_copy_engine_gathers(spatial, kernel, stride, padding, dilation):
    x, w = normal((2, *spatial, 72), BF16), normal((40, *kernel, 72), BF16)
    plans = compared("sm_90a", x, w, stride=stride, padding=padding, dilation=dilation,
                     layout="NHWC")  # fmt: skip
    pointwise = all(k == 1 for k in kernel) and stride == 1
    assert [(p.tile.unit, p.image) for p, _ in plans] == [("wide", 0 if pointwise else len(kernel))]


@pytest.mark.parametrize("bm, bn, peers, teams", device_plan.IMAGE_BLOCKS)
def test_every_block(monkeypatch, bm, bn, peers, teams):
    """Boxes of pixels that cross rows and images, and blocks beyond the last filter."""
    monkeypatch.setattr(device_plan, "image_block", lambda *facts: ((bm, bn), peers, teams))
    x, w = normal((3, 9, 11, 72), BF16), normal((72, 2, 1, 72), BF16)
    ((plan, _),) = compared("sm_90a", x, w, padding=[(1, 0), (0, 0)], layout="NHWC")
    assert (plan.block[:2], plan.peers, plan.teams_per_unit) == ((bm, bn), peers, teams)


def test_blocks_follow_the_layer():
    """A small output is cut small; the panel of 64 filters is no wider than they are."""
    few = device_plan.image_block(132, 49, 64, 9, 10**5, 1, False, True)
    many = device_plan.image_block(132, 100352, 64, 9, 26 * 10**6, 1, False, True)
    assert few[0][0] == 64 and many[0] == (128, 64)


@pytest.mark.parametrize("spatial, kernel, stride, padding, dilation", GEOMETRIES)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_lanes_gather(layout, spatial, kernel, stride, padding, dilation):
    shapes = ((2, 3, *spatial), (5, 3, *kernel))
    if layout == "NHWC":
        shapes = ((2, *spatial, 3), (5, *kernel, 3))
    compared("sm_80", *(normal(s) for s in shapes), stride=stride, padding=padding,
             dilation=dilation, layout=layout)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float64, np.int8, np.int32, np.complex64])
def test_element_types(dtype):
    for target in ("sm_75", "sm_90a"):
        compared(target, normal((1, 3, 5, 4), dtype), normal((4, 3, 3, 2), dtype), padding=1)


def test_images_that_are_packed_first():
    """Channels first, three channels, channels of 18 bytes: the matrix unit's bits all the same."""
    for x in (normal((2, 3, 6, 7), BF16), np.moveaxis(normal((2, 6, 7, 9), BF16), -1, 1)):
        w = normal((10, x.shape[1], 3, 3), BF16)
        plans = compared("sm_90a", x, w, padding=1, stride=2)
        names = [type(p).__name__ for p, _ in plans]
        assert names[:3] == ["PackPlan", "PackPlan", "TeamPlan"]
        assert plans[2][0].tile.unit == "wide"


@pytest.mark.parametrize("spatial, channels, kernel, stride, padding", [
    ((9, 11), 3, (7, 7), 2, 3), ((5, 11), 3, (3, 3), 1, 1), ((4, 7), 16, (3, 3), 1, 1),
    ((40,), 3, (8,), 8, 0), ((30, 32), 3, (5, 7), 7, 0), ((9, 12), 5, (2, 4), (1, 3), 1),
])  # fmt: skip
def test_taps_of_a_row_pass_as_channels(spatial, channels, kernel, stride, padding):
    """Whatever the layout; the rows of pixels hold zeros beyond the image and its channels."""
    x, w = normal((2, channels, *spatial), BF16), normal((9, channels, *kernel), BF16)
    for image in (x, np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)):
        plans = compared("sm_90a", image, w, stride=stride, padding=padding)
        assert [getattr(p, "image", 0) for p, _ in plans[:3]] == [True, True, len(spatial)]
        assert plans[2][0].tile.unit == "wide"


def test_a_channels_last_image_gives_a_channels_last_result():
    x = np.moveaxis(normal((2, 5, 6, 64), BF16), -1, 1)
    w = np.moveaxis(normal((24, 3, 3, 64), BF16), -1, 1)
    ((plan, found),) = compared("sm_90a", x, w, padding=1)
    assert found.shape == (2, 24, 5, 6) and found.strides[1] == 2 and plan.store == "rows"


def test_out_in_any_strides():
    x, w = normal((2, 8, 5, 6), BF16), normal((24, 8, 3, 3), BF16)
    whole = np.full((2, 48, 6, 10), 7, BF16)
    compared("sm_90a", x, w, whole[:, ::2, ::2, 1:7:2], stride=2, padding=1)
    assert (whole[:, 1::2] == 7).all() and (whole[..., 0] == 7).all()


@pytest.mark.parametrize("groups, channels", [(2, 64), (2, 24), (3, 1)])
def test_groups(groups, channels):
    x = normal((2, 4, 5, groups * channels), BF16)
    w = normal((groups * 6, 3, 3, channels), BF16)
    plans = compared("sm_90a", x, w, padding=1, groups=groups, layout="NHWC")
    assert [p.tile.unit for p, _ in plans] == ["wide" if channels == 64 else "lanes"]
    compared("sm_90a", x, w, padding=1, groups=groups, layout="NHWC",
             bias=normal((groups * 6,), BF16))  # fmt: skip


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("target, dtype", [("sm_90a", BF16), ("sm_80", np.float32)])
def test_programs(target, dtype, layout):
    shapes = ((2, 8, 5, 6), (24, 8, 3, 3), (2, 24, 5, 6))
    if layout == "NHWC":
        shapes = tuple((s[0], *s[2:], s[1]) for s in shapes)
    x, w, residual = (normal(s, dtype, i) for i, s in enumerate(shapes))
    bias = normal((24,), dtype)
    compared(target, x, w, padding=1, layout=layout, bias=bias)
    compared(target, x, w, padding=1, layout=layout, epilogue=(stock.residual, {
        "residual": residual, "bias": bias}) if "bias" in stock.residual.operands else
        (stock.residual, {"residual": residual}))  # fmt: skip


def test_nothing_to_sum_and_nothing_to_write():
    compared("sm_90a", normal((2, 0, 4, 4), BF16), normal((3, 0, 3, 3), BF16))
    compared("sm_90a", normal((2, 0, 4, 4), BF16), normal((3, 0, 3, 3), BF16),
             bias=normal((3,), BF16))  # fmt: skip
    assert not compared("sm_90a", normal((0, 8, 4, 4), BF16), normal((3, 8, 3, 3), BF16))


def test_the_unit_follows_from_the_layer():
    """Images, layouts and alignments do not change it; a reach beyond the copy engine's does."""
    for n, padding, unit in ((1, 1, "wide"), (5, 1, "wide"), (1, 130, "lanes")):
        backend = backend_on("sm_90a")
        x, w = normal((n, 2, 2, 8), BF16), normal((4, 3, 3, 8), BF16)
        shape = geometry.forward("conv", (2, 2), (3, 3), 9 if padding > 9 else 1, padding, 1)
        seen = images(x.shape, shape.axes(), DTYPES["bfloat16"])
        a, b = (device_plan.Matrix(9, 72, 0, 2, DTYPES["bfloat16"], True) for _ in (x, w))
        s = device_plan.Signature(a, b, DTYPES["bfloat16"], 0, True, ())
        assert device_plan.unit_of(backend.on.target, s, seen, 1)[0] == unit


@pytest.mark.parametrize(
    "options, words",
    [
        ({"stride": 0}, "stride must be at least 1"),
        ({"groups": 0}, "groups must be at least 1"),
        ({"padding": (1, 2, 3)}, "padding must have 2 entries"),
        ({"dilation": 9}, "kernel is larger than the padded input"),
        ({"groups": 2}, "x has 3 channels"),
        ({"layout": "NHW"}, "does not name the axes"),
    ],
)
def test_refusals_are_the_hosts(options, words):
    x, w = normal((1, 3, 4, 4)), normal((2, 3, 3, 3))
    with pytest.raises(ValueError, match=words) as host:
        gemm.conv2d(x, w, **options)
    backend = backend_on("sm_90a")
    given = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, "layout": "NCHW", **options}
    with pytest.raises(ValueError, match=words) as device:
        on_device.convolution(
            backend, "conv2d", 2, Array(x, backend.on), Array(w, backend.on), None,
            given["stride"], given["padding"], given["dilation"], given["groups"],
            given["layout"], None, "auto", None,
        )  # fmt: skip
    assert str(host.value) == str(device.value)
    assert not backend.on.launched


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("options", [{"padding": 1}, {"padding": [1, 1], "stride": [1, 2]}])
def test_a_repeated_call_decides_nothing(monkeypatch, options, with_bias):
    """It reads its own arrays and writes a result of its own."""
    backend = backend_on("sm_90a")
    backend.turns = lambda x: False
    given = {"stride": 1, "padding": 0, **options}
    decided, found = on_device.decided, []
    for seed in range(3):
        x, w, bias = (normal(s, BF16, seed) for s in ((1, 8, 4, 5), (32, 8, 3, 3), (32,)))
        out = on_device.convolution(
            backend, "conv2d", 2, Array(x, backend.on), Array(w, backend.on),
            Array(bias, backend.on) if with_bias else None, given["stride"], given["padding"], 1, 1,
            "NCHW", None, "auto", None,
        )  # fmt: skip
        want = gemm.conv2d(x, w, bias=bias if with_bias else None, **options)
        np.testing.assert_array_equal(out.values, want)
        found.append(out)
        monkeypatch.setattr(on_device, "decided", None)
    assert decided is not None and len({x.address for x in found}) == 3


def test_zero_points_are_refused():
    with pytest.raises(TypeError, match="zero points"):
        on_device.convolution(None, "conv2d", 2, None, None, None, 1, 0, 1, 1, "NCHW", None, "auto",
                              None, 3)  # fmt: skip
