"""Every algorithm keeps every law, for every `how`."""

from __future__ import annotations

from functools import partial

import pytest

from millrace.catalog import ALGORITHMS, make_join
from millrace.checks import LAWS, check_join
from millrace.core.protocols import HOWS, How

CELLS = [(row.name, law.name, how) for row in ALGORITHMS for law in LAWS for how in HOWS]


@pytest.mark.parametrize(("algorithm", "law", "how"), CELLS)
def test_the_join_keeps_the_law(algorithm: str, law: str, how: How) -> None:
    check_join(partial(make_join, algorithm), law=law, how=how)


def test_there_are_no_gaps() -> None:
    """Written out, so that whoever adds an algorithm or a law sees that its cells are there."""
    assert [row.name for row in ALGORITHMS] == ["inlj", "meshjoin", "rmeshjoin", "hybridjoin", "sweepjoin"]
    assert len(LAWS) == 30
    assert len(set(CELLS)) == len(CELLS) == 5 * 30 * 4 == 600
