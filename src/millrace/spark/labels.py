"""Names of `enrich` calls: a label that is unique in the process, and the name that people see in reports.

    label  millrace:orders#7      of a streaming DataFrame
           millrace:orders#7@     of a batch DataFrame, which may be made anew in every `foreachBatch`
    name   orders, orders 2       numbered within the query, in the order of the calls

The number in a label counts calls in the process, so a call has another label after a restart. Its name stays the same.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

PREFIX = "millrace:"
_ENTERING = "+"
_LABEL = re.compile(rf"{PREFIX}(?P<name>.*)#(?P<number>\d+)(?P<batch>@?)", re.DOTALL)
_numbers = itertools.count(1)
_observed: WeakKeyDictionary[Any, str] = WeakKeyDictionary()  # names of calls that are counted so


def new_label(name: str, *, streaming: bool) -> str:
    return f"{PREFIX}{name}#{next(_numbers)}{'' if streaming else '@'}"


def entering(label: str) -> str:
    """The name of counts that are taken before a join, where those behind the join have the label."""
    return label + _ENTERING


def label_of(counts: str) -> str:
    """The label that counts of this name belong to.

    >>> label_of(entering("millrace:orders#7")), label_of("millrace:orders#7@")
    ('millrace:orders#7', 'millrace:orders#7@')
    """
    return counts.removesuffix(_ENTERING)


def plain_name(label: str) -> str:
    found = _LABEL.fullmatch(label)
    return label.removeprefix(PREFIX) if found is None else found["name"]


def note_observation(observation: Any, label: str) -> None:
    """Remember the name of the call for an Observation without a name. Spark Connect would give it an unreadable name."""
    if not observation._name:
        _observed[observation] = plain_name(label)


def observation_name(observation: Any) -> str:
    """The name of the Observation, or of the call if the Observation was made without a name."""
    return str(_observed.get(observation) or observation._name or "")


def shown_names(labels: Iterable[str], of_run: Iterable[str]) -> dict[str, str]:
    """The names of the calls of a batch, in the order of the calls. `of_run`: all labels that the run of the query has sent.
    A call on the stream keeps its number in a batch in which another call had no rows."""
    batch = set(labels)
    calls = sorted(batch | {label for label in of_run if not label.endswith("@")}, key=_number)
    plain = {plain_name(label) for label in calls}
    names: dict[str, str] = {}
    for label in calls:
        names[label] = _free(plain_name(label), plain, set(names.values()))
    return {label: name for label, name in names.items() if label in batch}


def _free(name: str, plain: set[str], taken: set[str]) -> str:
    """The name, with a number behind it if another call has this name."""
    if name not in taken:
        return name
    numbered = (f"{name} {number}" for number in itertools.count(2))
    return next(one for one in numbered if one not in taken and one not in plain)


def _number(label: str) -> tuple[int, str]:
    found = _LABEL.fullmatch(label)
    return (0 if found is None else int(found["number"])), label
