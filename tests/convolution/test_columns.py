"""unfold and fold: transposes of each other, equal to windows taken by hand."""

import numpy as np
import pytest
from hypothesis import given, settings

import gemm.convolution as c

from .strategies import problems


@settings(max_examples=60, deadline=None)
@given(problems())
def test_fold_is_the_transpose_of_unfold(problem):
    rank, x_shape, w_shape, options, shape, rng = problem
    x = rng.integers(-4, 5, x_shape).astype("f8")
    arguments = (options["dilation"], options["padding"], options["stride"])
    columns = c.unfold(x, w_shape[2:], *arguments)
    taps = int(np.prod(w_shape[2:]))
    assert columns.shape == (x_shape[0], x_shape[1] * taps, int(np.prod(shape.output)))
    other = rng.integers(-4, 5, columns.shape).astype("f8")
    back = c.fold(other, x_shape[2:], w_shape[2:], *arguments)
    assert back.shape == x.shape
    assert (columns * other).sum() == (x * back).sum()
    w = rng.integers(-4, 5, (w_shape[0], x_shape[1], *w_shape[2:])).astype("f8")
    y = getattr(c, f"conv{rank}d")(x, w, **{**options, "groups": 1})
    product = w.reshape(len(w), -1) @ columns
    np.testing.assert_array_equal(product.reshape(y.shape), y)


def test_unbatched_and_errors():
    x = np.arange(9.0).reshape(1, 3, 3)
    columns = c.unfold(x, (2, 2))
    assert columns.tolist() == c.unfold(x[None], 2)[0].tolist()
    assert columns[:, 0].tolist() == [0, 1, 3, 4]
    assert c.fold(columns, (3, 3), 2)[0].tolist() == [[0, 2, 2], [6, 16, 10], [6, 14, 8]]
    with pytest.raises(ValueError, match=r"\(4, 4\) are not 3 taps a channel by 1 windows"):
        c.fold(columns, (3,), 3)
    with pytest.raises(ValueError, match="kernel is larger than the padded input"):
        c.unfold(x, (4, 4))
