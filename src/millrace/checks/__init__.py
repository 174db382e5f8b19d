"""The laws that every join must keep. They are part of the package, so that you can check a join of your own too.

>>> from millrace.checks import LAWS, check_join
>>> for law in LAWS[:2]:
...     print(law.name, "-", law.sentence)
exact - The output equals a plain join as a multiset, in budgets from the smallest to a large one.
duplicates - Every pair of equal keys comes out, however often a key occurs on either side.

`check_join(MyJoin)` raises `BrokenLaw` at the first law that `MyJoin` breaks; `run_laws(MyJoin)` tries them all and
says how each one went. Nothing here needs a test framework.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from millrace.checks.laws import LAWS, Law
from millrace.checks.relations import (
    CollidingCodec,
    DiskIndexed,
    Expiring,
    FailingRelation,
    IndexFree,
    InPlace,
    ReadFailed,
    colliding,
)
from millrace.checks.run import BrokenLaw, Make, Run, run_join
from millrace.core.errors import ParameterError
from millrace.core.protocols import HOWS, How

__all__ = [
    "LAWS",
    "BrokenLaw",
    "CollidingCodec",
    "DiskIndexed",
    "Expiring",
    "FailingRelation",
    "InPlace",
    "IndexFree",
    "Law",
    "Make",
    "ReadFailed",
    "Run",
    "Verdict",
    "check_join",
    "colliding",
    "run_join",
    "run_laws",
]  # fmt: skip


class Verdict(NamedTuple):
    """How a law went: `problem` is None when it holds."""

    law: Law
    how: How
    problem: Exception | None

    def __str__(self) -> str:
        return f"{self.law.name}, {self.how}: {'holds' if self.problem is None else f'BROKEN: {self.problem}'}"


def check_join(make: Make, law: str | None = None, how: How | None = None) -> None:
    """Check the join that `make` builds: one law or all, for one `how` or all. The first broken law is an error."""
    for each in LAWS if law is None else (_named(law),):
        for one in HOWS if how is None else (how,):
            try:
                each.check(make, one)
            except Exception as problem:
                raise BrokenLaw(f"{each.name}, {one}: {each.sentence} But: {_told(problem)}") from problem


def run_laws(make: Make, laws: Iterable[str] | None = None, hows: Sequence[How] = HOWS) -> list[Verdict]:
    """Check all laws and say how each went. A broken law does not stop the others."""
    verdicts = []
    for law in LAWS if laws is None else tuple(_named(name) for name in laws):
        for how in hows:
            try:
                law.check(make, how)
                verdicts.append(Verdict(law, how, None))
            except Exception as problem:
                verdicts.append(Verdict(law, how, problem))
    return verdicts


def _named(name: str) -> Law:
    for law in LAWS:
        if law.name == name:
            return law
    raise ParameterError(f"there is no law {name!r}; the laws are {', '.join(law.name for law in LAWS)}")


def _told(problem: Exception) -> str:
    return str(problem) if isinstance(problem, BrokenLaw) else f"{type(problem).__name__}: {problem}"
