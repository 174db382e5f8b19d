"""README, guide and production page: code runs, output is what is shown, links and commands exist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.run_pages import blocks
from typer.testing import CliRunner

from millrace.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.spark
def test_the_code_of_the_pages_runs_and_gives_what_they_show(tmp_path: Path) -> None:
    """In a process of its own, in an empty folder, without a session that somebody has set up."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["JAVA_TOOL_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a JVM that lives for seconds
    command = [sys.executable, str(ROOT / "tests" / "docs" / "run_pages.py"), str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-5000:]
    shown = done.stdout[: done.stdout.index("\n\n")]
    assert shown.startswith("+---")
    assert f"```\n{shown}\n```" in (ROOT / "README.md").read_text()

    made = json.loads((tmp_path / "rows.json").read_text())
    assert [row[-2:] for row in made["README"]["enriched"]] == [["2.5", "NZ"], ["0.75", "DE"], ["None", "None"]]
    guide = made["guide"]
    assert [row[-1] for row in guide["enriched"]] == ["2.5", "0.75", "None"]
    assert guide["clicked"] == [["150", "DE"], ["5", "NZ"]]
    assert [(row[0], row[-1]) for row in guide["priced"]] == [("10", "2.0")]
    assert guide["placed"] == [["1.25", "north"]]
    assert guide["known"] == [["Jane Smyth", "5"]]
    assert guide["rated"] == [["4.0", "A", "5.0", "A", "3.5"]]
    assert guide["report"] == [["3"]]
    assert [key for key, _ in made["production"]["messages"]] == ["10", "11", "12"]
    assert json.loads(made["production"]["messages"][0][1])["price"] == 2.5
    assert re.search(r"batch 0: 33 % of the keys are not in products", done.stderr)  # said by the listener


def test_only_kafka_is_left_out() -> None:
    left_out = [code for page in PAGES for is_run, code in blocks(page) if not is_run and "mr.estimate(" not in code]
    assert len(left_out) == 2
    assert all('format("kafka")' in code for code in left_out)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(found), f"{page.name}: {target}"


def anchors(page: Path) -> set[str]:
    """Headings as GitHub links to them."""
    headings = re.findall(r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_list_of_commands_is_that_of_the_program() -> None:
    listed = re.findall(r"^\| `millrace ([a-z]+(?: [a-z-]+)?)", (ROOT / "docs" / "guide.md").read_text(), re.MULTILINE)
    bench = {f"bench {name}" for name in commands("bench")}
    assert set(listed) == {*commands(), *bench} - {"bench"}


def commands(*group: str) -> list[str]:
    shown = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "160", "NO_COLOR": "1", "TERM": "dumb"}).output
    return re.findall(r"^│ ([a-z][a-z-]+) ", shown[shown.index("─ Commands ") :], re.MULTILINE)


def test_the_readme_is_short_and_shows_code_at_once() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()) < 950
    assert len(text[: text.index("```python")].split()) < 80
