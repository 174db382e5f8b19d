"""A join takes what it has set aside, so the amount that an error names is right, and near the least."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.online.tables import ALGORITHMS, COUNT_AND_SUM, Collected, join_of, tables

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.online.pair_functions import Functions, Products
from millrace.online.sampling.heavy_keys import HeavyKeys
from millrace.online.storage.inputs import ArrayInput
from millrace.online.storage.memory_plan import Layout
from millrace.online.storage.sizing import Shape, divided
from millrace.online.storage.spill import FileSpill

GROUPED = Products(((), ()), ((), (1,)), group_a=1, groups_a=4, group_b=1, groups_b=3)
FUNCTIONS = pytest.mark.parametrize(
    "functions", [COUNT_AND_SUM, Collected().functions, GROUPED], ids=["moments", "pairs", "groups"]
)
JOINS = pytest.mark.parametrize("name", ALGORITHMS)
CLOSE = 1.1  # what is named is at most so many times the least


def _inputs(rows: int) -> tuple[Int64Array, Int64Array]:
    data = tables("foreign key", rows=rows)
    groups = np.random.default_rng(5).integers(0, 3, (2, rows))
    a, b = (np.stack([side[:, 0], groups[number, : len(side)]], axis=1) for number, side in enumerate((data.a, data.b)))
    return a, b


def _divide(name: str, a: Int64Array, b: Int64Array, functions: Functions, memory: int, **options: Any) -> Budget:
    """Sizes alone."""
    budget = Budget(memory)
    make: Any = ALGORITHMS[name]
    make.divide(Shape.of(ArrayInput(a), ArrayInput(b), functions, FileSpill()), budget, **options)
    return budget


@FUNCTIONS
@JOINS
@pytest.mark.parametrize("memory", [200_000, 3_000_000])
def test_a_join_takes_what_it_has_set_aside_name_by_name(name: str, functions: Functions, memory: int) -> None:
    a, b = _inputs(3000)
    budget = Budget(memory)
    join_of(name, a, b, functions, budget=budget).close()
    assert budget.holdings() == _divide(name, a, b, functions, memory).holdings()


@pytest.mark.parametrize("options", [{"threads": 2}, {"layout": Layout(partitions=16)}, {"layout": Layout(extent_bytes=4096)}])
def test_options_that_change_sizes_change_both(options: dict[str, Any]) -> None:
    a, b = _inputs(3000)
    budget = Budget(1 << 20)
    join_of("prjoin", a, b, budget=budget, **options).close()
    assert budget.holdings() == _divide("prjoin", a, b, COUNT_AND_SUM, 1 << 20, **options).holdings()
    assert budget.holdings() != _divide("prjoin", a, b, COUNT_AND_SUM, 1 << 20).holdings()


@FUNCTIONS
@JOINS
def test_the_amount_that_is_named_is_near_the_least(name: str, functions: Functions) -> None:
    a, b = _inputs(400)
    with pytest.raises(BudgetError) as small:
        join_of(name, a, b, functions, memory=1)
    needed = small.value.needed_bytes
    join_of(name, a, b, functions, memory=needed).close()
    with pytest.raises(BudgetError):
        join_of(name, a, b, functions, memory=int(needed / CLOSE))


@JOINS
def test_what_others_hold_in_the_budget_counts_and_stays(name: str) -> None:
    a, b = _inputs(400)
    amounts = []
    for held in (0, 100_000):
        budget = Budget(held + 1)
        budget.reserve("others", held)
        with pytest.raises(BudgetError) as small:
            join_of(name, a, b, budget=budget)
        assert budget.holdings() == {"others": held}
        amounts.append(small.value.needed_bytes)
    more = Budget(amounts[1])
    more.reserve("others", 100_000)
    join_of(name, a, b, budget=more).close()
    assert amounts[1] > 100_000 + amounts[0] / CLOSE


def test_no_array_is_made_while_an_amount_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = _inputs(400)

    def refuse(self: Budget, name: str, length: int, dtype: Any) -> Any:
        raise AssertionError(f"{name} was made")

    monkeypatch.setattr(Budget, "array", refuse)
    for name in ALGORITHMS:
        with pytest.raises(BudgetError):
            join_of(name, a, b, memory=1000)
        with pytest.raises(AssertionError, match="was made"):  # and it would be noticed
            join_of(name, a, b, memory=1 << 22)


def test_after_an_error_the_budget_is_as_it_was() -> None:
    shape = Shape(COUNT_AND_SUM, (2, 2), (10, 20), lambda extent: extent)
    budget = Budget(1000)
    budget.reserve("others", 10)

    def divide(given: Budget) -> str:
        given.reserve("first", 600)
        given.reserve("second", 600)
        return "enough"

    with pytest.raises(BudgetError, match="too small to join 10 with 20 rows; give memory=") as small:
        divided(divide, shape, budget)
    assert budget.holdings() == {"others": 10}
    assert 1210 <= small.value.needed_bytes <= 1210 * CLOSE
    assert divided(divide, shape, Budget(small.value.needed_bytes)) == "enough"


@pytest.mark.parametrize("functions", [COUNT_AND_SUM, GROUPED], ids=["plain", "groups"])
@pytest.mark.parametrize("memory", [1 << 16, 1 << 20])
def test_heavy_keys_take_what_they_have_set_aside(functions: Products, memory: int) -> None:
    codes = np.arange(700)
    trial, budget = Budget(memory), Budget(memory)
    count = HeavyKeys.divide(codes, functions, trial)
    assert len(HeavyKeys(codes, functions, budget).codes) == count
    assert budget.holdings() == trial.holdings()
