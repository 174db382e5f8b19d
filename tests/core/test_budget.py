"""One byte budget: what is handed out by name never passes the limit, and an error says what would do."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from millrace.core.budget import Budget, format_bytes, parse_bytes
from millrace.core.errors import BudgetError, MillraceError, ParameterError


@pytest.mark.parametrize(
    ("size", "count"),
    [(1, 1), (4096, 4096), ("17", 17), ("17b", 17), ("1k", 1024), ("2K", 2048), ("256m", 256 << 20),
     ("256 MB", 256 << 20), ("1.5g", 3 << 29), ("1.5 GiB", 3 << 29), ("1t", 1 << 40), (" 8 kib ", 8192), ("0.5k", 512)],
)  # fmt: skip
def test_sizes_are_read_as_people_write_them(size: int | str, count: int) -> None:
    assert parse_bytes(size) == count


@pytest.mark.parametrize("size", ["", "m", "12x", "-1m", "1,5g", "1e9", "1m1", 1.5, None, True, [1]])
def test_a_size_that_can_not_be_read_is_an_error_with_an_example(size: object) -> None:
    with pytest.raises(ParameterError, match="'256m'"):
        parse_bytes(size)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, -5, "0", "0.1b", "0m"])
def test_a_size_must_be_more_than_nothing(size: int | str) -> None:
    with pytest.raises(ParameterError, match="more than zero bytes"):
        parse_bytes(size)


def test_sizes_are_written_as_people_read_them() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 1536, 256 << 20, 3 << 40)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "256.0 MiB", "3.0 TiB",
    ]  # fmt: skip


def test_what_is_used_is_the_sum_of_what_was_handed_out() -> None:
    budget = Budget("1k")
    codes = budget.array("codes", 50, np.int64)
    flags = budget.array("flags", 100, np.bool_)
    assert (codes.nbytes, flags.nbytes) == (400, 100)
    assert not codes.any()
    assert (budget.used_bytes, budget.free_bytes) == (500, 524)
    assert budget.holdings() == {"codes": 400, "flags": 100}


def test_a_name_holds_one_amount_at_a_time_and_gives_it_back() -> None:
    budget = Budget(100)
    budget.reserve("buffer", 80)
    budget.reserve("buffer", 100)
    budget.reserve("buffer", 30)
    assert budget.used_bytes == 30
    budget.release("buffer")
    budget.release("buffer")
    assert budget.used_bytes == 0
    assert budget.peak_bytes == 100


def test_more_than_the_limit_is_an_error_that_says_how_much_would_do_and_changes_nothing() -> None:
    budget = Budget(100)
    budget.reserve("window", 60)
    with pytest.raises(BudgetError, match=r"disk buffer needs 50 B beside 60 B in use; give memory=110 or more") as caught:
        budget.reserve("disk buffer", 50)
    assert caught.value.needed_bytes == 110
    assert isinstance(caught.value, MemoryError)
    assert isinstance(caught.value, MillraceError)
    assert budget.holdings() == {"window": 60}
    with pytest.raises(BudgetError):
        budget.array("codes", 6, np.int64)
    assert budget.holdings() == {"window": 60}
    Budget(caught.value.needed_bytes).reserve("all of it", 110)


def test_the_error_survives_the_way_from_a_worker_to_the_driver() -> None:
    error = pickle.loads(pickle.dumps(BudgetError("too small", 77)))
    assert (str(error), error.needed_bytes) == ("too small", 77)
