"""Hypothesis strategies for convolutions: every parameter at once, sizes small enough for loops."""

import numpy as np
from hypothesis import strategies as st

from gemm.convolution import geometry


@st.composite
def problems(draw, transposed=False):
    """(rank, shapes, keyword arguments, geometry, rng) of a legal convolution of one to three
    axes.
    """
    rank = draw(st.integers(1, 3))
    groups = draw(st.integers(1, 3))
    channels, filters = groups * draw(st.integers(1, 3)), groups * draw(st.integers(1, 3))
    tuples = [
        draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank).map(tuple)) for _ in range(3)
    ]
    kernel, stride, dilation = tuples
    size = draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank).map(tuple))
    sides = st.tuples(st.integers(0, 3), st.integers(0, 3))
    padding = draw(
        st.one_of(
            st.sampled_from(["valid", "same", "same_lower"]),
            st.integers(0, 3),
            st.lists(st.integers(0, 3), min_size=rank, max_size=rank).map(tuple),
            st.lists(sides, min_size=rank, max_size=rank).map(tuple),
        )
    )
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    try:
        if transposed:
            extra = tuple(
                draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True)
            )
            options["output_padding"] = extra
            shape = geometry.transposed(
                "test", size, kernel, stride, padding, extra, dilation, None
            )
        else:
            shape = geometry.forward("test", size, kernel, stride, padding, dilation)
    except ValueError:
        # An illegal draw: the same convolution with room enough.
        options["padding"], size = (
            0,
            tuple((k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)),
        )
        if transposed:
            shape = geometry.transposed("test", size, kernel, stride, 0, extra, dilation, None)
        else:
            shape = geometry.forward("test", size, kernel, stride, 0, dilation)
    batch = draw(st.integers(0, 2))
    x = (batch, channels, *size)
    w = (
        (channels, filters // groups, *kernel)
        if transposed
        else (filters, channels // groups, *kernel)
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    return rank, x, w, options, shape, rng


layouts = st.sampled_from(["plain", "channels last", "strided", "reversed", "expanded"])


def arranged(array, kind):
    """The same values in another arrangement of memory."""
    if kind == "channels last":
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
    if kind == "strided":
        wide = np.zeros([2 * n for n in array.shape], array.dtype)
        view = wide[tuple(slice(0, None, 2) for _ in array.shape)]
        view[...] = array
        return view
    if kind == "reversed":
        turn = tuple(slice(None, None, -1) for _ in array.shape)
        return np.ascontiguousarray(array[turn])[turn]
    if kind == "expanded":
        return np.broadcast_to(array[:1, :1], array.shape) if array.size else array
    return array
