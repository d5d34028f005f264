"""`python -m gemm` and its commands: right output, one clear line and code 2 for bad input."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gemm
from gemm import slices
from gemm.__main__ import main
from gemm.backends import kernel_cache
from gemm.backends.cpu import kernels
from gemm.commands import report

from .oracle import RUNNABLE, random, same_bits


def command(*arguments, code=0, **environment):
    """A fresh process, whose OpenBLAS nothing steers; stdout and stderr."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("OPENBLAS_")}
    done = subprocess.run(
        [sys.executable, "-m", "gemm", *map(str, arguments)],
        env={**inherited, **environment}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    return done.stdout, done.stderr


# -- the main job --------------------------------------------------------------------------------


def test_the_main_job():
    stdout, _ = command(
        "--size", "64", "--dtype", "float32", "--dtype", "float64", "--repeats", "1"
    )
    for words in ("CPU:", "instruction sets:", "caches: L1", "threads:", "GPU:", "why: tile"):
        assert words in stdout
    for dtype in ("float32", "float64"):
        (row,) = (line for line in stdout.splitlines() if line.startswith(f"{dtype} "))
        name, n, ours, theirs, ratio, share, *verdict = row.split()
        assert n == "64" and float(ours) > 0 and float(theirs) > 0 and float(ratio) > 0
        assert share.endswith("%") and " ".join(verdict).startswith("within 0.")


def test_a_wrong_result_is_found_and_decides_the_exit_code(monkeypatch, capsys):
    original = gemm.matmul

    def wrong(a, b, out=None):
        original(a, b, out=out)
        out[3, 5] += out.dtype.type(1)
        return out

    monkeypatch.setattr(gemm, "matmul", wrong)
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.delenv("OPENBLAS_L2_SIZE", raising=False)
    assert main(["--size", "16", "--dtype", "float64", "--repeats", "1"]) == 1
    assert "WRONG" in capsys.readouterr().out


@pytest.mark.parametrize("name", report._supported())
def test_the_check_sees_one_unit_too_much(name):
    """The comparison of the main job, for every dtype: a right result passes, a wrong one fails."""
    dtype = report.DTYPES[name]
    rng = np.random.default_rng(0)
    a, b = (report._values(rng, (12, 12), dtype) for _ in range(2))
    out = gemm.matmul(a, b, kernel="reference")
    assert report._check(dtype, a, b, out)[0], name
    out[0, 0] = out[0, 0] ^ out.dtype.type(1) if dtype.kind in "iub" else out[0, 0].real + 3
    assert not report._check(dtype, a, b, out)[0], name


def test_variables_that_slow_numpy_down_are_unset_and_named():
    stdout, _ = command(
        "--size", "32", "--dtype", "float32", "--repeats", "1", OPENBLAS_CORETYPE="Prescott"
    )  # fmt: skip
    assert "OPENBLAS_CORETYPE=Prescott was set and is unset for this run" in stdout
    assert "openblas Prescott" not in stdout


@pytest.mark.parametrize(
    "arguments", [("--size", "0"), ("--dtype", "float99"), ("--threads", "-1"), ("--repeats", "0")]
)
def test_bad_options(arguments, capsys):
    assert main(list(arguments)) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1 and captured.out == ""


# -- multiply ------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path):
    def save(name, array):
        np.save(tmp_path / name, array)
        return str(tmp_path / name)

    return save


@pytest.mark.parametrize(
    "dtype",
    ["float32", "float64", "float16", "complex64", "int8", "int64", "uint16", "bool", ">f8"],
)
def test_multiply(files, tmp_path, dtype):
    a = (random((9, 7), "float64") * 4).astype(dtype)
    b = (random((7, 5), "float64", 1) * 4).astype(dtype)
    out = tmp_path / "c.npy"
    assert main(["multiply", files("a.npy", a), files("b.npy", b), "-o", str(out)]) == 0
    got = np.load(out)
    assert same_bits(got, gemm.matmul(a, b))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "b.npy", "c.npy"]


