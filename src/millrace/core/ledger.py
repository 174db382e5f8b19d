"""The ledger of a join: rows in = matched + unmatched + waiting + deferred, checked after every step."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.core.errors import MillraceError
from millrace.core.step import StepCounts


class LedgerError(MillraceError):
    """Rows were lost or doubled: a defect of millrace, never of the data."""


@dataclass
class Ledger:
    """Running totals of one join.

    >>> ledger = Ledger()
    >>> ledger.post(StepCounts(tuples_in=3, removed=2, matched=1, null_keys=1, matches=1), waiting=1)
    >>> ledger.rows_in, ledger.matched, ledger.unmatched, ledger.waiting
    (3, 1, 1, 1)
    """

    totals: StepCounts = StepCounts()
    waiting: int = 0
    steps: int = 0

    @property
    def rows_in(self) -> int:
        return self.totals.tuples_in

    @property
    def matched(self) -> int:
        return self.totals.matched

    @property
    def unmatched(self) -> int:
        return self.totals.unmatched

    @property
    def deferred(self) -> int:
        return self.totals.deferred

    def post(self, counts: StepCounts, waiting: int) -> None:
        """Add a step and check the balance."""
        self.totals = self.totals + counts
        self.waiting = waiting
        self.steps += 1
        self.check()

    def check(self) -> None:
        accounted = self.matched + self.unmatched + self.waiting + self.deferred
        if self.rows_in != accounted:
            raise LedgerError(
                f"the ledger does not balance after step {self.steps}: {self.rows_in} rows in, but {self.matched} matched + "
                f"{self.unmatched} unmatched + {self.waiting} waiting + {self.deferred} deferred = {accounted}"
            )
