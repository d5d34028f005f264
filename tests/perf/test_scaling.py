"""The table of scaling: a row for each size and thread count, and other bits are an error."""

import numpy as np

import gemm
from gemm.perf.scaling import main

TINY = "--sizes 96 64 --threads 2 1 --dtypes float32 --seconds 0.1".split()


def table(capsys):
    return [line.split() for line in capsys.readouterr().out.splitlines() if "float32" in line]


def test_a_row_for_each_size_and_thread_count(capsys):
    with gemm.num_threads(1):
        assert main(TINY) == 0
    found = table(capsys)
    assert [row[1:3] for row in found] == [["64", "1"], ["64", "2"], ["96", "1"], ["96", "2"]]
    assert found[0][4] == found[2][4] == "1.00"


def test_what_would_take_too_long_is_left_out(capsys):
    with gemm.num_threads(1):
        assert main([*TINY[:-1], "0", "--threads", "1"]) == 0
    assert "left out" in " ".join(table(capsys)[1])


def test_other_bits_are_an_error(monkeypatch, capsys):
    plain = gemm.matmul

    def other(a, b, out=None, **options):
        out = plain(a, b, out=out, **options)
        if gemm.get_num_threads() == 2 and not options:
            out[5, 7] = np.nextafter(out[5, 7], np.float32(9))
        return out

    monkeypatch.setattr(gemm, "matmul", other)
    with gemm.num_threads(1):
        assert main(TINY) == 1
    assert "OTHER BITS" in " ".join(table(capsys)[1])
