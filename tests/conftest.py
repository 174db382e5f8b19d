"""How the tests run: which of them share a process, the same random examples every time, and no calibration of this machine.

`make test` has two processes. All tests that need Spark run in one of them, so that there is one JVM; the others run beside.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

from millrace.core.calibration import FOLDER_VARIABLE

settings.register_profile(  # the same examples in every run, so that a failure is one everywhere
    "fixed",
    derandomize=True,
    deadline=None,
    max_examples=80,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(  # HYPOTHESIS_PROFILE=search: many others
    "search",
    settings.get_profile("fixed"),
    derandomize=False,
    max_examples=1_500,
    print_blob=True,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


@pytest.fixture(scope="session", autouse=True)
def no_calibration(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What somebody measured on this machine must not change what tests see, and tests must not change it."""
    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = str(tmp_path_factory.mktemp("calibration"))
    yield
    if before is None:
        del os.environ[FOLDER_VARIABLE]
    else:
        os.environ[FOLDER_VARIABLE] = before


ON_SPARK = ("tests/spark/", "tests/cli/test_on_spark.py", "tests/cli/test_interrupt.py", "tests/docs/test_pages.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Spark come first: they take longest, and only one process runs them."""
    for item in items:
        needs_spark = item.get_closest_marker("spark") is not None or "spark_session" in getattr(item, "fixturenames", ())
        if needs_spark and not _on_spark(item.nodeid) and item.get_closest_marker("slow") is None:
            raise pytest.UsageError(f"{item.nodeid} needs Spark: name its file in ON_SPARK of tests/conftest.py")
    items.sort(key=lambda item: not _on_spark(item.nodeid))


def _on_spark(nodeid: str) -> bool:
    return nodeid.startswith(ON_SPARK)


class ByFile(LoadScopeScheduling):
    """Tests of a file run in one process, those on Spark all in the same; laws are split by algorithm."""

    def _split_scope(self, nodeid: str) -> str:
        file, _, test = nodeid.partition("::")
        if file.endswith("test_laws.py"):
            return f"{file} {test.partition('[')[2].partition('-')[0]}"
        return "spark" if _on_spark(nodeid) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    config.option.loadscopereorder = False  # in the order of collection: Spark first
    return ByFile(config, log)
