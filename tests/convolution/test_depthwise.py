"""Depthwise kernels: what they read and what they hold in registers."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
from engine.oracle import ALL_LEVELS

import gemm.convolution as c
from gemm.convolution.specs import DepthwiseSpec
from gemm.microkernels.dtypes import DTYPES, TileShape

# (kernel, stride, padding, dilation): unrolled ones and, from the fifth on, looped ones.
KINDS = [
    (3, 1, 1, 1),
    (3, 2, 1, 1),
    (4, 2, 0, 1),
    (7, 1, 3, 1),
    (3, 1, 2, 2),
    (9, 1, 4, 1),
    (3, 3, 1, 1),
]


@pytest.mark.parametrize("level", ["reference", None])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_every_kind_is_the_explicit_matrix(level, kind, dtype, monkeypatch):
    """The reference target checks each address too."""
    if level:
        monkeypatch.setenv("GEMM_ISA", level)
    kernel, stride, padding, dilation = kind
    rng = np.random.default_rng(0)
    shapes = (1, 5, 10, 19), (5, 1, kernel, kernel)
    x, w = (np.round(20 * rng.standard_normal(s)).astype(dtype) for s in shapes)
    options = {"stride": stride, "padding": padding, "dilation": dilation, "groups": 5}
    if dtype == "int8":
        options["x_zero_point"] = 3
    wanted = c.conv2d(x, w, algorithm="im2col", **options)
    np.testing.assert_array_equal(c.conv2d(x, w, **options), wanted)
    last, w_last = (np.ascontiguousarray(np.moveaxis(a, 1, -1)) for a in (x, w))
    got = c.conv2d(last, w_last, layout="NHWC", **options)
    np.testing.assert_array_equal(np.moveaxis(got, -1, 1), wanted)


def test_a_tap_outside_meets_the_filter():
    """Zero times infinity: the same in every layout and algorithm, and nowhere else."""
    x = np.ones((1, 2, 5, 40), "f4")
    w = np.ones((2, 1, 3, 3), "f4")
    w[1, 0, 0, 2] = np.inf
    wanted = c.conv2d(x, w, padding=1, groups=2, algorithm="im2col")
    assert np.isnan(wanted[0, 1, 0]).all()
    assert np.isnan(wanted[0, 1, :, -1]).all()
    np.testing.assert_array_equal(c.conv2d(x, w, padding=1, groups=2), wanted)
    last = c.conv2d(np.moveaxis(x, 1, -1).copy(), w, padding=1, groups=2,
                    layout=("NHWC", "OIHW", "NCHW"))  # fmt: skip
    np.testing.assert_array_equal(last, wanted)


GUARDED = """
import ctypes, mmap, sys
import numpy as np
import gemm.convolution as c

last, stride, at_end = (int(a) for a in sys.argv[1:])
shape = (1, 9, 21, 5) if last else (1, 5, 9, 21)
size = 4 * int(np.prod(shape))
page = mmap.PAGESIZE
room = -(-size // page) * page
memory = mmap.mmap(-1, room + 2 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
libc = ctypes.CDLL(None, use_errno=True)
for guard in (start, start + page + room):
    assert libc.mprotect(ctypes.c_void_p(guard), ctypes.c_size_t(page), 0) == 0
offset = page + (room - size if at_end else 0)
x = np.ndarray(shape, np.float32, memory, offset)
x[...] = np.arange(x.size).reshape(shape) % 7
w = np.arange(5 * 9, dtype=np.float32).reshape(5, 1, 3, 3) % 5
layout = ("NHWC" if last else "NCHW", "OIHW", "NCHW")
got = c.conv2d(x, w, None, stride, 1, 1, 5, layout=layout)
wanted = c.conv2d(x.copy(), w, None, stride, 1, 1, 5, layout=layout, algorithm="im2col")
assert np.array_equal(got, wanted)
"""


@pytest.mark.skipif(os.name != "posix", reason="guards pages by mprotect")
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("at_end", [0, 1])
def test_reads_nothing_beside_the_image(last, stride, at_end):
    arguments = map(str, (last, stride, at_end))
    done = subprocess.run([sys.executable, "-c", GUARDED, *arguments], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-500:]


@pytest.mark.parametrize(("last", "taps"), [(True, (1, 3)), (False, (3, 3))])
@pytest.mark.parametrize("step", [1, 2])
def test_the_tile_stays_in_registers(last, taps, step):
    """One multiply-add a tap, row and vector, and no vector on the stack between them."""
    from numba.core.types import intp

    from gemm.backends import compiler, values
    from gemm.backends.cpu import kernels

    level, f4 = ALL_LEVELS["avx512"], DTYPES["float32"]
    steps = (1, step) if last else (step, step)
    spec = DepthwiseSpec(TileShape(14, 1, 16, f4), f4, f4, last, None, taps, steps)
    function, kinds = spec.build()
    kinds = [values.Pointer(k) if hasattr(k, "size") else intp for k in kinds]
    assembly = compiler.compile_assembly(function, kinds, kernels.target_of(level))
    stretches = re.split(r"\n(?=\.L\w+:)", assembly)
    stretches = [s for s in stretches if s.count("vfmadd") == 14 * taps[0] * taps[1]]
    assert len(stretches) >= 2, "inside and at the edge"
    for stretch in stretches:
        vectors = [line for line in stretch.splitlines() if "zmm" in line and "(%rsp)" in line]
        # A loop over channels may fetch one constant.
        assert len(vectors) <= 1, vectors
