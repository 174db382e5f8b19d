"""CSWEEPJOIN: what only it promises."""

from __future__ import annotations

from tests.joins.cached import check_bad_input, check_exact_with_hits, check_share

from millrace.joins.csweepjoin import CSweepJoin


def test_it_joins_exactly_and_answers_hot_keys_in_front() -> None:
    check_exact_with_hits(CSweepJoin)


def test_bad_shares_thresholds_and_budgets_are_refused() -> None:
    check_bad_input(CSweepJoin)


def test_a_share_is_kept() -> None:
    check_share(CSweepJoin)
