"""Joins on virtual devices: times worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.catalog import ALGORITHMS, make_join
from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.drive import drive, total
from millrace.core.errors import ParameterError, StrategyError
from millrace.core.protocols import JoinSpec, PageRuns
from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.relations.generated import GeneratedRelation
from millrace.relations.memory import MemoryRelation
from millrace.relations.simulated import SimulatedRelation

PAGE_BYTES = 70_000  # one millisecond on hdd2008, behind 8 ms to get there
ROWS_PER_PAGE = 700
STREAM = pa.schema([("key", pa.int64())])
SPEC = JoinSpec(STREAM, (("key", "key"),), "inner", ("key",), ("surrogate_key",))
FREE = UnitCosts(seek=0.0, read_byte=1.0)  # of a device where no gap is worth crossing
OF_THE_DISK = UnitCosts(seek=8e-3, read_byte=1 / 70e6)


def simulated(pages: int, name: str = "hdd2008", *, overlapped: bool = False) -> SimulatedRelation:
    relation = GeneratedRelation(pages * ROWS_PER_PAGE, row_bytes=100, page_bytes=PAGE_BYTES)
    return SimulatedRelation(relation, VirtualDevice(device(name), VirtualClock()), overlapped=overlapped)


def keys_on(*pages: int) -> pa.RecordBatch:
    return pa.record_batch({"key": pa.array([page * ROWS_PER_PAGE + 5 for page in pages], pa.int64())})


def milliseconds(relation: SimulatedRelation) -> float:
    return relation.device.clock.now * 1e3


@pytest.mark.parametrize(
    ("name", "parameters", "taken"),
    [
        # each tuple its own page: 3 and 0 behind a seek, 1 goes on where 0 ended
        ("inlj", {}, [9, 18, 19]),
        ("hybridjoin", {"buffer_pages": 1}, [9, 18, 19]),
        # partitions of two pages: that of page 3, then that of pages 0 and 1
        ("hybridjoin", {"buffer_pages": 2}, [10, 20]),
        # one pass of four pages in two reads, the second goes on
        ("meshjoin", {"buffer_pages": 2, "tuples_per_step": 3}, [10, 12]),
        ("rmeshjoin", {"buffer_pages": 3}, [11, 12]),
        # page 2 costs 1 ms to cross and 8 ms to jump over
        ("sweepjoin", {"buffer_pages": 4, "costs": OF_THE_DISK}, [12]),
        ("sweepjoin", {"buffer_pages": 4, "costs": FREE}, [19]),
    ],
)
def test_steps_take_what_their_reads_take(name: str, parameters: dict[str, Any], taken: list[float]) -> None:
    relation = simulated(4)
    join = make_join(name, relation, SPEC, Budget("4m"), **parameters)
    times = []
    for step in drive(join, [keys_on(3, 0, 1)]):
        assert step.counts.bytes_read == step.counts.pages_read * PAGE_BYTES
        times.append(milliseconds(relation))
    assert times == pytest.approx(taken)


def test_a_second_pass_costs_the_way_back() -> None:
    relation = simulated(4)
    join = make_join("meshjoin", relation, SPEC, Budget("4m"), buffer_pages=4)
    for passes in (1, 2, 3):
        join.offer(keys_on(2))
        join.step()
        assert join.pending == 0
        assert milliseconds(relation) == pytest.approx(passes * (8 + 4))


def test_work_is_counts_times_unit_costs() -> None:
    costs = UnitCosts(expire=1.0, take=10.0, add=100.0, probe=1_000.0, output=10_000.0)
    counts = StepCounts(tuples_in=1, removed=2, probes=3, front_lookups=1, matches=5, pages_read=9, seeks=9, index_reads=9)
    assert costs.work(counts) == pytest.approx(2 * 1 + 1 * 110 + 4 * 1_000 + 5 * 10_000)
    assert costs.work(counts) + costs.work(counts) == pytest.approx(costs.work(counts + counts))


@pytest.mark.parametrize(
    ("overlapped", "work", "taken"),
    [
        (False, 5e-3, [9, 14, 15, 20, 21, 26]),
        # page 1 is there when work on page 0 ends at 14 ms; nothing is read after page 2
        (True, 5e-3, [9, 14, 14, 19, 19, 24]),
        # reading is slower: work on each page is hidden but for the last
        (True, 0.5e-3, [9, 9.5, 10, 10.5, 11, 11.5]),
    ],
)
def test_work_overlaps_with_the_next_read_or_comes_before_it(overlapped: bool, work: float, taken: list[float]) -> None:
    relation = simulated(4, overlapped=overlapped)
    times = []
    for page in range(3):
        relation.read(page, 1)
        times.append(relation.now)
        relation.work(work)
        times.append(relation.now)
    assert [time * 1e3 for time in times] == pytest.approx(taken)
    relation.settle()
    assert relation.device.clock.now == relation.now == times[-1]


def test_reads_of_one_call_go_on_at_a_time_where_the_device_can() -> None:
    for name, taken in (("hdd2008", 9 + 9), ("object-store", 20 + 0.7)):
        relation = simulated(4, name)
        relation.read_many(np.array([0, 2]), np.array([1, 1]))
        assert milliseconds(relation) == pytest.approx(taken)


def test_pages_that_stay_are_read_when_they_are_loaded() -> None:
    relation = simulated(9)
    frames = relation.frames(5)
    frames.load(np.array([0, 1, 5]), np.array([0, 1, 2]))
    assert milliseconds(relation) == pytest.approx(10 + 9)
    assert frames.run(np.array([0, 5]), np.array([0, 2])).rows == 2 * ROWS_PER_PAGE
    frames.load(np.array([6, 5, 6]), np.array([2, 3, 4]), each=True)
    assert milliseconds(relation) == pytest.approx(19 + 1 + 9 + 1)
    assert relation.device.seeks == 3


class TwoBlocksAKey:
    """An index on disk whose look-ups read two blocks of 7,000 bytes for each key."""

    least_bytes = 1

    def lookup(self, budget: Budget, hot_keys: int) -> TwoBlocksAKey:
        return self

    def locate(self, codes: Int64Array) -> PageRuns:
        self.asked = len(codes)
        return PageRuns(codes, codes)

    def counts(self) -> StepCounts:
        return StepCounts(index_reads=2 * self.asked, bytes_read=2 * self.asked * 7_000)


def test_blocks_of_an_index_on_disk_are_read_one_by_one() -> None:
    class Indexed(GeneratedRelation):
        disk_index = TwoBlocksAKey()

    relation = SimulatedRelation(Indexed(10), VirtualDevice(device("hdd2008"), VirtualClock()))
    index = relation.disk_index
    assert index is not None
    assert index.least_bytes == 1
    lookup = index.lookup(Budget("1m"), 0)
    assert lookup.locate(np.array([3, 4])).first.tolist() == [3, 4]
    assert milliseconds(relation) == pytest.approx(4 * 8.1)
    assert (lookup.counts().index_reads, lookup.counts().index_reads) == (4, 0)
    assert simulated(1).disk_index is None


def test_a_read_that_fails_takes_no_time() -> None:
    relation = simulated(4)
    with pytest.raises(ParameterError):
        relation.read(3, 2)
    with pytest.raises(ParameterError):
        relation.read_many(np.array([9]), np.array([1]))
    assert (relation.device.clock.now, relation.device.reads) == (0.0, 0)


def test_a_relation_without_an_index_has_none_on_a_device_either() -> None:
    rows = MemoryRelation(pa.table({"key": [1, 2], "surrogate_key": [3, 4]}), "key", indexed=False)
    relation = SimulatedRelation(rows, VirtualDevice(device("ssd"), VirtualClock()))
    with pytest.raises(StrategyError, match="needs an index"):
        make_join("hybridjoin", relation, SPEC, Budget("4m"))
    (step,) = drive(make_join("meshjoin", relation, SPEC, Budget("4m")), [pa.record_batch({"key": [2]})])
    assert step.output.to_pylist() == [{"key": 2, "surrogate_key": 4}]


@pytest.mark.parametrize("name", [row.name for row in ALGORITHMS])
def test_every_join_puts_out_the_same_rows_and_counts_as_the_device_does(name: str) -> None:
    rng = np.random.default_rng(1)
    table = pa.table({"key": np.repeat(np.arange(40), 2), "surrogate_key": np.arange(80)})
    batches = [pa.record_batch({"key": rng.integers(0, 45, size)}) for size in (30, 0, 50, 7)]
    plain = MemoryRelation(table, "key", rows_per_page=7)
    relation = SimulatedRelation(
        MemoryRelation(table, "key", rows_per_page=7), VirtualDevice(device("hdd2008"), VirtualClock())
    )
    expected = list(drive(make_join(name, plain, SPEC, Budget("64k")), batches))
    steps = list(drive(make_join(name, relation, SPEC, Budget("64k")), batches))
    assert [step.output.to_pylist() for step in steps] == [step.output.to_pylist() for step in expected]
    counts, disk = total(steps), relation.device
    assert (disk.seeks, disk.bytes_read) == (counts.seeks, counts.bytes_read)
    assert disk.clock.now == pytest.approx(counts.seeks * 8e-3 + counts.bytes_read / 70e6)
