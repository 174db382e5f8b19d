"""The page on load shedding: its code runs, and prints what it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.run_pages import blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "shedding.md"


def test_the_code_of_the_page_runs_and_prints_what_it_shows(tmp_path: Path) -> None:
    code = "\n".join(code for _, code in blocks(PAGE))
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert f"```\n{done.stdout}```" in PAGE.read_text()