@pytest.mark.parametrize(
    ("a", "b"),
    [((7,), (7,)), ((3, 7), (7,)), ((7,), (7, 3)), ((2, 1, 3, 7), (4, 7, 5)), ((0, 7), (7, 3)),
     ((3, 0), (0, 4))],
)  # fmt: skip
def test_multiply_shapes_and_orders(files, tmp_path, a, b):
    x, y = np.asfortranarray(random(a, "float64")), random(b, "float64", 1)
    out = tmp_path / "c.npy"
    assert main(["multiply", files("a.npy", x), files("b.npy", y), "-o", str(out)]) == 0
    assert same_bits(np.load(out), np.asarray(gemm.matmul(x, y)))


def test_multiply_in_pieces_with_progress(files, tmp_path, monkeypatch, capsys):
    for name, value in (("LONG", 1 << 12), ("ROWS", 10), ("COLUMNS", 20)):
        monkeypatch.setattr(slices, name, value)
    a, b = random((65, 30), "float64"), random((30, 70), "float64", 1)
    out = tmp_path / "c.npy"
    arguments = ["multiply", files("a.npy", a), files("b.npy", b), "-o", str(out), "--progress"]
    assert main(arguments) == 0
    shown = capsys.readouterr().err
    assert shown.count("\r") >= 2 and "100%" in shown  # drawn at most every so often
    assert same_bits(np.load(out), gemm.matmul(a, b))


def test_multiply_raw_bytes_with_a_named_type(files, tmp_path):
    import ml_dtypes

    a = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    name, out = files("a.npy", a), str(tmp_path / "c.npy")
    b = files("b.npy", np.ascontiguousarray(a.T))
    assert main(["multiply", name, b, "-o", out, "--dtype", "bfloat16"]) == 0
    got = np.load(out).view(ml_dtypes.bfloat16).astype(float)
    assert got.tolist() == [[5, 14], [14, 50]]


def _text(path):
    path.write_text("not an array")
    return str(path)


def _pickle(path):
    np.save(path, np.array([{"a": 1}], object), allow_pickle=True)
    return str(path)


def _truncated(path):
    np.save(path, np.ones((50, 4)))
    path.write_bytes(path.read_bytes()[:300])
    return str(path)


def _archive(path):
    np.savez(path, np.ones((4, 4)))
    return f"{path}.npz"


