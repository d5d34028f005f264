"""einsum: every call form and setting, against NumPy and Python integers."""

import itertools
import random
import subprocess
import sys

import numpy as np
import pytest
from exact import NATIVE, poisoned, small

import gemm
from gemm import einsum_plan

rng = np.random.default_rng(7)
SETTINGS = (False, True, "greedy", "optimal", ("greedy", 1000), "dp")


@pytest.mark.parametrize("optimize", SETTINGS)
def test_e01_label_of_one_operand_only_is_summed(optimize):
    x = np.arange(64).reshape(2, 4, 8)
    result = gemm.einsum("obk,ijk->ioj", x, x, optimize=optimize)
    np.testing.assert_array_equal(result[0, 0], [1904, 5872, 9840, 13808])
    np.testing.assert_array_equal(result, np.einsum("obk,ijk->ioj", x, x))


@pytest.mark.parametrize("optimize", SETTINGS)
def test_e02_every_path_gives_the_same(optimize):
    operands = [np.ones((2, 4, 8))] * 5
    assert gemm.einsum("ijk,ilm,njm,nlk,abc->", *operands, optimize=optimize) == 262144
    with pytest.raises(ValueError, match="8.*4"):
        gemm.einsum("ijk,ilm,njm,nlj,abc->", *operands, optimize=optimize)


@pytest.mark.parametrize("path", list(itertools.permutations([0, 1, 2], 2)))
def test_e03_result_dtype_is_that_of_all_operands(path):
    x, y, z = np.ones(3, "i8"), np.ones(3, "i8"), np.ones(2, "i2")
    result = gemm.einsum("i,i,j", x, y, z, optimize=["einsum_path", path, (0, 1)])
    assert result.dtype == np.int64
    np.testing.assert_array_equal(result, [3, 3])
    assert gemm.einsum("i,i,j->", x.astype("f4"), y.astype("f4"), z).dtype == np.float32


def test_e04_dtype_and_casting():
    single, double = np.eye(3, dtype="f4"), np.eye(3)
    for optimize in SETTINGS:
        result = gemm.einsum("ij,jk->ik", single, single, dtype="f8", optimize=optimize)
        assert result.dtype == np.float64
        with pytest.raises(TypeError, match="float64.*float32"):
            gemm.einsum("ij,jk->ik", double, double, dtype="f4", optimize=optimize)
        with pytest.raises(TypeError, match="int32"):
            gemm.einsum("ij,jk->ik", double, double, out=np.empty((3, 3), "i4"), optimize=optimize)
    result = gemm.einsum("ij,jk->ik", double, double, dtype="f4", casting="same_kind")
    assert result.dtype == np.float32
    wide = gemm.einsum("ij,jk->ik", *[np.full((2, 2), 100, "i1")] * 2, dtype="i4")
    assert wide.dtype == np.int32 and (wide == 20000).all()
    out = poisoned((2, 2), "i4")
    gemm.einsum("ij,jk->ik", *[np.full((2, 2), 100, "i1")] * 2, out=out)
    assert (out == 20000).all()


@pytest.mark.parametrize("optimize", SETTINGS)
def test_e05_e06_length_one_broadcasts(optimize):
    result = gemm.einsum("t...i,ti->t...", np.ones((10, 2)), np.ones((1, 2)), optimize=optimize)
    np.testing.assert_array_equal(result, np.full(10, 2.0))
    assert gemm.einsum("i,i", np.array([1, 2]), np.array([3]), optimize=optimize) == 9
    assert gemm.einsum("i,i,i", [1, 2], [3], [1], optimize=optimize) == 9
    np.testing.assert_array_equal(
        gemm.einsum("ij,ij->i", np.ones((1, 3)), np.ones((2, 3))), [3.0, 3.0]
    )


def test_a09_overlap_of_out():
    buffer = np.arange(25.0).reshape(5, 5)
    expected = buffer @ buffer
    assert gemm.einsum("ij,jk->ik", buffer, buffer, out=buffer) is buffer
    np.testing.assert_array_equal(buffer, expected)
    buffer = np.arange(50.0).reshape(10, 5)
    expected = np.einsum("ij,jk->ki", buffer[:5].copy(), buffer[5:].copy())
    gemm.einsum("ij,jk->ki", buffer[:5], buffer[5:], out=buffer[1:6])
    np.testing.assert_array_equal(buffer[1:6], expected)


