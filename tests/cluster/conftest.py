"""A cluster for each test, and the programs that use it; nothing of either outlives the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.cluster.standalone import Cluster, Program, can_blind


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Its workers see nothing of `work/hidden`, where that can be arranged."""
    hidden = tmp_path / "work" / "hidden"
    hidden.mkdir(parents=True)
    running = Cluster(tmp_path / "cluster", hidden=hidden if can_blind(hidden) else None)
    try:
        yield running
        family = running.family()
    finally:
        running.stop()
    assert not [one for one in family if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        program.stop()
