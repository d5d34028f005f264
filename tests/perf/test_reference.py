"""The check before timing: right answers pass, wrong ones do not, integers are exact."""

import numpy as np
import pytest

from gemm.perf import contenders, operands, reference
from gemm.perf.cases import parse


def one(line):
    (case,) = parse(line)
    return case


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "int64", "uint64"])
def test_integer_products_equal_pythons(dtype):
    rng = np.random.default_rng(3)
    a, b = (operands.random(rng, shape, dtype) for shape in ((4, 33), (33, 5)))
    exact = a.astype(object) @ b.astype(object)
    bits = 8 * np.dtype(dtype).itemsize
    got = reference.exact_integer_product(a, b, np.dtype(dtype))
    assert ((got.astype(object) - exact) % 2**bits == 0).all()
    wide = reference.exact_integer_product(a, b, np.dtype(np.int64))
    assert ((wide.astype(object) - exact) % 2**64 == 0).all()


def test_convolution_against_its_definition():
    rng = np.random.default_rng(4)
    x, w = rng.normal(size=(2, 4, 6, 7)), rng.normal(size=(6, 2, 3, 2))
    stride, padding, groups = 2, 1, 2
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    got = reference.convolution(x, w, stride, padding, groups)
    want = np.zeros_like(got)
    for n, o, i, j in np.ndindex(*got.shape):
        group = o // 3
        window = padded[n, 2 * group : 2 * group + 2, 2 * i : 2 * i + 3, 2 * j : 2 * j + 2]
        want[n, o, i, j] = (window * w[o]).sum()
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


LINES = [
    "f matmul 9x7x40 float32",
    "f matmul 9x7x40 float64 batch=3",
    "f matmul 9x7x40 complex64",
    "f matmul 9x7x40 complex128",
    "f matmul 9x7x40 float16",
    "f matmul 9x7x40 int8*uint8->int32",
    "f matmul 9x7x40 int64",
    "f matmul 9x7x40 bool",
]


@pytest.mark.parametrize("line", LINES)
def test_right_passes_and_one_wrong_element_fails(line):
    case = one(line)
    (given,) = operands.make(case)
    result = contenders.NumPy().make(case, [given]).result()
    reference.check(case, given, result)
    spoiled = result.copy()
    last = (-1,) * result.ndim
    spoiled[last] = ~spoiled[last] if result.dtype.kind in "bi" else spoiled[last] + 0.5
    with pytest.raises(reference.WrongResult):
        reference.check(case, given, spoiled)
    with pytest.raises(reference.WrongResult, match="shape"):
        reference.check(case, given, result[..., :-1])


def test_nan_is_wrong():
    case = one("f matmul 4 float32")
    (given,) = operands.make(case)
    with pytest.raises(reference.WrongResult, match="nan"):
        reference.check(case, given, np.full((4, 4), np.nan, np.float32))


def test_a_peer_that_is_wrong_is_not_timed():
    from gemm.perf import alternate

    wrong = contenders.Gemm(matmul=lambda a, b, out=None: a @ b + np.float32(1))
    got = alternate.compare(one("f matmul 8 float32"), [wrong, contenders.NumPy()], 5, 1e-4)
    assert got["gemm"]["kind"] == "WrongResult" and "samples" not in got["gemm"]
    assert len(got["NumPy"]["samples"]) == 5


@pytest.mark.parametrize("layout", ["NN", "TN", "NT", "TT", "SN", "NS", "RN"])
def test_layouts_have_the_strides_they_name(layout):
    case = one(f"f matmul 6x5x4 float32 layout={layout}")
    (given,) = operands.make(case)
    assert given.a.shape == (6, 4) and given.b.shape == (4, 5)
    strides = {"N": lambda x: x.strides[1] == 4, "T": lambda x: x.strides[0] == 4,
               "S": lambda x: x.strides[1] == 8, "R": lambda x: x.strides[0] < 0}  # fmt: skip
    assert strides[layout[0]](given.a) and strides[layout[1]](given.b)


def test_an_unexpected_error_of_a_contender_is_a_reason_and_spares_the_others():
    from gemm.perf import alternate

    def breaks(a, b, out=None):
        raise RuntimeError("device on fire\nmore")

    got = alternate.compare(
        one("f matmul 8 float32"), [contenders.Gemm(breaks), contenders.NumPy()], 5, 1e-4
    )
    assert got["gemm"] == {"reason": "device on fire", "kind": "RuntimeError"}
    assert got["NumPy"]["samples"]