@pytest.mark.parametrize("dtype", NATIVE)
@pytest.mark.parametrize(
    "subscripts, shapes",
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]), ("ij,jk->ki", [(3, 4), (4, 5)]),
        ("qij,qjk->qik", [(2, 3, 4), (2, 4, 5)]), ("ij,ij->", [(3, 4), (3, 4)]),
        ("i,j->ji", [(3,), (4,)]), ("ij,ij->ij", [(3, 4), (3, 4)]), ("bi,bi->b", [(2, 3), (2, 3)]),
        ("iij,jk->ik", [(3, 3, 4), (4, 2)]), ("ii->", [(3, 3)]), ("ij->j", [(3, 4)]),
        ("ij->ji", [(3, 4)]), ("ij,jk,kl->il", [(2, 3), (3, 2), (2, 3)]),
        ("...i,...i->...", [(2, 3, 4), (3, 4)]), ("abc,cbd,de->ae", [(2, 3, 2), (2, 3, 2), (2, 3)]),
        (",ij->ij", [(), (2, 3)]), ("ij,k->", [(2, 2), (3,)]), ("ij,jk->ik", [(3, 0), (0, 5)]),
    ],
)  # fmt: skip
def test_every_dtype(dtype, subscripts, shapes):
    operands = [small(rng, shape, dtype, 2) for shape in shapes]
    expected = np.einsum(subscripts, *operands)
    for optimize in (False, True):
        result = gemm.einsum(subscripts, *operands, optimize=optimize)
        assert result.dtype == expected.dtype and np.shape(result) == np.shape(expected)
        np.testing.assert_array_equal(result, expected)
    out = poisoned(np.shape(expected), dtype)
    assert gemm.einsum(subscripts, *operands, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_random_expressions():
    """Repeated labels, broadcast axes, reversed and Fortran operands, every output order."""
    choice = random.Random(11)
    letters = "abcdef"
    for _ in range(300):
        size = {letter: choice.randint(1, 4) for letter in letters}
        terms = [
            "".join(choice.choice(letters) for _ in range(choice.randint(0, 4)))
            for _ in range(choice.randint(1, 4))
        ]
        used = sorted(set("".join(terms)))
        output = "".join(choice.sample(used, choice.randint(0, len(used))))
        operands = []
        for term in terms:
            shape = [1 if term.count(x) == 1 and choice.random() < 0.1 else size[x] for x in term]
            x = small(rng, shape, "i8")
            if choice.random() < 0.5:
                x = x.copy(order="F")
            operands.append(x[..., ::-1] if x.ndim and choice.random() < 0.3 else x)
        subscripts = ",".join(terms) + choice.choice([f"->{output}", ""])
        expected = np.einsum(subscripts, *operands)
        result = gemm.einsum(subscripts, *operands, optimize=choice.choice([False, "greedy"]))
        np.testing.assert_array_equal(result, expected, err_msg=subscripts)
        out = poisoned(np.shape(expected), "i8", order=choice.choice("CF"))
        gemm.einsum(subscripts, *operands, out=out)
        np.testing.assert_array_equal(out, expected, err_msg=subscripts)


def test_sublists():
    a, b = small(rng, (2, 3), "i4"), small(rng, (3, 4), "i4")
    np.testing.assert_array_equal(gemm.einsum(a, [0, 1], b, [1, 2], [0, 2]), a @ b)
    np.testing.assert_array_equal(gemm.einsum(a, [0, 1], b, [1, 2]), a @ b)
    np.testing.assert_array_equal(gemm.einsum(a, (np.int8(5), 1), b, [1, 2], (2, 5)), (a @ b).T)
    np.testing.assert_array_equal(gemm.einsum(a, [..., 0], b[:, 1], [0]), a @ b[:, 1])
    for label in (20, 27, 51, 52, 1000):
        np.testing.assert_array_equal(gemm.einsum(a, [0, label], b, [label, 2], [0, 2]), a @ b)
    with pytest.raises(ValueError, match="-1"):
        gemm.einsum(a, [-1, 5], b, [5, 2], [-1, 2])


def test_any_number_of_labels():
    """A chain with 120 labels, which NumPy's alphabet does not hold."""
    matrices = [small(rng, (2, 2), "i8", 1) for _ in range(119)]
    arguments = []
    for i, matrix in enumerate(matrices):
        arguments += [matrix, [i, i + 1]]
    expected = np.linalg.multi_dot([m.astype(object) for m in matrices])
    wrapped = np.array([[int(x) for x in row] for row in expected.tolist()])
    result = gemm.einsum(*arguments, [0, 119])
    np.testing.assert_array_equal(result, wrapped)
    path, text = gemm.einsum_path(*arguments, [0, 119])
    assert path[0] == "einsum_path" and len(path) == 119 and isinstance(text, str)
    np.testing.assert_array_equal(gemm.einsum(*arguments, [0, 119], optimize=path), wrapped)
    a, b = small(rng, (2, 3), "i4"), small(rng, (3, 4), "i4")
    np.testing.assert_array_equal(gemm.einsum("αβ,βγ->αγ", a, b), a @ b)
    np.testing.assert_array_equal(gemm.einsum("αβ->βα", a), a.T)


def test_views_of_one_operand_are_views():
    a = np.arange(9.0).reshape(3, 3)
    diagonal = gemm.einsum("ii->i", a)
    diagonal[:] = -1
    assert (a.diagonal() == -1).all()
    assert np.shares_memory(gemm.einsum("ij->ji", a), a)


@pytest.mark.parametrize("order", ["C", "F", "A", "K", "c"])
def test_order(order):
    a, b = np.ones((2, 3, 4)), np.ones((2, 4, 5))
    for subscripts in ("bij,bjk->bik", "bij,bjk->kbi", "bij,bjk->ibk"):
        result = gemm.einsum(subscripts, a, b, order=order)
        np.testing.assert_array_equal(result, np.einsum(subscripts, a, b))
        if order in "CcA":
            assert result.flags.c_contiguous
        if order == "F":
            assert result.flags.f_contiguous


def test_bits_equal_matmuls():
    a, b = rng.standard_normal((3, 40, 50)), rng.standard_normal((3, 50, 30))
    expected = gemm.matmul(a, b)
    assert gemm.einsum("qij,qjk->qik", a, b).tobytes() == expected.tobytes()
    swapped = gemm.einsum("qij,qjk->kqi", a, b)
    assert np.ascontiguousarray(swapped.transpose(1, 2, 0)).tobytes() == expected.tobytes()
    by_sublist = gemm.einsum(a, [0, 1, 2], b, [0, 2, 3], [0, 1, 3], optimize="optimal")
    assert by_sublist.tobytes() == expected.tobytes()


def test_half_keeps_float32_between_steps():
    a = np.full((1, 64), 64, "f2")
    # 64 * 64 * 64 = 262144 overflows float16 on the way; the result does not.
    result = gemm.einsum("ij,kj,kl->il", a, a, np.full((1, 1), 2.0**-6, "f2"))
    assert result.dtype == np.float16 and result[0, 0] == 4096
    assert gemm.einsum("i->", np.ones(4096, "f2")) == 4096
    np.testing.assert_array_equal(gemm.einsum("ij->j", np.ones((4096, 2), "f2")), [4096, 4096])


def test_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="bfloat16 needs the ml_dtypes package")
    a = np.ones((2, 1024), ml_dtypes.bfloat16)
    for subscripts, operands in (("ij,kj->ik", (a, a)), ("ij->i", (a,)), ("ij->ji", (a,))):
        result = gemm.einsum(subscripts, *operands)
        assert result.dtype == a.dtype
        np.testing.assert_array_equal(
            result.astype("f4"), np.einsum(subscripts, *(x.astype("f4") for x in operands))
        )


