"""Every algorithm ends with exactly the answer, in any budget, whatever the keys and however rows arrive."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from tests.online.inputs import StallingInput
from tests.online.tables import ALGORITHMS, COUNT_AND_SUM, KINDS, Collected, Tables, join_of, tables

from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.online.pair_functions import Functions, Products
from millrace.online.protocol import Batch, Input, finished
from millrace.online.storage.inputs import ArrayInput
from millrace.online.storage.spill import FileSpill

NAMES = tuple(ALGORITHMS)


def answer(name: str, data: Tables, **options: object) -> tuple[float, float]:
    end = finished(join_of(name, data.a, data.b, **options))  # type: ignore[arg-type]
    assert end.done
    assert end.counters.results == end.pieces.pairs_joined()
    count, total = end.pieces.answer()[0]
    return float(count), float(total)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_the_end_is_the_answer_when_memory_is_a_fifth_of_the_input(name: str, kind: str) -> None:
    data = tables(kind)
    assert answer(name, data, memory=max(3 << 15, data.bytes // 5)) == data.expected()


@pytest.mark.parametrize("name", NAMES)
def test_the_end_is_the_answer_when_all_fits_into_memory(name: str) -> None:
    data = tables("duplicates")
    assert answer(name, data, memory=1 << 24) == data.expected()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["foreign key", "skew"])
@pytest.mark.parametrize("name", NAMES)
def test_the_end_is_the_answer_in_one_percent_of_the_input(name: str, kind: str) -> None:
    data = tables(kind, rows=300_000)
    assert answer(name, data, memory=data.bytes // 100) == data.expected()


@pytest.mark.parametrize("name", NAMES)
def test_inputs_of_different_sizes_and_order_change_nothing(name: str) -> None:
    data = tables("foreign key", rows=30_000)
    small = Tables(data.a[:700], data.b)
    assert answer(name, small, memory=1 << 17) == small.expected()
    turned = Tables(data.b, data.a[:700])
    assert answer(name, turned, memory=1 << 17) == turned.expected()


@pytest.mark.parametrize("name", NAMES)
def test_stalls_of_either_input_change_nothing(name: str) -> None:
    data = tables("duplicates")
    random = np.random.default_rng(2)
    a, b = (
        StallingInput(ArrayInput(side), iter(random.choice([0, 0, 7, 500, 3000], 80).tolist())) for side in (data.a, data.b)
    )
    end = finished(join_of(name, a, b, memory=3 << 15))
    assert tuple(end.pieces.answer()[0]) == data.expected()


@pytest.mark.parametrize("name", NAMES)
def test_an_input_that_comes_late_changes_nothing(name: str) -> None:
    data = tables("foreign key")
    late = StallingInput(ArrayInput(data.a), itertools.repeat(0, 60))
    end = finished(join_of(name, late, data.b, memory=3 << 15))
    assert tuple(end.pieces.answer()[0]) == data.expected()


class Misjudged:
    """An input whose number of rows was estimated badly."""

    def __init__(self, wrapped: ArrayInput, rows: int) -> None:
        self._wrapped, self.rows, self.width = wrapped, rows, wrapped.width

    @property
    def ended(self) -> bool:
        return self._wrapped.ended

    def read(self, rows: int) -> Batch:
        return self._wrapped.read(rows)


@pytest.mark.parametrize("factors", [(0.2, 0.2), (0.0, 5.0)])
@pytest.mark.parametrize("name", NAMES)
def test_a_bad_estimate_of_the_rows_changes_nothing(name: str, factors: tuple[float, float]) -> None:
    data = tables("foreign key", rows=600)
    memory = enough(name, *(Misjudged(ArrayInput(s), int(len(s) * f)) for s, f in zip((data.a, data.b), factors, strict=True)))
    a, b = (Misjudged(ArrayInput(s), int(len(s) * f)) for s, f in zip((data.a, data.b), factors, strict=True))
    end = finished(join_of(name, a, b, memory=memory))
    assert tuple(end.pieces.answer()[0]) == data.expected()


def enough(name: str, a: Input, b: Input, memory: int = 4000) -> int:
    """So much memory, or what the join says it needs."""
    try:
        join_of(name, a, b, memory=memory).close()
    except BudgetError as small:
        return small.needed_bytes
    return memory


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_do_not_join_are_counted_as_read_and_nothing_else(name: str) -> None:
    data = tables("foreign key")
    random = np.random.default_rng(3)
    keep_a, keep_b = (random.random(len(side)) < 0.6 for side in (data.a, data.b))
    end = finished(join_of(name, ArrayInput(data.a, keep_a), ArrayInput(data.b, keep_b), memory=3 << 15))
    assert tuple(end.pieces.answer()[0]) == Tables(data.a[keep_a], data.b[keep_b]).expected()
    assert (end.counters.rows_a, end.counters.rows_b) == (len(data.a), len(data.b))


@pytest.mark.parametrize("name", NAMES)
def test_groups_of_both_sides_add_up_to_the_answer_and_are_each_right(name: str) -> None:
    random = np.random.default_rng(4)
    codes_a, codes_b = random.integers(0, 900, 6000), random.integers(0, 900, 5000)
    group_a, group_b = random.integers(0, 3, 6000), random.integers(0, 2, 5000)
    value = random.integers(0, 100, 5000).astype(np.float64)
    a = np.stack([codes_a, group_a], axis=1)
    b = np.stack([codes_b, value.view(np.int64), group_b], axis=1)
    functions = Products(((), ()), ((), (1,)), group_a=1, groups_a=3, group_b=2, groups_b=2)
    end = finished(join_of(name, a, b, functions, memory=1 << 18))
    for g in range(3):
        for h in range(2):
            rows = np.bincount(codes_a[group_a == g], minlength=900)
            here = group_b == h
            expected = rows[codes_b[here]].sum(), (rows[codes_b[here]] * value[here]).sum()
            assert tuple(end.pieces.answer()[2 * g + h]) == expected


@pytest.mark.parametrize("name", NAMES)
def test_the_byte_budget_holds_and_is_used(name: str) -> None:
    data = tables("one to one", rows=16_000)
    budget = Budget(data.bytes // 5)
    finished(join_of(name, data.a, data.b, COUNT_AND_SUM, budget=budget))
    assert 0.5 * budget.memory_bytes < budget.peak_bytes <= budget.memory_bytes


@pytest.mark.parametrize("name", ["grace", "prjoin", "ripple", "sms", "rpj"])
def test_direct_transfers_give_the_same_answer(name: str, tmp_path: Path) -> None:
    data = tables("skew", rows=40_000)
    spill = FileSpill(tmp_path, mode="direct")
    assert answer(name, data, memory=1 << 19, spill=spill) == data.expected()
    assert spill.written_bytes > 0


GROUPED = Products(((), ()), ((), (1,)), group_a=1, groups_a=40, group_b=1, groups_b=30)


@pytest.mark.parametrize("functions", [COUNT_AND_SUM, Collected().functions, GROUPED], ids=["moments", "pairs", "groups"])
@pytest.mark.parametrize("name", NAMES)
def test_a_budget_that_is_too_small_states_an_amount_that_is_enough(name: str, functions: Functions) -> None:
    data = tables("foreign key", rows=400)
    codes = np.random.default_rng(5).integers(0, 30, (2, 400))  # groups; as doubles, tiny numbers
    a, b = (np.stack([side[:, 0], codes[number, : len(side)]], axis=1) for number, side in enumerate((data.a, data.b)))
    expected = int((np.bincount(a[:, 0], minlength=200) * np.bincount(b[:, 0], minlength=200)).sum())
    for memory in (1, 2000):
        budget = Budget(memory)
        with pytest.raises(BudgetError) as small:
            join_of(name, a, b, functions, budget=budget)
        needed = small.value.needed_bytes
        assert memory < needed < 1 << 24
        assert f"give memory={needed} or more" in str(small.value)
        assert budget.used_bytes == 0
        end = finished(join_of(name, a, b, functions, memory=needed))
        assert end.done
        assert end.pieces.pairs_joined() == expected
