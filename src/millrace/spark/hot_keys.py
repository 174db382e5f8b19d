"""`mr.hot_keys`: the most frequent keys of a stream, on the driver, merged from what tasks counted (`spark.key_sketch`).

A key that a task has reported came at most `count` times in the task, and at least `count - error` times. A key that the task
has not reported came at most `beyond` times. These bounds are added up over all tasks and micro-batches.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

from millrace.core.errors import MillraceError, ParameterError
from millrace.core.wording import counted
from millrace.spark.key_text import CUT_BYTES, from_json, was_cut
from millrace.spark.reports import sent_counts

_KEY_WIDTH = 48  # of a key that is printed


@dataclass(frozen=True)
class HotKey:
    """A key of the stream. It came at least `rows` times, and at most `at_most` times."""

    key: Any  # the value, or a tuple for a key of several columns
    rows: int
    share: float  # of all rows of the stream, between 0 and 1
    at_most: int


@dataclass(frozen=True, repr=False)
class HotKeys(Sequence[HotKey]):
    """The most frequent keys of a stream, the most frequent first. `print` shows a table."""

    name: str  # of the call, as in reports
    rows: int  # of the stream that were counted, those without a key too
    null_keys: int  # rows without a key
    batches: int
    keys: tuple[HotKey, ...]
    others_at_most: int  # rows of any key that is not listed
    cut: bool = False  # whether a long text among the keys was cut

    @overload
    def __getitem__(self, place: int) -> HotKey: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[HotKey, ...]: ...
    def __getitem__(self, place: int | slice) -> HotKey | tuple[HotKey, ...]:
        return self.keys[place]

    def __len__(self) -> int:
        return len(self.keys)

    def __repr__(self) -> str:
        return f"<HotKeys {self}>"

    def __str__(self) -> str:
        if not self.rows:
            return "hot keys: no rows were counted yet"
        nulls = f", {self.null_keys:,} without a key" if self.null_keys else ""
        head = f"hot keys of {self.name}: {counted(self.rows, 'row')} in {counted(self.batches, 'batch', 'batches')}{nulls}"
        return "\n".join([head, *self._table(), *self._notes()])

    def _table(self) -> list[str]:
        sure = all(one.rows == one.at_most for one in self.keys)
        rows = [["key", "rows", "share", *([] if sure else ["at most"])]]
        rows += [
            [_shown(one.key), f"{one.rows:,}", f"{100 * one.share:.2f} %", *([] if sure else [f"{one.at_most:,}"])]
            for one in self.keys
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join([first.ljust(widths[0]), *(text.rjust(width) for text, width in zip(more, widths[1:], strict=True))])
            for first, *more in rows
        ]

    def _notes(self) -> Iterator[str]:
        low = max((one.at_most - one.rows for one in self.keys), default=0)
        share = f"{100 * low / self.rows:.2g} % of the stream"
        yield f"counts may be too low by {counted(low, 'row')} at most, {share}" if low else "counts are exact"
        if self.others_at_most:
            yield f"any other key has {counted(self.others_at_most, 'row')} at most"
        if self.cut:
            yield f"keys longer than {CUT_BYTES} bytes are cut"


def hot_keys(source: Any, *, name: str | None = None, limit: int = 10) -> HotKeys:
    """The most frequent keys of a stream that `mr.enrich(..., hot_keys=100)` enriches, and their share of it.

    source  a streaming query (its recent progress counts), one progress, or an `Observation`, as for `mr.reports`
    name    name of the call or table, as reports have it; needed if several of them count hot keys
    limit   how many keys to return
    """
    _check_limit(limit)
    calls: dict[str, list[tuple[int | None, dict[str, Any]]]] = {}
    every = sent_counts(source)
    for sent in every:
        told = [json.loads(text).get("hot_keys") for text in sent.texts]
        calls.setdefault(sent.name, []).extend((sent.batch_id, sketch) for sketch in told if sketch is not None)
    if not any(sent.texts for sent in every):  # no task had rows
        return HotKeys(name or next(iter(calls), ""), 0, 0, 0, (), 0)
    chosen = _chosen(name, calls)
    sketches = [sketch for _, sketch in calls[chosen]]
    return _merged(chosen, sketches, len({batch for batch, _ in calls[chosen]}), limit)


def _check_limit(limit: Any) -> None:
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise ParameterError(f"limit must be a whole number of keys, at least 1; got {limit!r}")


def _chosen(name: str | None, calls: dict[str, list[Any]]) -> str:
    """The name of the call that is meant."""
    have = [one for one, sketches in calls.items() if sketches]
    if name is not None and name not in calls:
        raise ParameterError(f"there is no report of {name!r}; there are reports of {', '.join(calls)}")
    if not have or (name is not None and name not in have):
        raise MillraceError(
            f"hot keys of {name if name is not None else ' and '.join(calls)} were not counted: switch this on with "
            "mr.enrich(..., hot_keys=100)"
        )
    if name is None and len(have) > 1:
        raise ParameterError(f"several tables have hot keys: give name=, one of {', '.join(map(repr, have))}")
    return have[0] if name is None else name


def _merged(name: str, sketches: list[dict[str, Any]], batches: int, limit: int) -> HotKeys:
    rows = sum(sketch["rows"] for sketch in sketches)
    nulls = sum(sketch["null_keys"] for sketch in sketches)
    beyond = sum(sketch["beyond"] for sketch in sketches)
    bounds: dict[Any, list[int]] = {}  # rows at least, and at most
    for sketch in sketches:
        for key, count, error in zip(_keys(sketch), sketch["counts"], sketch["errors"], strict=True):
            found = bounds.setdefault(key, [0, beyond])
            found[0] += count - error
            found[1] += count - sketch["beyond"]
    ranked = sorted(bounds.items(), key=lambda item: (-item[1][0], item[1][1], repr(item[0])))
    listed = [
        HotKey(_value(key), least, least / (rows + nulls), min(most, rows)) for key, (least, most) in ranked[:limit]
    ]  # fmt: skip
    others = max([min(beyond, rows), *(min(most, rows) for _, (_, most) in ranked[limit:])])
    cut = any(was_cut(part) for (_, parts), _ in ranked[:limit] for part in parts)
    return HotKeys(name, rows + nulls, nulls, batches, tuple(listed), others, cut)


def _keys(sketch: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
    """Kinds and parts of each key, in a form that can be compared."""
    kinds = tuple(sketch["kinds"])
    for parts in zip(*sketch["keys"], strict=True):
        yield kinds, tuple(tuple(part) if was_cut(part) else part for part in parts)


def _value(key: tuple[Iterable[str], Iterable[Any]]) -> Any:
    """The Python value of a key."""
    values = tuple(from_json(part, kind) for kind, part in zip(*key, strict=True))
    return values[0] if len(values) == 1 else values


def _shown(key: Any) -> str:
    """A key in a table: one line, and not too long."""
    parts = key if isinstance(key, tuple) else (key,)
    text = ", ".join(repr(part) if isinstance(part, (str, bytes)) else str(part) for part in parts)
    return text if len(text) <= _KEY_WIDTH else text[: _KEY_WIDTH - 3] + "..."
