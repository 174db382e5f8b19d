"""Checks of `millrace doctor`, each made to find something."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from millrace.cli import doctor, machine, software
from millrace.cli.findings import Finding, Status


def java(tmp_path: Path, banner: str) -> str:
    """A JAVA_HOME whose java says this."""
    command = tmp_path / "bin" / "java"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    command.chmod(0o755)
    return str(tmp_path)


@pytest.mark.parametrize(
    ("banner", "status"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "ok"),
        ('openjdk version "21" 2023-09-19', "ok"),
        ('openjdk version "25.0.1" 2025-10-21', "warn"),
        ('openjdk version "11.0.2" 2019-01-15', "fail"),
        ('java version "1.8.0_402"', "fail"),
        ("what is that", "fail"),
    ],
)
def test_java_must_be_17_or_21(banner: str, status: Status, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", java(tmp_path, banner))
    (finding,) = software.check_java()
    assert finding.status == status
    assert "from JAVA_HOME" in finding.found
    assert (finding.advice == "") == (status == "ok")


def test_a_java_that_is_not_there_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert "does not start" in software.check_java()[0].found
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    (finding,) = software.check_java()
    assert (finding.status, "install Java 17 or 21" in finding.advice) == ("fail", True)


def test_python_packages_and_kernels_of_this_environment_are_fine() -> None:
    findings = [*software.check_python(), *software.check_packages(), *software.check_kernels()]
    assert [finding.name for finding in findings] == ["python", "pyspark", "pyarrow", "numba", "pandas", "kernels"]
    assert {finding.status for finding in findings} == {"ok"}


def test_a_missing_or_old_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "LEAST_VERSIONS", {"no-such-package": (1, 0), "pyarrow": (999, 0)})
    missing, old = software.check_packages()
    assert (missing.status, missing.advice) == ("fail", "pip install 'no-such-package>=1.0'")
    assert (old.status, old.advice) == ("fail", "pip install 'pyarrow>=999.0'")


def test_another_product_of_the_same_name_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "millrace-0.0.1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: millrace\nVersion: 0.0.1\n")
    (about / "RECORD").write_text("millrace/__init__.py,,\n")
    monkeypatch.syspath_prepend(tmp_path)
    finding = software.check_packages()[-1]
    assert (finding.name, finding.status) == ("millrace", "fail")
    assert "'millrace' 0.0.1 is another product" in finding.found
    assert finding.advice.startswith("pip uninstall millrace && ")


def test_the_python_of_workers_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.worker_problem(sys.executable) is None
    assert software.worker_problem(str(tmp_path / "python")) == "does not start"
    other = tmp_path / "python"
    other.write_text("#!/bin/sh\necho 3.6.1\n")
    other.chmod(0o755)
    assert str(software.worker_problem(str(other))).startswith("is Python 3.6.1, while this is")
    monkeypatch.setenv("PYSPARK_PYTHON", str(other))
    (finding,) = software.check_workers()
    assert finding.status == "fail"
    assert f"export PYSPARK_PYTHON={sys.executable}" in finding.advice
    other.rename(tmp_path / "python3")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("PYSPARK_PYTHON")
    (finding,) = software.check_workers()
    assert finding.status == "note"
    assert "with a local master, enrich and build give workers this Python by themselves" in finding.found
    for words in ("on a cluster", "for Python UDFs that run before", f"export PYSPARK_PYTHON={sys.executable}"):
        assert words in finding.advice


def test_the_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    space, direct, speed = machine.check_disk(tmp_path)
    assert space.values["free_bytes"] > 0
    assert direct.values["works"] in (True, False)
    assert speed.values["random_page_ms"] > 0
    assert speed.values["sequential_mb_per_second"] > 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_fails(tmp_path: Path) -> None:
    (finding,) = machine.check_disk(tmp_path / "nowhere")
    assert (finding.status, finding.advice) == ("fail", "give another --folder")


def test_limits_on_memory_are_remarked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda number: (4 << 30, 4 << 30))
    assert [(finding.name, finding.status, finding.found) for finding in machine.check_limits()] == [
        ("RLIMIT_AS", "warn", "4.0 GiB"),
        ("RLIMIT_DATA", "warn", "4.0 GiB"),
    ]
    assert machine.check_memory()[0].values["total_bytes"] > 0


def finds(name: str, status: Status) -> Callable[..., list[Finding]]:
    return lambda *_: [Finding(name, status, "this", "do that" if status != "ok" else "")]


def test_a_failure_is_shown_with_advice_and_spark_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> list[Finding]:
        raise AssertionError("Spark was started without Java")

    monkeypatch.setattr(doctor, "check_java", finds("java", "fail"))
    monkeypatch.setattr(doctor, "check_disk", finds("disk", "warn"))
    monkeypatch.setattr(doctor, "check_spark_job", forbidden)
    console = Console(width=200, record=True)
    assert not doctor.run_doctor(tmp_path, as_json=False, console=console)
    lines = console.export_text().splitlines()
    assert "fail  java            this" in lines
    assert any(line.strip() == "-> do that" for line in lines)
    assert "2 of " in lines[-1]
