"""The window kept by page: for every page of the relation, the list of tuples that wait for it.

head [ page 0 | page 1 | ... ]   first waiting slot of each page, or -1
next [ slot 0 | slot 1 | ... ]   the one behind it
first, last                      pages that a slot still has to meet (more than one when its key's rows cross pages)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel


class Reads(NamedTuple):
    """Reads planned together: `counts[i]` pages from `firsts[i]`, ascending."""

    firsts: Int64Array
    counts: Int64Array

    @property
    def pages(self) -> int:
        return int(self.counts.sum())


class Cursor(NamedTuple):
    """Where collecting stands: which read, and which page of it comes next."""

    read: int
    page: int


class Collected(NamedTuple):
    """Pairs to compare, and the slots that wait for nothing else once those are done."""

    slots: Int64Array
    pages: Int64Array
    done: Int64Array
    cursor: Cursor


class PageBuckets:
    """Waiting slots by page."""

    BYTES_PER_SLOT = 12
    BYTES_PER_PAGE = 4

    def __init__(self, pages: int, capacity: int, budget: Budget) -> None:
        self.pages = pages
        self.waiting = 0
        self._head = budget.array("bucket heads", pages, np.int32)
        self._head[:] = -1
        self._next = budget.array("bucket links", capacity, np.int32)
        self._first = budget.array("bucket first pages", capacity, np.int32)
        self._last = budget.array("bucket last pages", capacity, np.int32)

    def add(self, slots: Int64Array, first: Int64Array, last: Int64Array) -> None:
        """Each slot waits for pages `first` to `last`."""
        self.waiting += len(slots)
        _add(slots, first, last, self._head, self._next, self._first, self._last)

    def remove(self, slots: Int64Array) -> Int64Array:
        """Take these slots off their pages; returns those that waited for one."""
        gone = np.empty(len(slots), np.int64)
        count = _take_out(slots, self._head, self._next, self._first, self._last, gone)
        self.waiting -= count
        return gone[:count]

    def slots(self) -> tuple[Int64Array, Int64Array]:
        """All slots that wait, and the page that each waits for."""
        slots, pages = np.empty(self.waiting, np.int64), np.empty(self.waiting, np.int64)
        _list(self._head, self._next, slots, pages)
        return slots, pages

    def plan(self, position: int, buffer_pages: int, gap_pages: int) -> Reads:
        """The next reads of a sweep from page `position` on, `buffer_pages` at most.

        Two wanted pages come in one read when at most `gap_pages` lie between them: crossing those costs less than a seek.
        """
        firsts = np.empty(buffer_pages, np.int64)
        counts = np.empty(buffer_pages, np.int64)
        reads = _plan(position, buffer_pages, gap_pages, self._head, firsts, counts)
        return Reads(firsts[:reads].copy(), counts[:reads].copy())

    def wanted(self, *, crossing: bool) -> Int64Array:
        """Every page that somebody waits for; with `crossing`, also pages that come later in a tuple's run."""
        if not crossing:
            return np.flatnonzero(self._head >= 0)
        marks = np.zeros(self.pages, np.bool_)
        _mark(self._head, self._next, self._first, self._last, marks)
        return np.flatnonzero(marks)

    def collect(self, reads: Reads, cursor: Cursor, limit: int) -> Collected:
        """Take waiting slots off the pages of `reads`, from `cursor` on, for at most `limit` comparisons.

        A slot whose pages run past the end of a read is moved on to the page behind it.
        """
        slots = np.empty(limit, np.int64)
        pages = np.empty(limit, np.int64)
        done = np.empty(limit, np.int64)
        pairs, finished, read, page = _collect(
            reads.firsts, reads.counts, cursor.read, cursor.page,
            self._head, self._next, self._first, self._last, slots, pages, done,
        )  # fmt: skip
        self.waiting -= finished
        return Collected(slots[:pairs], pages[:pairs], done[:finished], Cursor(read, page))


@kernel
def _add(slots: Any, firsts: Any, lasts: Any, head: Any, following: Any, first: Any, last: Any) -> None:
    for i in range(len(slots)):
        slot = slots[i]
        page = firsts[i]
        first[slot] = page
        last[slot] = lasts[i]
        following[slot] = head[page]
        head[page] = slot


@kernel
def _take_out(slots: Any, head: Any, following: Any, first: Any, last: Any, gone: Any) -> Any:
    """A slot that is to go has a last page below zero for the moment."""
    for i in range(len(slots)):
        last[slots[i]] = -1 - last[slots[i]]
    count = 0
    for i in range(len(slots)):
        if last[slots[i]] >= 0:
            continue
        page = first[slots[i]]
        before, slot = np.int64(-1), np.int64(head[page])
        while slot >= 0:
            behind = np.int64(following[slot])
            if last[slot] >= 0:
                before = slot
            else:
                if before < 0:
                    head[page] = behind
                else:
                    following[before] = behind
                last[slot] = -1 - last[slot]
                gone[count] = slot
                count += 1
            slot = behind
    for i in range(len(slots)):
        if last[slots[i]] < 0:  # it waits for no page
            last[slots[i]] = -1 - last[slots[i]]
    return count


@kernel
def _list(head: Any, following: Any, slots: Any, pages: Any) -> None:
    count = 0
    for page in range(len(head)):
        slot = head[page]
        while slot >= 0:
            slots[count] = slot
            pages[count] = page
            count += 1
            slot = following[slot]


@kernel
def _plan(position: Any, room: Any, gap: Any, head: Any, firsts: Any, counts: Any) -> Any:
    reads = 0
    for page in range(position, len(head)):
        if head[page] < 0:
            continue
        if reads:
            end = firsts[reads - 1] + counts[reads - 1]
            if page - end <= gap and page - end + 1 <= room:
                counts[reads - 1] += page - end + 1
                room -= page - end + 1
                continue
        if room < 1:
            break
        firsts[reads] = page
        counts[reads] = 1
        reads += 1
        room -= 1
    return reads


@kernel
def _mark(head: Any, following: Any, first: Any, last: Any, marks: Any) -> None:
    for page in range(len(head)):
        slot = head[page]
        while slot >= 0:
            for wanted in range(first[slot], last[slot] + 1):
                marks[wanted] = True
            slot = following[slot]


@kernel
def _collect(
    firsts: Any, counts: Any, read: Any, page: Any,
    head: Any, following: Any, first: Any, last: Any, slots: Any, pages: Any, done: Any,
) -> Any:  # fmt: skip
    limit = len(slots)
    pairs = 0
    finished = 0
    while read < len(firsts):
        edge = firsts[read] + counts[read]
        while page < edge:
            slot = head[page]
            while slot >= 0:
                if pairs == limit:
                    head[page] = slot
                    return pairs, finished, read, page
                behind = following[slot]
                at = np.int64(first[slot])
                end = min(np.int64(last[slot]), edge - 1, at + limit - pairs - 1)
                while at <= end:
                    slots[pairs] = slot
                    pages[pairs] = at
                    pairs += 1
                    at += 1
                if at > last[slot]:
                    done[finished] = slot
                    finished += 1
                else:
                    first[slot] = at
                    following[slot] = head[at]
                    head[at] = slot
                slot = behind
            head[page] = -1
            page += 1
        read += 1
        if read < len(firsts):
            page = firsts[read]
    return pairs, finished, read, page