@pytest.mark.parametrize(
    "arguments, keywords, kind",
    [
        ((), {}, ValueError),
        (("ij,jk->ik",), {}, ValueError),
        (("ij,jk->ik", np.ones((2, 3))), {}, ValueError),
        (("ij,jk->ik", np.ones((2, 3)), np.ones((4, 2))), {}, ValueError),
        (("ij,jk->iz", np.ones((2, 3)), np.ones((3, 2))), {}, ValueError),
        (("ij,jk->ii", np.ones((2, 3)), np.ones((3, 2))), {}, ValueError),
        (("ij,jk->i->k", np.ones((2, 3)), np.ones((3, 2))), {}, ValueError),
        (("ij,j%->i", np.ones((2, 3)), np.ones((3, 2))), {}, ValueError),
        (("i..j,jk", np.ones((2, 3)), np.ones((3, 2))), {}, ValueError),
        (("iij,jk", np.ones((2, 3, 3)), np.ones((3, 2))), {}, ValueError),
        (("...i,i->i", np.ones((2, 3)), np.ones(3)), {}, ValueError),
        (("ij,jk", np.ones((2, 3)), np.ones((3, 2))), {"parrot": 1}, TypeError),
        (("ij,jk", np.ones((2, 3)), np.ones((3, 2))), {"order": "W"}, ValueError),
        (("ij,jk", np.ones((2, 3)), np.ones((3, 2))), {"out": "text"}, TypeError),
        (("ij,jk", np.ones((2, 3)), np.ones((3, 2))), {"out": np.ones((3, 3))}, ValueError),
        (("ij,jk", np.ones((2, 3)), np.ones((3, 2))), {"optimize": 3.5}, TypeError),
        (("ij,jk,kl", *[np.eye(2)] * 3), {"optimize": "sideways"}, KeyError),
        (("ij,jk,kl", *[np.eye(2)] * 3), {"optimize": ["einsum_path", (0, 7)]}, RuntimeError),
        (("ij,jk,kl", *[np.eye(2)] * 3), {"optimize": ["einsum_path", (0, 1)]}, RuntimeError),
        ((np.eye(2), [0, 1], np.eye(2), "ab"), {}, TypeError),
    ],
)
def test_refusals(arguments, keywords, kind):
    out = keywords.get("out")
    with pytest.raises(kind):
        gemm.einsum(*arguments, **keywords)
    if isinstance(out, np.ndarray):
        assert (out == 1).all()


