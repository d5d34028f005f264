"""The contract of @gemm.epilogue: what it refuses, and when; what identifies a program."""

import functools
import math
import random
import subprocess
import sys

import numpy as np
import pytest

import gemm
from gemm import engine
from gemm.epilogues.contract import Epilogue
from gemm.epilogues.stock import bias as add_bias
from gemm.microkernels.dtypes import float32

FACTOR = 2.0
TABLE = np.arange(4.0)
STATE = {}


def refused(function, text):
    with pytest.raises(TypeError, match=text):
        gemm.epilogue(function)


def test_side_effects_are_refused_at_definition():
    def writes_global(acc):
        global FACTOR
        FACTOR = 3.0
        return acc

    def writes_element(acc):
        STATE["x"] = acc
        return acc

    def writes_attribute(acc):
        acc.name = "x"
        return acc

    def prints(acc):
        print(acc)
        return acc

    def imports(acc):
        import os  # noqa: F401

        return acc

    def raises(acc):
        raise ValueError(acc)

    def generates(acc):
        yield acc

    count = 0

    def counts(acc):
        nonlocal count
        count = count + 1
        return acc

    refused(writes_global, "assigns a global")
    refused(writes_element, "assigns an element")
    refused(writes_attribute, "assigns an attribute")
    refused(prints, "'print' is a builtin that is no word")
    refused(imports, "imports a module")
    refused(raises, "raises an exception")
    refused(generates, "generator")
    refused(counts, "enclosing function")
    assert count == 0


