"""What `import millrace as mr` gives: its public names, and what it says of others."""

from __future__ import annotations

import pydoc
import subprocess
import sys
from pathlib import Path

import pytest

import millrace as mr

ROOT = Path(__file__).parents[1]
WITHOUT_SPARK = "import sys; sys.modules['pyspark'] = None\nimport millrace as mr\n"


def test_completion_shows_the_public_names_and_nothing_else() -> None:
    shown = [name for name in dir(mr) if not name.startswith("__")]
    assert shown == [name for name in mr.__all__ if name != "__version__"]
    assert {"__version__", "__doc__", "__file__"} <= set(dir(mr))


def test_every_public_name_is_there_and_explains_itself() -> None:
    everything: dict[str, object] = {}
    exec("from millrace import *", everything)
    for name in mr.__all__:
        assert everything[name] is getattr(mr, name)
        assert name == "__version__" or (getattr(mr, name).__doc__ or "").strip(), name
    assert "Join `stream` with `table`" in pydoc.render_doc(mr.enrich)
    assert "MasterTable" in pydoc.render_doc(mr)


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("enrch", "; did you mean enrich?"),
        ("Enrich", "; did you mean enrich?"),
        ("MasterTabel", "; did you mean MasterTable?"),
        ("sum", "; did you mean sum_?"),
        ("nothing_like_it", ""),
    ],
)
def test_a_name_that_is_not_there_gets_a_hint(wrong: str, hint: str) -> None:
    with pytest.raises(AttributeError) as said:
        getattr(mr, wrong)
    assert str(said.value) == f"module 'millrace' has no attribute {wrong!r}{hint}"
    assert not hasattr(mr, wrong)


def test_errors_can_be_caught_by_their_root() -> None:
    with pytest.raises(mr.MillraceError, match="there is no Parquet folder"):
        mr.estimate("nowhere", "nowhere", on="k", n=mr.count())


def _without_spark(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT_SPARK + program], capture_output=True, text=True, check=False)


def test_without_spark_the_rest_can_be_used_and_listed() -> None:
    done = _without_spark(
        "import pydoc; pydoc.render_doc(mr); print(*dir(mr)); mr.estimate, mr.between, mr.sum_, mr.MillraceError"
    )
    assert done.returncode == 0, done.stderr
    shown = done.stdout.split()
    assert {"estimate", "between", "__version__"} <= set(shown)
    assert not {"enrich", "MasterTable", "reports"} & set(shown)


@pytest.mark.parametrize("program", ["mr.enrich", "from millrace import MasterTable", "from millrace import *"])
def test_without_spark_what_needs_it_says_what_to_install(program: str) -> None:
    done = _without_spark(program)
    assert done.returncode == 1
    assert "needs Spark: pip install 'millrace-spark[spark]'" in done.stderr.splitlines()[-1]


def test_the_version_is_that_of_the_project() -> None:
    assert f'\nversion = "{mr.__version__}"\n' in (ROOT / "pyproject.toml").read_text()
