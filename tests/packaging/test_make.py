"""What `make` does before it runs anything: a Python that is new enough, and an environment under the right name."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def old_python(path: Path) -> Path:
    """A Python that says that it is 3.10, to any question about its version."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/usr/bin/env python3\nimport sys\nsys.version_info = (3, 10, 14)\nexec(sys.argv[2])\n")
    path.chmod(0o755)
    return path


def ensure(folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    command = [ROOT / "tools" / "ensure-venv", folder, python]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_python_that_is_too_old_is_named_with_what_to_type(tmp_path: Path) -> None:
    python = old_python(tmp_path / "python3")
    done = ensure(tmp_path / "env", str(python))
    assert done.returncode == 1
    assert done.stderr == (
        f"millrace needs Python 3.11 or newer, and '{python}' is 3.10. Name another: make PYTHON=python3.11 ...\n"
    )
    assert not (tmp_path / "env").exists()
    assert "There is no 'python-of-nobody'. Install Python 3.11" in ensure(tmp_path / "env", "python-of-nobody").stderr


def test_an_environment_of_an_older_python_is_named_with_what_to_type(tmp_path: Path) -> None:
    old_python(tmp_path / "env" / "bin" / "python")
    done = ensure(tmp_path / "env", "python3")
    assert done.returncode == 1
    assert f"{tmp_path / 'env'} was made with Python 3.10" in done.stderr
    assert f"rm -rf {tmp_path / 'env'}" in done.stderr


@pytest.mark.slow
def test_an_environment_with_the_name_of_before_is_made_clean(tmp_path: Path) -> None:
    """Earlier checkouts were installed in place under the name `millrace`."""
    for name in ("pyproject.toml", "Makefile", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "tools", tmp_path / "tools")
    (tmp_path / "src" / "millrace").mkdir(parents=True)
    shutil.copy(ROOT / "src" / "millrace" / "__init__.py", tmp_path / "src" / "millrace")
    venv.create(tmp_path / ".venv", with_pip=True)
    python = str(tmp_path / ".venv" / "bin" / "python")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: str) -> str:
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    project = (tmp_path / "pyproject.toml").read_text()
    now = re.sub(r"\ndependencies = \[.*?\n\]", "\ndependencies = []", project, flags=re.DOTALL)  # they are not what is tested
    (tmp_path / "pyproject.toml").write_text(now.replace('name = "millrace-spark"', 'name = "millrace"'))
    run(python, "-m", "pip", "install", "--quiet", "-e", ".")
    (tmp_path / "pyproject.toml").write_text(now)
    run("make", ".venv/.installed-dashboard")

    names = run(python, "-m", "pip", "list", "--format=freeze")
    assert "millrace-spark==" in names
    assert "millrace==" not in names
    assert "millrace = " in (next((tmp_path / ".venv").rglob("millrace_spark-*.dist-info")) / "entry_points.txt").read_text()
    assert (tmp_path / ".venv" / "bin" / "millrace").exists()
    found = run(python, "-c", "import millrace; print(millrace.__file__)").strip()
    assert found == str(tmp_path / "src" / "millrace" / "__init__.py")
    assert run("make", ".venv/.installed-dashboard").strip().endswith("is up to date.")
