"""Cases as data: what a line means, how it is refused; the table covers what it promises."""

import pytest

from gemm.perf import cases
from gemm.perf.cases import CaseError, parse

ALL = parse(cases.TABLE)


def test_every_case_is_its_own_line_and_name():
    assert all(parse(case.line) == [case] for case in ALL)
    assert len({case.name for case in ALL}) == len(ALL)


def test_table_covers_the_promised_classes():
    assert {case.family for case in ALL} >= {
        "square", "small", "batched", "vector", "skinny", "strided", "transformer",
        "epilogue", "resnet50", "mobilenetv2", "gpu", "process",
    }  # fmt: skip
    assert {case.a for case in ALL} >= set("int8 int16 int32 int64 bool float16 bfloat16".split())
    assert {case.a + case.b for case in ALL if case.c == "int32"} >= {
        "int8int8", "int8uint8", "uint8int8", "uint8uint8",
    }  # fmt: skip
    assert {case.threads for case in ALL} == {1, 2}


def test_alternatives_expand_to_all_combinations():
    assert len(parse("f matmul 8,16 float32,float64 threads=1,2")) == 8
    assert parse("# only a comment\n\n") == []


def test_counts_of_work_and_traffic():
    (product,) = parse("f matmul 2x3x5 float32 batch=7")
    assert product.flops == 2 * 2 * 3 * 5 * 7
    assert product.bytes == 4 * 7 * (2 * 5 + 5 * 3 + 2 * 3)
    assert parse("f matmul 2x3x5 complex64")[0].flops == 8 * 2 * 3 * 5
    assert parse("f matmul 2x3x5 int8->int32")[0].bytes == 10 + 15 + 4 * 6
    (conv,) = parse("f conv2d 1x4x8x8*6x3x3 float32 stride=2 padding=1 groups=2")
    assert conv.output_hw == (4, 4)
    assert conv.flops == 2 * 16 * 6 * 2 * 9


def test_tiny_keeps_the_kind_and_bounds_the_work():
    for case in ALL:
        tiny = case.tiny()
        assert (tiny.operation, tiny.dtype, tiny.layout, tiny.order) == (
            case.operation, case.dtype, case.layout, case.order,
        )  # fmt: skip
        assert tiny.flops < 1e6
        assert parse(tiny.line) == [tiny]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("f matmul 8", "at least"),
        ("f product 8 float32", "'product'"),
        ("f matmul 8x8 float32", "'8x8'"),
        ("f matmul 8x0x8 float32", "below 1"),
        ("f matmul 8 float33", "'float33'"),
        ("f matmul 8 float32 threads=0", "threads=0"),
        ("f matmul 8 float32 layout=XX", "layout=XX"),
        ("f matmul 8 float32 speed=9", "'speed'"),
        ("f matmul 8 float32 fast", "option=value"),
        ("f conv2d 1x3x8x8*4x3x3 float32 groups=2", "groups=2"),
        ("f conv2d 1x3x2x2*4x3x3 float32", "exceeds"),
        ("f conv2d 8 float32", "NxCxHxW*OxKHxKW"),
    ],
)
def test_bad_lines_are_refused_with_source_line_and_value(line, words):
    with pytest.raises(CaseError, match="mine, line 2") as refused:
        parse("# mine\n" + line, "mine")
    assert words in str(refused.value)


def test_a_users_file_and_selection(tmp_path):
    file = tmp_path / "mine.txt"
    file.write_text(
        "llm matmul 1x4096x4096 bfloat16 cache=memory  # decode\nllm matmul 8 float32\n"
    )
    mine = cases.read(file)
    assert [case.family for case in mine] == ["llm", "llm"]
    assert cases.select(mine, match="bfloat16") == mine[:1]
    assert cases.select(ALL, families=["small"], threads=[2]) == []
    assert all(case.flops <= cases.LARGEST for case in cases.affordable(ALL) if case.unit == "s")
