"""All parameters against plain loops, for every algorithm and arrangement of memory."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import gemm.convolution as convolution
from gemm.convolution.gather import Gather

from .reference import loop_convolution, loop_transposed
from .strategies import arranged, layouts, problems

ALGORITHMS = ("auto", "im2col", "implicit", "indirect")
quick = settings(max_examples=60, deadline=None)


def small_integers(rng, shape, dtype):
    return rng.integers(-4, 5, shape).astype(dtype)


@quick
@given(problems(), layouts, layouts, st.sampled_from(["f4", "f8", "i2", "i8", "c16"]))
def test_forward_is_the_loop(problem, x_kind, w_kind, dtype):
    rank, x_shape, w_shape, options, shape, rng = problem
    x = arranged(small_integers(rng, x_shape, dtype), x_kind)
    w = arranged(small_integers(rng, w_shape, dtype), w_kind)
    bias = small_integers(rng, w_shape[0], dtype)
    wanted = loop_convolution(x, w, shape, options["groups"])
    wanted += bias.reshape(-1, *(1,) * rank)
    run = getattr(convolution, f"conv{rank}d")
    for algorithm in ALGORITHMS:
        got = run(x, w, bias, **options, algorithm=algorithm)
        assert got.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(got, wanted, err_msg=algorithm)


@quick
@given(problems(transposed=True), layouts, layouts)
def test_transposed_is_the_loop(problem, x_kind, w_kind):
    rank, x_shape, w_shape, options, shape, rng = problem
    x = arranged(small_integers(rng, x_shape, "f8"), x_kind)
    w = arranged(small_integers(rng, w_shape, "f8"), w_kind)
    wanted = loop_transposed(x, w, shape, options["groups"])
    for algorithm in ALGORITHMS:
        got = getattr(convolution, f"conv_transpose{rank}d")(x, w, **options, algorithm=algorithm)
        np.testing.assert_array_equal(got, wanted, err_msg=algorithm)


@quick
@given(problems(), layouts)
def test_gradients_are_the_transposes(problem, kind):
    """<dy, conv(x, w)> is linear in x and in w, so both gradients are fixed by inner products."""
    rank, x_shape, w_shape, options, shape, rng = problem
    x, w = small_integers(rng, x_shape, "f8"), small_integers(rng, w_shape, "f8")
    y = getattr(convolution, f"conv{rank}d")(x, w, **options)
    dy = arranged(small_integers(rng, y.shape, "f8"), kind)
    dx = getattr(convolution, f"conv{rank}d_input")(x.shape, w, dy, **options)
    dw = getattr(convolution, f"conv{rank}d_weight")(x, w.shape, dy, **options)
    assert dx.shape == x.shape
    assert dw.shape == w.shape
    assert (dy * y).sum() == (dx * x).sum() == (dw * w).sum()
    bias = getattr(convolution, f"conv{rank}d_bias")(dy)
    np.testing.assert_array_equal(bias, dy.sum((0, *range(2, rank + 2))))


@quick
@given(problems(), layouts)
def test_all_algorithms_and_layouts_give_the_same_bits(problem, kind):
    rank, x_shape, w_shape, options, _, rng = problem
    x = arranged(rng.standard_normal(x_shape).astype("f4"), kind)
    w = rng.standard_normal(w_shape).astype("f4")
    run = getattr(convolution, f"conv{rank}d")
    wanted = run(x, w, **options, algorithm="im2col")
    for algorithm in ALGORITHMS:
        np.testing.assert_array_equal(run(x, w, **options, algorithm=algorithm), wanted)
    last = run(
        np.moveaxis(x, 1, -1), np.moveaxis(w, 1, -1), **options, layout="NHWC", algorithm="indirect"
    )
    np.testing.assert_array_equal(np.moveaxis(last, -1, 1), wanted)
    packed = convolution.pack_filters(w, options["groups"])
    np.testing.assert_array_equal(run(x, packed, **options), wanted)


@quick
@given(problems(), layouts)
def test_table_is_its_definition(problem, kind):
    _, x_shape, _, _, shape, rng = problem
    x = arranged(small_integers(rng, (1, *x_shape[1:]), "f4"), kind)
    rule = Gather.of(x[0], shape.axes())
    table = rule.table()
    assert table.dtype == np.int32
    assert table.shape == (rule.pixels, rule.taps)
    assert table.min(initial=0) >= -1
    assert table.max(initial=-1) < max(rule.span, 1)
    for pixel, tap in np.ndindex(*table.shape):
        assert table[pixel, tap] == rule.offset(pixel, tap)


@quick
@given(problems())
def test_zero_points_are_subtracted(problem):
    rank, x_shape, w_shape, options, shape, rng = problem
    x = rng.integers(0, 256, x_shape).astype("u1")
    w = rng.integers(-128, 128, w_shape).astype("i1")
    x_zero, w_zero = int(rng.integers(256)), rng.integers(-128, 128, w_shape[0])
    spread = w_zero.reshape(-1, *(1,) * (rank + 1))
    wanted = loop_convolution(x.astype("i8") - x_zero, w - spread, shape, options["groups"])
    for algorithm in ALGORITHMS:
        got = getattr(convolution, f"conv{rank}d")(
            x, w, **options, x_zero_point=x_zero, w_zero_point=w_zero, algorithm=algorithm
        )
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, wanted)
