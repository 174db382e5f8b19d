"""The examples on the pages about the algorithms run, and print what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "algorithms"


@pytest.mark.parametrize("page", ["inlj", "meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "ssij", "partitionjoin"])
def test_the_example_prints_what_the_page_says(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (PAGES / f"{page}.md").read_text(), re.DOTALL)
    exec(compile(example, f"{page}.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", example, re.MULTILINE)
