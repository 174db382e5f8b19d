"""The laws themselves: a right join passes all of them, and each of them catches a join that breaks it."""

from __future__ import annotations

import re

import pytest
from tests.conformance.plain import CAUGHT_BY, PlainJoin, TakesOneRowPerKey

from millrace.checks import LAWS, BrokenLaw, check_join, run_laws
from millrace.core.errors import ParameterError


def test_names_of_laws_are_those_of_their_functions_and_sentences_are_sentences() -> None:
    assert len({law.name for law in LAWS}) == len(LAWS) == 33
    for law in LAWS:
        assert law.check.__name__ == law.name
        assert law.sentence.endswith(".")


def test_every_law_is_tried_on_a_join_that_breaks_it() -> None:
    assert list(CAUGHT_BY) == [law.name for law in LAWS]


@pytest.mark.parametrize("law", [law.name for law in LAWS])
def test_a_plain_join_keeps_the_law(law: str) -> None:
    check_join(PlainJoin, law=law, how="left")


@pytest.mark.parametrize("law", [law.name for law in LAWS])
def test_the_law_catches_a_join_that_breaks_it_and_says_what_broke(law: str) -> None:
    caught = CAUGHT_BY[law]
    problems = {verdict.how: verdict.problem for verdict in run_laws(caught.join, laws=[law]) if verdict.problem is not None}
    assert tuple(problems) == caught.hows, f"{caught.join.__name__} was noticed in {list(problems)}"
    first = str(problems[caught.hows[0]])
    assert re.match(caught.problem, first, re.DOTALL), first


def test_a_broken_law_says_which_one_and_what_was_seen() -> None:
    with pytest.raises(BrokenLaw, match=r"(?s)duplicates, inner: Every pair .* But: .*only right"):
        check_join(TakesOneRowPerKey, law="duplicates", how="inner")
    verdicts = run_laws(TakesOneRowPerKey, laws=["wrong_keys", "duplicates"], hows=("inner",))
    assert [str(verdict).split(":")[0] for verdict in verdicts] == ["wrong_keys, inner", "duplicates, inner"]
    assert [verdict.problem is None for verdict in verdicts] == [True, False]


def test_an_unknown_law_is_an_error_that_lists_the_laws() -> None:
    with pytest.raises(ParameterError, match="no law 'exactness'; the laws are exact, duplicates"):
        check_join(PlainJoin, law="exactness")
