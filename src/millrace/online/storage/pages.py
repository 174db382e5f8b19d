"""Rows of many partitions in one pool of small pages that all of them share.

    list (partition, side)   first page -> page -> page -> page being filled          oldest rows first
    pool                     [ page | page | page | ... ]    free pages on a stack

A partition takes a page when it needs one, for whichever side, so memory goes where rows go. What leaves for the temporary
file is a run of whole pages, the oldest of a list.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.compiled import kernel

_LIST_WORDS = 5  # next word, end of the page, first page, last page, pages


class Pages:
    """Lists 2p and 2p + 1 hold rows of A and B of partition p."""

    bytes_per_page = 8  # beside the page itself: link and place on the stack

    @staticmethod
    def sizes(partitions: int, page_words: int, count: int) -> dict[str, int]:
        """Bytes of each array."""
        return {
            "pages": 8 * count * page_words, "page links": 4 * count, "free pages": 4 * count,
            "page lists": 8 * _LIST_WORDS * 2 * partitions,
        }  # fmt: skip

    def __init__(self, partitions: int, widths: tuple[int, int], page_words: int, count: int, budget: Budget) -> None:
        self.partitions, self.widths, self.page_words, self.count = partitions, widths, page_words, count
        self.rows_per_page = (page_words // widths[0], page_words // widths[1])
        self._data: Int64Array = budget.array("pages", count * page_words, np.int64)
        self._links = budget.array("page links", count, np.int32)
        self._free = budget.array("free pages", count, np.int32)
        self._free[:] = np.arange(count)[::-1]
        self._state = np.array([count], np.int64)  # how many pages are free
        self._lists = budget.array("page lists", _LIST_WORDS * 2 * partitions, np.int64).reshape(_LIST_WORDS, -1)

    @property
    def free_pages(self) -> int:
        return int(self._state[0])

    def pages_of(self) -> Int64Array:
        """Pages of each list."""
        return self._lists[4]

    def rows_by_side(self, side: int) -> Int64Array:
        """Rows in memory of each partition."""
        lists = self._lists[:, side::2]
        rows: Int64Array = lists[4] * self.rows_per_page[side] - (lists[1] - lists[0]) // self.widths[side]
        return rows

    def rows_of(self, number: int) -> int:
        cursor, end, _, _, pages = (int(value) for value in self._lists[:, number])
        width, full = self.widths[number & 1], self.rows_per_page[number & 1]
        return pages * full - (end - cursor) // width if pages else 0

    def add(self, side: int, words: Int64Array, first: int, mapping: Any, shift: int, histogram: Int64Array) -> int:
        """Put rows from `first` on into the lists of their partitions; how far it came before no page was free."""
        used = self.rows_per_page[side] * self.widths[side]
        return int(
            _scatter(
                words, first, side, mapping, np.uint64(shift), histogram, self._data, self._links, self._free, self._state,
                self._lists, self.page_words, used,
            )
        )  # fmt: skip

    def take(self, number: int, pages: int, out: Int64Array) -> None:
        """Move the oldest `pages` pages of a list, all of them full, to `out`, and free them."""
        used = self.rows_per_page[number & 1] * self.widths[number & 1]
        _take(number, pages, used, out, self._data, self._links, self._free, self._state, self._lists, self.page_words)

    def chunks(self, number: int, rows: int, buffer: Int64Array) -> Iterator[Int64Array]:
        """The oldest `rows` rows of a list, some at a time, in `buffer`; an array is valid until the next is asked for."""
        width, full = self.widths[number & 1], self.rows_per_page[number & 1]
        page, left = int(self._lists[2, number]), rows
        most = len(buffer) // (full * width)
        while left > 0:
            count = min(left, most * full)
            page = _gather(page, count, width, full, self._data, self._links, self.page_words, buffer)
            yield buffer[: count * width].reshape(count, width)
            left -= count

    def clear(self, number: int) -> None:
        """Forget the rows of a list."""
        _clear(number, self._links, self._free, self._state, self._lists)

    def detach(self) -> Int64Array:
        """Take all rows out of their lists: (first page, rows) of each, to be given to `drain`."""
        taken = np.array([[int(self._lists[2, i]), self.rows_of(i)] for i in range(2 * self.partitions)], np.int64)
        self._lists[:] = 0
        return taken

    def drain(self, number: int, page: int, rows: int) -> Iterator[Int64Array]:
        """Rows of a list that was detached, page by page; each page is freed when its rows have been used."""
        width, full = self.widths[number & 1], self.rows_per_page[number & 1]
        while rows > 0:
            count = min(rows, full)
            start = page * self.page_words
            yield self._data[start : start + count * width].reshape(count, width)
            following = int(self._links[page])
            self._free[self._state[0]] = page
            self._state[0] += 1
            page, rows = following, rows - count


@kernel
def bucket_of(code: Any, shift: Any) -> Any:
    """The upper bits of a hash whose every bit depends on every bit of the code; not the hash of tables inside a partition."""
    word = np.uint64(code) * np.uint64(0x9E3779B97F4A7C15)
    word ^= word >> np.uint64(32)
    return np.int64((word * np.uint64(0xC2B2AE3D27D4EB4F)) >> shift)


@kernel
def buckets_of(codes: Any, shift: Any) -> Any:
    found = np.empty(len(codes), np.int64)
    for i in range(len(codes)):
        found[i] = bucket_of(codes[i], shift)
    return found


@kernel
def _scatter(
    words: Any, first: Any, side: Any, mapping: Any, shift: Any, histogram: Any, data: Any, links: Any, free: Any, state: Any,
    lists: Any, page_words: Any, used: Any,
) -> Any:  # fmt: skip
    """Rows of `lists`: next word, end of the page, first page, last page, pages."""
    width = words.shape[1]
    for i in range(first, len(words)):
        bucket = bucket_of(words[i, 0], shift)
        number = 2 * np.int64(mapping[bucket]) + side
        cursor = lists[0, number]
        if cursor == lists[1, number]:
            if state[0] == 0:
                return i
            state[0] -= 1
            page = np.int64(free[state[0]])
            if lists[4, number] == 0:
                lists[2, number] = page
            else:
                links[lists[3, number]] = page
            lists[3, number] = page
            lists[4, number] += 1
            cursor = page * page_words
            lists[1, number] = cursor + used
        histogram[bucket] += 1
        if width == 2:
            data[cursor] = words[i, 0]
            data[cursor + 1] = words[i, 1]
        else:
            for j in range(width):
                data[cursor + j] = words[i, j]
        lists[0, number] = cursor + width
    return len(words)


@kernel
def _take(
    number: Any, pages: Any, used: Any, out: Any, data: Any, links: Any, free: Any, state: Any, lists: Any, page_words: Any
) -> None:
    page = lists[2, number]
    for k in range(pages):
        start = page * page_words
        for j in range(used):
            out[k * used + j] = data[start + j]
        following = np.int64(links[page])
        free[state[0]] = page
        state[0] += 1
        page = following
    lists[2, number] = page
    lists[4, number] -= pages
    if lists[4, number] == 0:
        lists[0, number] = 0
        lists[1, number] = 0


@kernel
def _gather(page: Any, rows: Any, width: Any, full: Any, data: Any, links: Any, page_words: Any, out: Any) -> Any:
    place = 0
    while rows > 0:
        count = min(rows, full) * width
        start = page * page_words
        for j in range(count):
            out[place + j] = data[start + j]
        place += count
        rows -= full
        page = np.int64(links[page])
    return page


@kernel
def _clear(number: Any, links: Any, free: Any, state: Any, lists: Any) -> None:
    page = lists[2, number]
    for _ in range(lists[4, number]):
        following = np.int64(links[page])
        free[state[0]] = page
        state[0] += 1
        page = following
    for k in range(5):
        lists[k, number] = 0
