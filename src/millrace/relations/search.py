"""Compiled kernels that find rows by their codes straight in the pages, wherever the pages lie in memory.

Codes and records of a page are found by two arrays: the address of each page of a run, and their offsets inside the page
(from the table's index), so no page is ever decoded to use a few of its rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from millrace.core.compiled import kernel
from millrace.relations.memoryaccess import copy_bytes, load64, prefetch
from millrace.relations.records import AHEAD


@kernel
def guess_row(code: Any, least: Any, last: Any, size: Any) -> Any:
    """Where a page of `size` rows would have a code, were its codes spread evenly."""
    if code <= least or code > last:
        return np.int64(0)
    share = np.float64(np.uint64(code - least)) / np.float64(np.uint64(last - least))
    return np.int64(share * (size - 1))


@kernel
def find_codes(
    codes: Any, at: Any, addresses: Any, numbers: Any, sizes: Any, bases: Any, offsets: Any, firsts: Any, lasts: Any,
    first: Any, count: Any,
) -> None:  # fmt: skip
    """For each wanted code on run page `at[i]`: the first row with it, and how many rows of the page have it.

    Codes lie evenly in most pages (dense keys, hashes), so the search starts where an even page would have the code and
    widens from there; it is a binary search in any case.
    """
    for i in range(len(codes)):
        later = i + AHEAD
        if later < len(codes):
            page = at[later]
            number = numbers[page]
            row = guess_row(codes[later], firsts[number], lasts[number], np.int64(sizes[page]))
            prefetch(addresses[page] + offsets[number] + 8 * row)
        page = at[i]
        number = numbers[page]
        start = addresses[page] + offsets[number]
        size = np.int64(sizes[page])
        code = codes[i]
        least = firsts[number]
        low = np.int64(0)
        if code > lasts[number]:
            low = size
        elif code > least:
            guess = guess_row(code, least, lasts[number], size)
            high = size
            reach = np.int64(1)
            if load64(start + 8 * guess) < code:
                low = guess + 1
                while low + reach < size and load64(start + 8 * (low + reach - 1)) < code:
                    low += reach
                    reach *= 2
                high = min(size, low + reach)
            else:
                high = guess
                while high - reach > 0 and load64(start + 8 * (high - reach)) >= code:
                    high -= reach
                    reach *= 2
                low = max(np.int64(0), high - reach)
            while low < high:
                middle = (low + high) >> 1
                if load64(start + 8 * middle) < code:
                    low = middle + 1
                else:
                    high = middle
        end = low
        while end < size and load64(start + 8 * end) == code:
            end += 1
        first[i] = bases[page] + low
        count[i] = end - low


@kernel
def resolve_rows(
    rows: Any, guess: Any, stride: Any, bases: Any, addresses: Any, numbers: Any, at: Any, page: Any, inside: Any
) -> None:
    """Of each row number: where its page lies, which page of the relation that is, and the row inside it."""
    for i in range(len(rows)):
        row = rows[i]
        place = guess[row // stride]
        while bases[place + 1] <= row:
            place += 1
        at[i] = addresses[place]
        page[i] = numbers[place]
        inside[i] = row - bases[place]


@kernel
def take_codes(at: Any, page: Any, inside: Any, to: Any, offsets: Any, out: Any) -> None:
    for i in range(len(at)):
        out[to[i]] = load64(at[i] + offsets[page[i]] + 8 * np.int64(inside[i]))


@kernel
def copy_codes(addresses: Any, numbers: Any, sizes: Any, bases: Any, offsets: Any, target: Any) -> None:
    """The codes of every row of the run, one after the other."""
    for page in range(len(addresses)):
        source = addresses[page] + offsets[numbers[page]]
        copy_bytes(target + 8 * bases[page], source, 8 * np.int64(sizes[page]))


@kernel
def fill_guide(lasts: Any, base: Any, shift: Any, guide: Any) -> None:
    """guide[b]: the first page that ends at or behind the first code of bucket b. A bucket has 2^shift codes."""
    page = 0
    for bucket in range(len(guide)):
        while page < len(lasts) and np.uint64(lasts[page] - base) < np.uint64(bucket) << shift:
            page += 1
        guide[bucket] = page


@kernel
def locate_pages(codes: Any, firsts: Any, lasts: Any, guide: Any, shift: Any, first: Any, last: Any) -> None:
    """Pages whose codes enclose each code: from the first that ends at or behind it to the last that starts by it."""
    pages = len(firsts)
    for i in range(len(codes)):
        code = codes[i]
        if pages == 0 or code < firsts[0]:
            first[i] = 0
            last[i] = -1
            continue
        if code > lasts[pages - 1]:
            first[i] = pages
            last[i] = pages - 1
            continue
        bucket = np.int64(np.uint64(code - firsts[0]) >> shift)
        low = np.int64(guide[bucket])
        high = np.int64(guide[bucket + 1]) if bucket + 1 < len(guide) else pages - 1
        while low < high:
            middle = (low + high) >> 1
            if lasts[middle] < code:
                low = middle + 1
            else:
                high = middle
        first[i] = low
        last[i] = low - 1
        if firsts[low] <= code:
            last[i] = low
            if low + 1 < pages and firsts[low + 1] <= code:
                high = pages
                while low < high:
                    middle = (low + high) >> 1
                    if firsts[middle] <= code:
                        low = middle + 1
                    else:
                        high = middle
                last[i] = low - 1
