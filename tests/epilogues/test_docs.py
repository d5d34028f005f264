"""The pages' examples run as they stand, one page after another from the top."""

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.parametrize("page", ["epilogues.md", "fusing.md"])
def test_examples_run(page):
    text = (PAGES / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 2
    scope = {}
    for block in blocks:
        exec(compile(block, page, "exec"), scope)


def test_the_guide_names_every_word():
    from gemm.epilogues import legal, stock, words

    guide = (PAGES / "epilogues.md").read_text(encoding="utf-8")
    for name in (*legal.MATH, *words.WORDS):
        assert re.search(rf"\b{name}\b", guide), f"docs/epilogues.md does not mention {name}"
    for name in re.search(r"`gemm.epilogues.stock`: (.*?), and", guide, re.DOTALL)[1].split(","):
        assert hasattr(stock, name.strip()), name