def test_data_dependent_python_is_refused_at_definition():
    def loops(acc):
        while acc > 1.0:
            acc = acc * 0.5
        return acc

    def counts(acc):
        x = acc
        for _ in range(acc):
            x = x + 1.0
        return x

    def converts(acc):
        return TABLE_OF_THREE[acc]

    refused(loops, "loop whose end depends on data")
    refused(counts, "index")
    refused(lambda acc: float(acc), "'float'")
    refused(lambda acc: acc // 2, "floor division")
    refused(lambda acc: acc**0.3, "exponents")
    refused(lambda acc: acc[0], "element")
    refused(converts, "index")
    refused(lambda acc: acc << 2, "a shift")
    refused(lambda acc: acc ^ 1, "of a value known only")
    refused(lambda acc: acc @ acc, "matrix product")
    refused(lambda acc: 2.0**acc, "a power")
    refused(lambda acc: acc.real, "no attribute 'real'")
    refused(lambda acc: endless(acc), "calls itself")


def endless(x):
    return endless(x)


TABLE_OF_THREE = (1.0, 2.0, 3.0)


def test_what_cannot_be_fingerprinted_is_refused():
    refused(lambda acc: acc + TABLE, "TABLE is ndarray")
    refused(lambda acc: acc * random.random(), "random is module")
    refused(lambda acc: acc + undefined_name, "defined nowhere")  # noqa: F821
    refused(lambda acc: np.exp(acc), "np is module")
    refused(lambda acc: math.gamma(acc), r"math\.gamma is no word")
    refused(functools.partial(max, 0), "plain Python function")


def test_signatures_and_results_are_checked():
    refused(lambda *acc: acc, "operands have names")
    refused(lambda: 1.0, "first parameter")
    refused(lambda acc, acc_odd: acc, "acc_even and acc_odd")
    refused(lambda acc: None, "returns nothing")
    refused(lambda acc: {1: acc}, "outputs have names")
    refused(lambda acc: (acc, acc, acc), "tuple of 3")
    refused(lambda acc: "text", "no number")
    refused(lambda acc, x=(1,): acc, "default of x")
    refused(lambda acc, x=TABLE: acc, "default of x")
    refused(lambda acc: math.exp(acc, 2), r"exp\(\) takes 1")
    refused(lambda acc: gemm.as_type(acc, "U5"), "no type of numbers")
    refused(lambda acc: {"out": gemm.as_type(gemm.per_row(acc), "U5")}, "no type of numbers")
    with pytest.raises(ValueError, match="multiple of 16"):
        gemm.epilogue(lambda acc: {"out": acc, "s": gemm.per_row(acc, "add", 20)})
    with pytest.raises(ValueError, match="combine must be one of"):
        gemm.epilogue(lambda acc: {"out": acc, "s": gemm.per_row(acc, "product")})
    with pytest.raises(TypeError, match="inside an epilogue"):
        gemm.sigmoid(1.0)


def test_operands_are_checked_when_bound_and_when_called():
    a, b = np.ones((4, 3), "f4"), np.ones((3, 6), "f4")
    with pytest.raises(TypeError, match="no operand 'gain'; it has bias"):
        add_bias(gain=1.0)
    with pytest.raises(TypeError, match="operand bias is missing"):
        add_bias()
    with pytest.raises(TypeError, match=r"by name, not place: bias\(bias=...\)"):
        add_bias(np.ones(6))
    drawn = gemm.epilogue(lambda acc, seed: acc * gemm.uniform(seed))
    with pytest.raises(TypeError, match="takes an integer"):
        gemm.matmul(a, b, epilogue=drawn(seed=1.5))
    with pytest.raises(ValueError, match=r"shape \(5,\).*\(6,\).*\(4, 1\).*\(4, 6\)"):
        gemm.matmul(a, b, epilogue=add_bias(bias=np.ones(5)))
    with pytest.raises(ValueError, match=r"a column vector has shape \(4, 1\)"):
        gemm.matmul(a, b, epilogue=add_bias(bias=np.ones(4)))
    with pytest.raises(TypeError, match="dtype"):
        gemm.matmul(a, b, epilogue=add_bias(bias=np.array(["x"] * 6)))
    with pytest.raises(TypeError, match="decorated with @gemm.epilogue"):
        gemm.matmul(a, b, epilogue=lambda acc: acc)
    with pytest.raises(ValueError, match="beyond int32"):
        gemm.matmul(a, b, epilogue=add_bias(bias=np.full(6, 1 << 40)))
    with pytest.raises(TypeError, match="takes no order="):
        gemm.matmul(a, b, epilogue=add_bias(bias=1.0), order="F")
    out = np.zeros((4, 5), "f4")
    with pytest.raises(ValueError, match=r"out for out has shape \(4, 5\)"):
        gemm.matmul(a, b, out, epilogue=add_bias(bias=1.0))
    with pytest.raises(TypeError, match="has no output extra"):
        gemm.matmul(a, b, {"extra": out}, epilogue=add_bias(bias=1.0))
    assert (out == 0).all()


def test_pairs_are_checked():
    swap = gemm.epilogue(lambda acc_even, acc_odd, x: (acc_odd + x, acc_even))
    a, b = np.ones((2, 3), "f4"), np.ones((3, 5), "f4")
    with pytest.raises(ValueError, match="N = 5 is odd"):
        gemm.matmul(a, b, epilogue=swap(x=1.0))
    with pytest.raises(ValueError, match="must unpack it as a pair"):
        gemm.matmul(a, b[:, :4], epilogue=swap(x=np.ones(4)))
    with pytest.raises(ValueError, match="even number of vectors"):
        lanes = engine.unit_of("reference")[0].lanes(float32)
        gemm.matmul(a, b[:, :4], epilogue=swap(x=1.0), kernel=f"reference:2x{lanes}")


def graph(program: Epilogue):
    return program.trace({key: "any" for key in program.operands})[0]


def make(k):
    return gemm.epilogue(lambda acc: acc * k)


def test_a_program_is_its_text_globals_and_closure():
    assert graph(make(2.0)) == graph(make(2.0)) == graph(gemm.epilogue(lambda x: x * FACTOR))
    assert graph(make(2.0)) != graph(make(3.0))
    assert repr(graph(make(0.0))) != repr(graph(make(-0.0)))
    assert graph(gemm.epilogue(lambda acc: max(acc, 0.0))) != graph(
        gemm.epilogue(lambda acc: min(acc, 0.0))
    )


def test_globals_are_read_at_definition():
    scope = {"k": 2.0}
    exec("f = lambda acc: acc * k", scope)
    program = gemm.epilogue(scope["f"])
    scope["k"] = 5.0
    a = np.ones((2, 2), "f4")
    assert (gemm.matmul(a, a, epilogue=program, kernel="reference") == 4.0).all()


def test_conditions_fork_and_join():
    def stairs(acc, limit):
        if acc > limit and not acc == 3.0:
            return 1.0 if acc > 2.0 else 0.5
        return max(acc, -1.0, limit - 1.0)

    program = gemm.epilogue(stairs)
    a = np.array([[-5.0], [0.5], [1.5], [3.0], [4.0]], "f4")
    got = gemm.matmul(a, np.ones((1, 1), "f4"), epilogue=program(limit=1.0), kernel="reference")
    assert got[:, 0].tolist() == [stairs(float(x), 1.0) for x in a[:, 0]]


def test_too_many_paths_are_refused():
    def bushy(acc, a, b, c, d, e, f, g):
        total = acc
        for x in (a, b, c, d, e, f, g):
            total = total + (x if acc > x else 1.0)
        return total

    refused(bushy, "more than 64 paths")


def test_a_program_may_be_written_where_there_is_no_source_file():
    text = (
        "import gemm, numpy as np\n"
        "f = gemm.epilogue(lambda acc, s: max(acc * s, 0.0))\n"
        "a = np.full((1, 1), 2, 'f4')\n"
        "print(gemm.matmul(a, -a, epilogue=f(s=-3.0), kernel='reference').tolist())\n"
    )
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[[12.0]]"


def test_inner_functions_and_optional_operands():
    def twice(x):
        return x * FACTOR

    @gemm.epilogue
    def program(acc, shift=None, gain=1.5):
        x = twice(acc) * gain
        return x if shift is None else x + shift

    a = np.ones((1, 1), "f4")
    run = functools.partial(gemm.matmul, a, a, kernel="reference")
    assert run(epilogue=program).item() == 3.0
    assert run(epilogue=program(shift=4)).item() == 7.0
    assert run(epilogue=program(gain=0.5, shift=None)).item() == 1.0
