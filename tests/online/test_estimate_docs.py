"""The example of docs/estimate.md runs as it stands."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "estimate.md"


def test_the_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    text = shown.getvalue()
    assert "% read: " in text
    assert "exact" in text
    assert "revenue['high'] = " in text
    assert "Held(" in text
