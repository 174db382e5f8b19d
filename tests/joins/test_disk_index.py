"""Joins on a table whose index lies on disk: what they read of it, and what a block that can't be read does to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.joins.examples import crowded_out, cut, drained, expected, joined, rows_of, spec_of, stream_of
from tests.relations.stored_tables import newest

from millrace.catalog import ALGORITHMS, make_join
from millrace.core.budget import Budget
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.drive import total
from millrace.core.errors import BudgetError, DamagedTableError
from millrace.core.protocols import SemiStreamJoin
from millrace.relations.build import build_table
from millrace.relations.keyindex import BLOCK_BYTES
from millrace.relations.simulated import SimulatedRelation
from millrace.relations.stored import READ_MODES, ReadMode

KEYS = list(range(0, 12_000, 2))
INDEXED = [row.name for row in ALGORITHMS if row.needs_index]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("disk-index")
    counts = pa.table({"id": KEYS, "count": [1e6 / (1 + (7 * key) % 12_000) for key in KEYS]})
    table = pa.table({"id": KEYS, "row": range(len(KEYS))})
    build_table(folder, table, "id", layout="frequency", page_bytes=4096, shards=2, counts=counts)
    return folder


def _join(name: str, folder: Path, memory: int | str, mode: ReadMode = "buffered", **parameters: Any) -> SemiStreamJoin:
    relation = newest(folder, mode)
    return make_join(name, relation, spec_of("left"), Budget(memory), **parameters)


@pytest.mark.parametrize("name", INDEXED)
@pytest.mark.parametrize("mode", READ_MODES)
def test_budgets_from_the_smallest_on_are_enough_and_results_exact(folder: Path, name: str, mode: ReadMode) -> None:
    with pytest.raises(BudgetError) as error:
        _join(name, folder, 1, mode)
    tuples = [(key * key + 3 * key) % 13_000 for key in range(700)]
    for memory in (error.value.needed_bytes, error.value.needed_bytes + 60_000, 2 << 20):
        join = _join(name, folder, memory, mode)
        assert rows_of(joined(join, cut(stream_of([*tuples, None]), 90))) == expected([*tuples, None], KEYS, "left")
        assert join.bytes_used <= memory
    with pytest.raises(BudgetError):
        _join(name, folder, error.value.needed_bytes - 1, mode)


@pytest.mark.parametrize("name", INDEXED)
def test_after_a_block_that_could_not_be_read_nothing_is_lost_and_nothing_called_absent(folder: Path, name: str) -> None:
    join = _join(name, folder, "300k")
    tuples = [KEYS[n] for n in (5, 5999, 3000, 5, 4000)] * (1 if name == "inlj" else 3)
    index = folder / "v000001" / "keys.index"
    whole = index.read_bytes()
    try:
        with open(index, "r+b") as file:  # in place: the join has it open
            file.write(bytes(len(whole)))
        offered = join.offer(stream_of(tuples))
        if name == "ssij":
            join.step()  # gathers first
        for _ in range(3):
            with pytest.raises(DamagedTableError, match=r"block \d+ of .*keys\.index"):
                join.step()
        assert join.pending == offered
    finally:
        with open(index, "r+b") as file:
            file.write(whole)
    steps = drained(join)
    while offered < len(tuples):
        offered += join.offer(stream_of(tuples).slice(offered))
        steps += drained(join)
    assert rows_of(steps) == expected(tuples, KEYS, "left")
    assert total(steps).absent_keys == 0


@pytest.mark.parametrize("name", ["hybridjoin", "xhybridjoin", "sweepjoin"])
def test_keys_in_memory_go_ahead_and_the_index_is_asked_for_the_others_together(folder: Path, name: str) -> None:
    join = _join(name, folder, "300k", buffer_pages=1)
    random = np.random.default_rng(4)
    tuples = random.choice(KEYS, 6000).tolist()
    stream = stream_of(tuples)
    steps, offered = [], 0
    while offered < len(tuples):
        offered += join.offer(stream.slice(offered))
        steps.append(join.step())
    asked = [step.counts.index_reads for step in steps[1:]]
    assert asked.count(0) > len(asked) / 2, "most steps read nothing of the index"
    assert rows_of([*steps, *drained(join)]) == expected(tuples, KEYS, "left")
    blocks = (folder / "v000001" / "keys.index").stat().st_size // BLOCK_BYTES
    assert max(asked) <= blocks


@pytest.mark.parametrize("name", INDEXED)
def test_reads_of_the_index_take_their_time_on_a_virtual_device(folder: Path, name: str) -> None:
    disk = VirtualDevice(device("hdd2008"), VirtualClock())
    stored = newest(folder, "buffered")
    join = make_join(name, SimulatedRelation(stored, disk), spec_of("left"), Budget("300k"))
    tuples = [(key * key + 3 * key) % 13_000 for key in range(700)]
    steps = joined(join, cut(stream_of(tuples), 200))
    assert rows_of(steps) == expected(tuples, KEYS, "left")
    counts = total(steps)
    assert counts.index_reads > 0
    assert disk.bytes_read == counts.bytes_read == counts.pages_read * stored.page_bytes + counts.index_reads * BLOCK_BYTES
    assert disk.clock.now > 8e-3


@pytest.mark.parametrize("name", ["hybridjoin", "sweepjoin", "ssij", "partitionjoin"])
def test_a_key_that_is_not_in_memory_is_looked_up_however_many_come_that_are(folder: Path, name: str) -> None:
    wanted_most = sorted(KEYS, key=lambda key: (7 * key) % 12_000)
    hot = wanted_most[:400:9]  # on more pages than are read at once
    for cold in (wanted_most[-1], 12_345):
        assert not crowded_out(_join(name, folder, "300k", buffer_pages=1), hot, cold, 400)


def test_the_index_is_asked_once_in_many_steps_for_rare_keys_that_are_not_in_memory(folder: Path) -> None:
    wanted_most = sorted(KEYS, key=lambda key: (7 * key) % 12_000)
    join = _join("hybridjoin", folder, "300k", buffer_pages=1)
    stream, offered, asked = stream_of((wanted_most[:400:9] * 40 + wanted_most[-1:]) * 10), 0, 0
    for step in range(1_000):
        offered = (offered + join.offer(stream.slice(offered))) % stream.num_rows
        asked += join.step().counts.index_reads > 0 and step > 0
    assert 1 <= asked <= 1 + 1_000 // 256
