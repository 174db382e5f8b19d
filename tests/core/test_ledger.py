"""The ledger: rows in = matched + unmatched + waiting + deferred, or an error at once."""

from __future__ import annotations

import pytest

from millrace.core.ledger import Ledger, LedgerError
from millrace.core.step import StepCounts


def test_totals_grow_with_every_step() -> None:
    ledger = Ledger()
    ledger.post(StepCounts(tuples_in=5, pages_read=2), waiting=5)
    ledger.post(StepCounts(tuples_in=1, removed=4, matched=2, absent_keys=1, null_keys=1, matches=3), waiting=2)
    ledger.post(StepCounts(removed=1, condition_false=1, deferred=1), waiting=0)
    assert (ledger.rows_in, ledger.matched, ledger.unmatched, ledger.deferred, ledger.waiting) == (6, 2, 3, 1, 0)
    assert ledger.steps == 3
    assert ledger.totals.pages_read == 2


@pytest.mark.parametrize(
    ("counts", "waiting"),
    [(StepCounts(tuples_in=3, removed=3, matched=2), 0), (StepCounts(tuples_in=3, matched=3), 1), (StepCounts(), 1),
     (StepCounts(matched=1), 0), (StepCounts(tuples_in=1), 0)],
)  # fmt: skip
def test_a_lost_or_doubled_row_is_an_error_that_shows_the_sum(counts: StepCounts, waiting: int) -> None:
    with pytest.raises(LedgerError, match=r"does not balance after step 1: \d rows in, but \d matched \+ .* = \d"):
        Ledger().post(counts, waiting)


def test_ledgers_do_not_share_their_totals() -> None:
    Ledger().post(StepCounts(tuples_in=1), waiting=1)
    assert Ledger().rows_in == 0


def test_what_was_deferred_can_come_back() -> None:
    ledger = Ledger()
    ledger.post(StepCounts(tuples_in=5, deferred=3), waiting=2)
    ledger.post(StepCounts(deferred=-2, removed=1, matched=1), waiting=3)
    assert (ledger.deferred, ledger.waiting) == (1, 3)
    with pytest.raises(LedgerError):
        ledger.post(StepCounts(deferred=-1), waiting=3)
