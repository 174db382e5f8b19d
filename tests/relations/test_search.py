"""Kernels over the page index, against plain searches."""

from __future__ import annotations

import numpy as np
import pytest

from millrace.core.arrays import Int64Array
from millrace.relations.search import CARD_BYTES, fill_guide, guess_rows, guess_rows_again, locate_pages, make_cards, seek_code

RANDOM = np.random.default_rng(5)
SORTED_CODES: dict[str, Int64Array] = {
    "dense": np.arange(1, 400),
    "uneven": np.sort(np.exp(RANDOM.uniform(0, 40, 300)).astype(np.int64)),
    "with runs over several pages": np.sort(RANDOM.integers(0, 12, 200)),
    "of both signs, far apart": np.array([-(2**62), -5, 0, 3, 2**62]),
    "one": np.array([7]),
    "none": np.zeros(0, np.int64),
}


@pytest.mark.parametrize("name", SORTED_CODES)
@pytest.mark.parametrize("rows_per_page", [1, 4, 50])
def test_pages_of_a_code_are_those_a_plain_search_finds(name: str, rows_per_page: int) -> None:
    codes = SORTED_CODES[name]
    firsts = codes[::rows_per_page].copy()
    lasts = np.append(codes[rows_per_page - 1 :: rows_per_page], codes[-1:])[: len(firsts)].copy()
    guide, shift = np.zeros(1, np.int32), 0
    if len(codes):
        span = int(lasts[-1]) - int(firsts[0])
        shift = max(0, span.bit_length() - (2 * len(firsts)).bit_length())
        guide = np.zeros((span >> shift) + 1, np.int32)
        fill_guide(lasts, firsts[0], np.uint64(shift), guide)
    wanted = np.concatenate((codes, codes - 1, codes + 1, [-(2**62) - 9, 2**62 + 9]))
    first, last = np.empty(len(wanted), np.int64), np.empty(len(wanted), np.int64)
    locate_pages(wanted, firsts, lasts, guide, np.uint64(shift), first, last)
    assert first.tolist() == np.searchsorted(lasts, wanted, "left").tolist()
    assert last.tolist() == (np.searchsorted(firsts, wanted, "right") - 1).tolist()


def _guessed(codes: Int64Array, wanted: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Rows of wanted codes in one page with these codes, as guessed first and second."""
    none = np.zeros(1, np.int32)
    cards = make_cards((codes[:1].copy(), codes[-1:].copy(), none, none, none), np.array([len(codes)], np.int32))
    cards["codes"] = codes.ctypes.data
    pages = np.zeros(len(wanted), np.int32)
    rows = np.empty(len(wanted), np.int32)
    guess_rows(wanted, pages, cards, rows, 0, len(wanted))
    first = rows.astype(np.int64)
    guess_rows_again(wanted, pages, cards, rows, 0, len(wanted))
    return first, rows.astype(np.int64)


@pytest.mark.parametrize("name", [name for name in SORTED_CODES if name != "none"])
def test_a_row_is_found_from_wherever_it_was_guessed(name: str) -> None:
    codes = SORTED_CODES[name]
    wanted = np.concatenate((codes, codes - 1, codes + 1, [-(2**63), 2**63 - 1]))
    for rows in _guessed(codes, wanted):
        assert rows.min() >= 0
        assert rows.max() < len(codes)
        found = [seek_code(codes.ctypes.data, len(codes), code, row) for code, row in zip(wanted, rows, strict=True)]
        assert found == np.searchsorted(codes, wanted).tolist()


def test_a_second_guess_among_random_codes_is_several_times_nearer() -> None:
    codes = np.sort(RANDOM.integers(0, 2**40, 2_000))
    first, second = _guessed(codes, codes)
    rows = np.arange(len(codes))
    assert np.abs(second - rows).mean() < np.abs(first - rows).mean() / 3


@pytest.mark.parametrize("gap", [1, 3, 7, 10**9 + 7])
def test_codes_that_lie_evenly_are_guessed_at_once(gap: int) -> None:
    codes = np.arange(4_000, dtype=np.int64) * gap - 10**15
    first, second = _guessed(codes, codes)
    assert first.tolist() == second.tolist() == list(range(len(codes)))


def test_no_card_lies_across_two_lines_of_memory() -> None:
    pages = 1_000
    places = np.zeros(pages, np.int32)
    codes = np.arange(pages, dtype=np.int64)
    cards = make_cards((codes, codes, places, places, places), np.ones(pages, np.int32))
    assert len(cards) == pages
    assert 64 % CARD_BYTES == 0
    assert cards.ctypes.data % CARD_BYTES == 0
    assert cards["rows_per_code"].tolist() == [0.0] * pages
