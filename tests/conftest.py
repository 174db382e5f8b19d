"""How the tests run: which of them share a process, and the same random examples every time.

`make test` has two processes. All tests that need Spark run in one of them, so that there is one JVM; the others run beside.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

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


@pytest.hookimpl(tryfirst=True)  # before xdist looks at the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of a group run in one process. Those on Spark come first: they take longest, and only one process can run them."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    items.sort(key=lambda item: item.get_closest_marker("spark") is None)


def _group(item: pytest.Item) -> str:
    """Spark, or the file; laws are split by algorithm."""
    if item.get_closest_marker("spark") is not None:
        return "spark"
    if "spark_session" in getattr(item, "fixturenames", ()):
        raise pytest.UsageError(f"{item.nodeid} needs a Spark session: mark it with pytest.mark.spark")
    law = getattr(item, "callspec", None) if item.path.name == "test_laws.py" else None
    return (
        f"{item.path.name} {law.params['column'].algorithm}"
        if law is not None
        else str(item.path.relative_to(item.config.rootpath))
    )
