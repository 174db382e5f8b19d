"""What `pip install` gives: the wheel's name, what it asks for, its files, and that it runs without the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

from millrace import __version__

ROOT = Path(__file__).resolve().parents[2]
ENRICH = """
from pyspark.sql import SparkSession

import millrace as mr

spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
products = spark.createDataFrame([(1, "one"), (2, "two")], "id long, name string")
table = mr.MasterTable.build(products, key="id", path="products")
stream = spark.createDataFrame([(2,), (1,), (3,), (None,)], "id long")
rows = mr.enrich(stream, table, on="id", how="left", memory="64m").collect()
print(sorted((str(row.id), str(row.name)) for row in rows))
print(mr.__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (built,) = folder.iterdir()
    return built


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def test_the_distribution_has_a_name_of_its_own_and_the_version_of_the_package(wheel: Path) -> None:
    about = metadata(wheel)
    assert wheel.name == f"millrace_spark-{__version__}-py3-none-any.whl"
    assert (about["Name"], about["Version"], about["Requires-Python"]) == ("millrace-spark", __version__, ">=3.11")


def test_nothing_asks_for_the_distribution_of_somebody_else(wheel: Path) -> None:
    asked = [re.split(r"[^\w.-]", line)[0] for line in metadata(wheel).get_all("Requires-Dist", [])]
    assert "pyarrow" in asked
    assert "rapidfuzz" in asked  # of an extra that the extra dev names by the name of the distribution
    assert "millrace" not in asked
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md"), ROOT / "Makefile"]
    wrong = re.compile(r"\bmillrace\[|pip3? install[^\n`]*\bmillrace\b(?!-spark)")
    assert [str(path) for path in texts if wrong.search(path.read_text())] == []


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        files = {name for name in archive.namelist() if ".dist-info/" not in name}
        (scripts,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        assert "millrace = millrace.cli.app:main" in archive.read(scripts).decode()
    source = ROOT / "src"
    wanted = {str(path.relative_to(source)) for path in (source / "millrace").rglob("*.py")}
    assert files == wanted | {"millrace/py.typed"}


def test_the_python_that_is_asked_for_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["requires-python"] == ">=3.11"
    assert project["tool"]["ruff"]["target-version"] == "py311"
    listed = [line.rpartition(" ")[2] for line in project["project"]["classifiers"] if ":: Python :: 3." in line]
    assert min(int(version.partition(".")[2]) for version in listed) == 11
    assert "\nleast=3.11\n" in (ROOT / "tools" / "ensure-venv").read_text()
    for name in ("README.md", "CONTRIBUTING.md"):
        assert set(re.findall(r"Python (3\.\d+)", (ROOT / name).read_text())) == {"3.11"}


@pytest.mark.slow
@pytest.mark.spark
def test_the_wheel_runs_in_an_empty_environment_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    """Everything comes from the package index, as for somebody who has never seen the checkout."""
    environment, work = tmp_path / "environment", tmp_path / "work"
    work.mkdir()
    venv.create(environment, with_pip=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "MILLRACE"))}
    clean |= {"PATH": f"{environment / 'bin'}:{os.environ['PATH']}", "COLUMNS": "160"}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=work, env=clean, capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[spark]")
    run("python", "-m", "pip", "check")
    assert "doctor" in run("millrace", "--help")
    assert "millrace works here" in run("millrace", "doctor")
    rows, file = run("python", "-c", ENRICH).splitlines()
    assert rows == "[('1', 'one'), ('2', 'two'), ('3', 'None'), ('None', 'None')]"
    assert Path(file).is_relative_to(environment)
