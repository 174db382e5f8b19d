"""Step traces of a ten-row example: one text file per algorithm, written by `python -m tests.golden.update`."""

from __future__ import annotations

import pytest
from tests.golden.examples import FOLDER, PARAMETERS, trace

from millrace.catalog import ALGORITHMS


def test_every_algorithm_has_a_trace_and_every_trace_an_algorithm() -> None:
    assert list(PARAMETERS) == [row.name for row in ALGORITHMS]
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(PARAMETERS)


@pytest.mark.parametrize("algorithm", PARAMETERS)
def test_the_steps_are_those_of_the_trace(algorithm: str) -> None:
    wanted = (FOLDER / f"{algorithm}.txt").read_text(encoding="utf-8")
    assert trace(algorithm) == wanted, "if the new steps are right: python -m tests.golden.update"
