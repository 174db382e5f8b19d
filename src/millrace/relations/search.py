"""Compiled kernels that find rows by their codes straight in the pages, wherever the pages lie in memory.

Codes and records of a page are found by the address of the page and their offsets inside it, from the table's index, so no
page is ever decoded to use a few of its rows. Kernels take two tuples of arrays (plain ones: others take longer to pass):

    index    of every page of the relation: its first and last code, and where in it codes, starts of records and records begin
    places   of every page of a run: its address, its number in the relation, its rows, and the rows of the run before it

Those that look keys up in pages all over a mapped table take what they need of a page from one place, its card: the same from
seven arrays takes seven lines of memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.core.compiled import inlined, kernel
from millrace.core.memoryaccess import copy_bytes, load32, load64, prefetch
from millrace.relations.row_records import AHEAD, LINE

CARD = np.dtype(
    [
        ("first", np.int64),  # code
        ("codes", np.int64),  # their address
        ("rows_per_code", np.float32),  # 0 if all codes are the same
        ("rows", np.int32),
        ("starts", np.int32),  # where the starts of records lie, from the codes on
        ("data", np.int32),  # and the records
    ]
)
CARD_BYTES = CARD.itemsize


def make_cards(index: Any, sizes: Any) -> npt.NDArray[np.void]:
    """A card for every page, two to a line of memory. Where the codes are is still to be put in."""
    firsts, lasts, code_places, start_places, data_places = index
    room = np.zeros(CARD_BYTES * len(firsts) + LINE, np.uint8)
    begin = -room.ctypes.data % LINE
    cards = room[begin : begin + CARD_BYTES * len(firsts)].view(CARD)
    spans = (lasts - firsts).view(np.uint64).astype(np.float64)
    cards["first"], cards["rows"] = firsts, sizes
    np.divide(sizes - 1, spans, out=cards["rows_per_code"], where=spans > 0, casting="same_kind")
    cards["starts"], cards["data"] = start_places - code_places, data_places - code_places
    return cards


@kernel
def guess_row(code: Any, least: Any, last: Any, size: Any) -> Any:
    """Where a page of `size` rows would have a code, were its codes spread evenly."""
    if code <= least or code > last:
        return np.int64(0)
    share = np.float64(np.uint64(code - least)) / np.float64(np.uint64(last - least))
    return np.int64(share * (size - 1))


@kernel
def ask_for_cards(pages: Any, cards: Any, first: Any, last: Any) -> None:
    """Ask for the cards of the pages of rows `first` to `last`, which are wanted soon."""
    base = cards.ctypes.data
    for i in range(first, last):
        prefetch(base + CARD_BYTES * np.int64(pages[i]))


@kernel
def guess_rows(codes: Any, pages: Any, cards: Any, rows: Any, first: Any, last: Any) -> None:
    """Guess the row of codes `first` to `last` in the pages given (-1: nowhere), and ask for the memory around it.

    No code may lie before its page; one behind it is looked for in the last row.
    """
    for i in range(first, last):
        page = np.int64(pages[i])
        if page >= 0:
            card = cards[page]
            share = np.float64(np.uint64(codes[i] - card.first)) * np.float64(card.rows_per_code) + 0.5
            row = np.int64(min(share, np.float64(card.rows - 1)))
            rows[i] = row
            prefetch(card.codes + 8 * row)
            prefetch(card.codes + card.starts + 4 * row)


@kernel
def guess_rows_again(codes: Any, pages: Any, cards: Any, rows: Any, first: Any, last: Any) -> None:
    """Correct guesses by what stands there. In a page of n random codes a guess is off by some sqrt(n) rows, and a second one,
    from so near, by the fourth root: worth a step of its own where a search would go wrong at every turn."""
    for i in range(first, last):
        page = np.int64(pages[i])
        if page >= 0:
            card = cards[page]
            row = np.int64(rows[i])
            there = load64(card.codes + 8 * row)
            if there != codes[i]:
                better = row + (np.float64(codes[i]) - np.float64(there)) * np.float64(card.rows_per_code)
                row = np.int64(min(max(better, 0.0), np.float64(card.rows - 1)))
                rows[i] = row
                prefetch(card.codes + 8 * row)
                prefetch(card.codes + card.starts + 4 * row)


@inlined
def record_at(card: Any, row: Any) -> Any:
    """The address of the record of a row, asked for."""
    record = card.codes + card.data + np.int64(load32(card.codes + card.starts + 4 * row))
    prefetch(record)
    prefetch(record + LINE)
    prefetch(record + 2 * LINE)
    return record


@kernel
def seek_code(start: Any, size: Any, code: Any, guess: Any) -> Any:
    """The first of `size` sorted codes at `start` that is not below `code`: looked for at `guess`, and ever wider from there.

    Codes lie evenly in most pages (dense keys, hashes), so a guess is seldom far off; it is a binary search in any case.
    """
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
    return low


@kernel
def find_codes(codes: Any, at: Any, places: Any, index: Any, first: Any, count: Any) -> None:
    """For each wanted code on run page `at[i]`: the first row with it, and how many rows of the page have it."""
    addresses, numbers, sizes, bases = places
    firsts, lasts, code_places, _, _ = index
    for i in range(len(codes)):
        later = i + AHEAD
        if later < len(codes):
            page = at[later]
            number = numbers[page]
            row = guess_row(codes[later], firsts[number], lasts[number], np.int64(sizes[page]))
            prefetch(addresses[page] + code_places[number] + 8 * row)
        page = at[i]
        number = numbers[page]
        start = addresses[page] + code_places[number]
        size = np.int64(sizes[page])
        code = codes[i]
        if code > lasts[number]:
            low = size
        else:
            low = seek_code(start, size, code, guess_row(code, firsts[number], lasts[number], size))
        end = low
        while end < size and load64(start + 8 * end) == code:
            end += 1
        first[i] = bases[page] + low
        count[i] = end - low


@kernel
def resolve_rows(rows: Any, guess: Any, stride: Any, bases: Any, place: Any, inside: Any) -> None:
    """Of each row number: the page of the run that it is on, most often that of the row before, and the row inside it."""
    page = np.int64(0)
    for i in range(len(rows)):
        row = rows[i]
        if row < bases[page] or row >= bases[page + 1]:
            page = np.int64(guess[row // stride])
            while bases[page + 1] <= row:
                page += 1
        place[i] = page
        inside[i] = row - bases[page]


@kernel
def find_records(place: Any, inside: Any, places: Any, index: Any, records: Any) -> None:
    """The address of the record of each row."""
    addresses, numbers, _, _ = places
    _, _, _, start_places, data_places = index
    for i in range(len(place)):
        later = i + AHEAD
        if later < len(place):
            page = place[later]
            prefetch(addresses[page] + start_places[numbers[page]] + 4 * np.int64(inside[later]))
        page = place[i]
        number = numbers[page]
        start = np.int64(load32(addresses[page] + start_places[number] + 4 * np.int64(inside[i])))
        records[i] = addresses[page] + data_places[number] + start


@kernel
def take_codes(place: Any, inside: Any, places: Any, index: Any, out: Any) -> None:
    """The code of each row."""
    addresses, numbers, _, _ = places
    _, _, code_places, _, _ = index
    for i in range(len(place)):
        start = addresses[place[i]] + code_places[numbers[place[i]]]
        out[i] = load64(start + 8 * np.int64(inside[i]))


@kernel
def copy_codes(places: Any, index: Any, target: Any) -> None:
    """The codes of every row of the run, one after the other."""
    addresses, numbers, sizes, bases = places
    _, _, code_places, _, _ = index
    for page in range(len(addresses)):
        source = addresses[page] + code_places[numbers[page]]
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
def _first_ending_by(code: Any, lasts: Any, guide: Any, bucket: Any) -> Any:
    """The first page that ends at or behind a code, which must not lie behind them all."""
    low = np.int64(guide[bucket])
    high = np.int64(guide[bucket + 1]) if bucket + 1 < len(guide) else len(lasts) - 1
    while low < high:
        middle = (low + high) >> 1
        if lasts[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def locate_pages(codes: Any, firsts: Any, lasts: Any, guide: Any, shift: Any, first: Any, last: Any) -> None:
    """Pages whose codes enclose each code: from the first that ends at or behind it to the last that starts by it.

    As in `locate_first`, codes for which the guide will do have a loop to themselves.
    """
    pages = len(firsts)
    if pages == 0:
        first[:] = 0
        last[:] = -1
        return
    least, most = firsts[0], lasts[pages - 1]
    uneven = False
    for i in range(len(codes)):
        code = codes[i]
        page = np.int64(0) if code < least else np.int64(pages)
        if code >= least and code <= most:
            page = np.int64(guide[np.int64(np.uint64(code - least) >> shift)])
            page += np.int64(lasts[page] < code)
            uneven |= lasts[page] < code
        first[i] = page
    if uneven:
        for i in range(len(codes)):
            if first[i] < pages and lasts[first[i]] < codes[i]:
                first[i] = _first_ending_by(codes[i], lasts, guide, np.int64(np.uint64(codes[i] - least) >> shift))
    for i in range(len(codes)):
        page = first[i]
        last[i] = page - np.int64(page == pages or firsts[page] > codes[i])
        if last[i] == page and page + 1 < pages and firsts[page + 1] <= codes[i]:
            last[i] = _last_starting_by(codes[i], firsts, page)


@kernel
def _last_starting_by(code: Any, firsts: Any, page: Any) -> Any:
    """The last page that starts at or before a code, which `page` does."""
    low, high = page, len(firsts)
    while low < high:
        middle = (low + high) >> 1
        if firsts[middle] <= code:
            low = middle + 1
        else:
            high = middle
    return low - 1


@kernel
def locate_first(codes: Any, valid: Any, index: Any, guide: Any, shift: Any, used: Any, pages: Any) -> None:
    """The first page whose codes enclose each valid code, or -1; pages that are used are marked so.

    Where codes are spread evenly it is the page of the bucket or the next. They get a loop to themselves: mixed with a
    search, it takes six times as long, as nobody can foresee where a search of unsorted codes goes.
    """
    firsts, lasts, _, _, _ = index
    known = len(firsts)
    if known == 0:
        pages[:] = -1
        return
    least, most = firsts[0], lasts[known - 1]
    uneven = False
    for i in range(len(codes)):
        code = codes[i]
        page = np.int64(-1)
        if valid[i] and code >= least and code <= most:
            page = np.int64(guide[np.int64(np.uint64(code - least) >> shift)])
            page += np.int64(lasts[page] < code)
            uneven |= lasts[page] < code
        pages[i] = page
    if uneven:
        for i in range(len(codes)):
            if pages[i] >= 0 and lasts[pages[i]] < codes[i]:
                bucket = np.int64(np.uint64(codes[i] - least) >> shift)
                pages[i] = _first_ending_by(codes[i], lasts, guide, bucket)
    for i in range(len(codes)):
        if pages[i] >= 0:
            if firsts[pages[i]] <= codes[i]:
                used[pages[i]] = True
            else:
                pages[i] = -1