def test_a_bad_call_is_refused_for_what_numpy_refuses_it_first():
    """Subscripts and shapes before casts."""
    x = np.ones((3, 4))
    for subscripts, keywords in (
        ("ij,jk->il", {"dtype": "f4"}), ("ij,kk", {"dtype": "f4"}), ("ij-k,jk", {"dtype": "f4"}),
        ("ij,kj->ik", {"out": np.ones((2, 2), "f4")}),
    ):  # fmt: skip
        for function in (gemm.einsum, np.einsum):
            with pytest.raises(ValueError):
                function(subscripts, x, x, **keywords)


def test_refusals_print_the_numbers():
    with pytest.raises(ValueError, match=r"'j' has size 4 in operand 1 of shape \(4, 2\), but 3"):
        gemm.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((4, 2)))
    frozen = np.zeros((2, 2))
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        gemm.einsum("ij,jk->ik", np.ones((2, 3)), np.ones((3, 2)), out=frozen)


@pytest.mark.parametrize("dtype", NATIVE)
def test_outer_products(dtype):
    """Nothing is summed: the engine multiplies, as a product of depth 1."""
    for subscripts, shapes in (
        ("i,j->ij", [(3,), (40,)]), ("i,j->ji", [(3,), (4,)]), ("bi,bj->bij", [(7, 3), (7, 5)]),
        ("ij,kl->ikjl", [(2, 3), (4, 5)]), ("bi,bj->ijb", [(2, 3), (2, 4)]), ("i,j", [(0,), (3,)]),
        ("i,jk->jik", [(3,), (2, 4)]), ("ij,ij->ij", [(3, 4), (3, 4)]), (",i->i", [(), (5,)]),
    ):  # fmt: skip
        x, y = (small(rng, shape, dtype, 2) for shape in shapes)
        expected = np.einsum(subscripts, x, y)
        result = gemm.einsum(subscripts, x, y)
        assert result.dtype == dtype
        np.testing.assert_array_equal(result, expected)
        out = poisoned(expected.shape, dtype, "F")
        assert gemm.einsum(subscripts, x, y, out=out) is out
        np.testing.assert_array_equal(out, expected)


def test_outer_products_start_at_plus_zero():
    result = gemm.einsum("i,j->ij", np.array([-1.0, 1.0]), np.array([0.0, -0.0]))
    assert not np.signbit(result).any()


def test_plans_are_made_once():
    a, b = np.ones((3, 5)), np.ones((5, 2))
    gemm.einsum("xy,yz->xz", a, b)
    before = einsum_plan.plan.cache_info()
    for _ in range(5):
        gemm.einsum("xy,yz->xz", a.copy(), b.copy())
    after = einsum_plan.plan.cache_info()
    assert after.misses == before.misses


def test_opt_einsum_is_imported_only_when_there_is_an_order_to_find():
    code = (
        "import sys, numpy as np, gemm\n"
        "x = np.ones((2, 2))\n"
        "gemm.tensordot(x, x); gemm.einsum('ij->j', x)\n"
        "assert 'opt_einsum' not in sys.modules\n"
        "assert gemm.einsum_path('ij,jk', x, x)[0]\n"
        "assert 'opt_einsum' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