BAD = {
    "missing": (lambda p: str(p), "No such file"),
    "a folder": (lambda p: str(p.parent), "Is a directory"),
    "text": (_text, "not an .npy file"),
    "empty": (lambda p: (p.touch(), str(p))[1], "not an .npy file"),
    "pickled objects": (_pickle, "not an .npy file"),
    "truncated": (_truncated, "not an .npy file"),
    "archive": (_archive, "archive of arrays"),
    "other shape": (lambda p: (np.save(p, np.ones((5, 4))), str(p))[1], "4 columns, 4 rows"),
    "strings": (lambda p: (np.save(p, np.array([["a"] * 4] * 4)), str(p))[1], "not supported"),
    "dates": (lambda p: (np.save(p, np.zeros((4, 4), "M8[s]")), str(p))[1], "no common type"),
    "scalar": (lambda p: (np.save(p, np.float64(3)), str(p))[1], "needs matrices"),
    "batches": (lambda p: (np.save(p, np.ones((3, 4, 4))), str(p))[1], "batch shapes"),
    "raw bytes": (lambda p: (np.save(p, np.zeros((4, 4), "V2")), str(p))[1], "--dtype"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_file_gets_one_line_and_leaves_nothing(kind, tmp_path, capsys):
    make, message = BAD[kind]
    good = tmp_path / "good.npy"
    np.save(good, np.ones((2, 4, 4)))
    name = make(tmp_path / "bad.npy")
    if kind == "other shape":
        message = "4 columns, 5 rows"
    before = sorted(p.name for p in tmp_path.iterdir())
    assert main(["multiply", str(good), name, "-o", str(tmp_path / "out.npy")]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and len(captured.err.splitlines()) == 1 and not captured.out
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_a_bad_output_leaves_nothing(files, tmp_path, capsys):
    name = files("a.npy", np.ones((3, 3)))
    for output, message in ((tmp_path / "no" / "c.npy", "no folder"), (tmp_path, "is a folder")):
        assert main(["multiply", name, name, "-o", str(output)]) == 2
        assert message in capsys.readouterr().err
    assert main(["multiply", name, name, "-o", str(tmp_path / "c.npy"), "--threads", "0"]) == 2


def test_a_failure_in_the_middle_keeps_the_old_result(files, tmp_path, monkeypatch):
    name, out = files("a.npy", np.ones((3, 3))), tmp_path / "c.npy"
    out.write_bytes(b"the old one")

    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(gemm, "matmul", interrupted)
    assert main(["multiply", name, name, "-o", str(out)]) == 130
    assert out.read_bytes() == b"the old one"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npy", "c.npy"]


def test_the_output_may_be_an_operand(files, tmp_path):
    a = random((6, 6), "float64")
    name = files("a.npy", a)
    assert main(["multiply", name, name, "-o", name]) == 0
    assert same_bits(np.load(name), gemm.matmul(a, a))


# -- warm and cache ------------------------------------------------------------------------------


@pytest.fixture
def nothing_compiles(monkeypatch):
    """The compiler is replaced: which kernels are asked for is what these tests are about."""
    made = []

    def compile_kernel(level, build, entry="table"):
        function, _ = build()
        made.append((level.name, function.label))
        return b"object code"

    monkeypatch.setattr(kernels, "compile_kernel", compile_kernel)
    return made


def test_warm_and_cache(tmp_path, monkeypatch, capsys, nothing_compiles):
    monkeypatch.setenv("GEMM_CACHE_DIR", str(tmp_path / "kernels"))
    assert main(["warm", "--dtype", "float64"]) == 0
    assert {name for name, _ in nothing_compiles} == set(RUNNABLE)
    families = {label.split()[0] for _, label in nothing_compiles}
    assert families >= {"small", "blocked", "direct", "skinny", "door", "team"}
    count = len(nothing_compiles)
    assert len(kernel_cache.entries()) == count
    assert main(["warm", "--dtype", "float64"]) == 0
    assert len(nothing_compiles) == count
    capsys.readouterr()
    assert main(["cache"]) == 0
    assert f"{count} kernels" in capsys.readouterr().out
    assert main(["cache", "--clear"]) == 0
    assert f"{count} kernels removed" in capsys.readouterr().out
    assert kernel_cache.entries() == []


def test_warm_for_other_machines_into_a_folder(tmp_path, nothing_compiles):
    folder = tmp_path / "shipped"
    levels = ["--level", "avx512", "--level", "neon"]
    assert main(["warm", *levels, "--dtype", "float32", "--into", str(folder)]) == 0
    assert {name for name, _ in nothing_compiles} == {"avx512", "neon"}
    assert len(list(folder.iterdir())) == len(nothing_compiles)


def test_warm_and_cache_refuse_what_they_cannot_do(tmp_path, monkeypatch, capsys):
    assert main(["warm", "--level", "pentium"]) == 2
    assert "'pentium' is not one of" in capsys.readouterr().err
    assert main(["warm", "--dtype", "float99"]) == 2
    monkeypatch.setenv("GEMM_CACHE_DIR", "")
    assert main(["warm"]) == 2
    assert "turned off" in capsys.readouterr().err
    assert main(["cache"]) == 0
    assert "turned off" in capsys.readouterr().out


def test_help_and_unknown_commands():
    stdout, _ = command("--help")
    assert "multiply" in stdout and "warm" in stdout
    _, stderr = command("divide", code=2)
    assert "invalid choice" in stderr
