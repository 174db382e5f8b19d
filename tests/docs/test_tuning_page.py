"""The examples of the pages about tuning run, and print what the pages say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def example_of(page: str) -> str:
    (example,) = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    return str(example)


def test_the_example_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    example = example_of("tuning.md")
    exec(compile(example, "tuning.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"^# (.*)$", example, re.MULTILINE)


def test_settings_follow_the_stream_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(example_of("dynamic-tuning.md"), "dynamic-tuning.md", "exec"), {})
    printed = capsys.readouterr().out
    assert printed.startswith("800000 ")
    assert "sweepjoin() -> csweepjoin(): csweepjoin promises" in printed
