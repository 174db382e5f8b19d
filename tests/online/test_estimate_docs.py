"""The examples of docs/estimate.md and of the README run as they stand."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "estimate.md"


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


def test_the_example_of_the_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(1)
    for name, columns in {
        "orders": {"o_orderkey": np.arange(20_000), "o_orderpriority": random.choice(["1-URGENT", "5-LOW"], 20_000)},
        "lineitem": {
            "l_orderkey": random.integers(0, 20_000, 80_000),
            "l_extendedprice": random.gamma(4, 25, 80_000),
            "l_discount": random.uniform(0, 0.1, 80_000),
        },
    }.items():
        folder = tmp_path / "lake" / name
        folder.mkdir(parents=True)
        pq.write_table(pa.table(columns), folder / "part.parquet")
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (example,) = (code for code in examples if "mr.estimate" in code)
    shown = io.StringIO()
    names = {"__name__": "example", "mr": mr}
    with contextlib.redirect_stdout(shown):
        exec(compile(example, "README.md", "exec"), names)
    names["run"].close()  # type: ignore[attr-defined]
    assert "revenue['1-URGENT'] = " in shown.getvalue()
