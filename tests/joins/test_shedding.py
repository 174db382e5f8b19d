"""Load shedding: nothing is lost or doubled, whatever the policy, the join and the disk do."""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.catalog import make_join
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, ParameterError, SpillError
from millrace.core.host import Host
from millrace.core.protocols import JoinSpec
from millrace.core.step import Step
from millrace.joins.hybridjoin import HybridJoin
from millrace.joins.shedding.overloaded import Overloaded
from millrace.joins.shedding.store import ShedFile
from millrace.relations.memory import MemoryRelation

POLICIES = ("sample", "keep", "considering", "selective")
JOINS = ("inlj", "meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "sweepjoin")
CACHED = ("cinlj", "cmeshjoin", "chybridjoin", "csweepjoin")
ROWS = 2_000


def _relation() -> MemoryRelation:
    return MemoryRelation(pa.table({"id": np.arange(ROWS), "price": np.arange(ROWS) * 10}), "id", rows_per_page=20)


def _join(name: str = "hybridjoin", memory: int = 40_000) -> Any:
    schema = pa.schema([("event", pa.int64()), ("product", pa.int64())])
    spec = JoinSpec(schema, (("product", "id"),), "inner", ("event",), ("price",), returnable=True)
    more: dict[str, Any] = {"tuples_per_step": None} if name.endswith("inlj") else {}
    if name in CACHED:
        more["cache_share"] = 0.3
    return make_join(name, _relation(), spec, Budget(memory), **more)


def _stream(count: int, first: int = 0, seed: int = 3) -> pa.RecordBatch:
    keys = np.minimum(np.random.default_rng(seed + first).geometric(0.005, count), ROWS + 5)
    return pa.record_batch({"event": np.arange(first, first + count), "product": keys})


def _wanted(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    rows = [row for batch in batches for row in batch.to_pylist()]
    return sorted((row["event"], row["product"] * 10) for row in rows if row["product"] < ROWS)


def _rows(steps: list[Step]) -> list[tuple[int, int]]:
    return sorted((row["event"], row["price"]) for step in steps for row in step.output.to_pylist())


def _overload(join: Overloaded, batches: list[pa.RecordBatch]) -> tuple[list[Step], int]:
    """A batch before every step, then no more; returns the steps, and the most that were outside."""
    host, steps, most = Host(join), [], 0
    for batch in batches:
        assert host.offer(batch) == batch.num_rows
        steps.append(host.step())
        most = max(most, join.deferred)
        assert host.ledger.deferred == join.deferred
    steps += host.drain()
    assert host.ledger.rows_in == sum(batch.num_rows for batch in batches)
    return steps, most


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("name", JOINS + CACHED)
def test_all_that_was_shed_comes_back_and_is_joined_once(name: str, policy: str, tmp_path: Path) -> None:
    batches = [_stream(700, 700 * i) for i in range(12 if name in CACHED else 40)]
    with Overloaded(_join(name, 90_000 if name in CACHED else 40_000), policy=policy, memory="160k", folder=tmp_path) as join:
        steps, most = _overload(join, batches)
        assert most > 1_000, "there was no overload"
        assert (join.deferred, join.pending) == (0, 0)
    assert _rows(steps) == _wanted(batches)
    events = np.concatenate([step.sequence for step in steps])
    assert events.tolist() == [row["event"] for step in steps for row in step.output.to_pylist()]
    assert sum(step.counts.spilled_bytes for step in steps) > 0
    assert not list(tmp_path.iterdir())


def test_drop_says_what_share_is_lost_and_the_ledger_keeps_it_as_deferred() -> None:
    batches = [_stream(700, 700 * i) for i in range(20)]
    join = Overloaded(_join(), policy="drop", memory="200k")
    steps, _ = _overload(join, batches)
    assert 0.2 < join.share_lost < 1
    assert join.deferred == join.share_lost * join.arrived
    assert set(_rows(steps)) < set(_wanted(batches))
    assert sum(step.counts.spilled_bytes for step in steps) == 0


def test_what_is_outside_for_too_long_comes_back_and_is_not_shed_again(tmp_path: Path) -> None:
    join = Overloaded(_join(), policy="selective", memory="200k", folder=tmp_path, age_limit=20)
    host, left = Host(join), {}
    for number in range(300):
        host.offer(_stream(80, 80 * number))
        for event in host.step().left.tolist():
            left[event] = number
    first = [left[event] - event // 80 for event in range(40 * 80) if event in left]
    assert len(first) == 40 * 80, "tuples of the first steps are still outside"
    assert max(first) > 20
    assert host.ledger.deferred > 0
    list(host.drain())
    assert host.ledger.deferred == 0


def test_selective_serves_more_than_shedding_up_front_where_pages_differ(tmp_path: Path) -> None:
    """Half of the tuples want one page, the others any page."""
    served = {}
    for policy in ("keep", "selective"):
        host, random = Host(Overloaded(_join(), policy=policy, memory="200k", folder=tmp_path)), np.random.default_rng(1)
        for number in range(60):
            keys = np.where(np.arange(800) % 2 == 0, 7, random.integers(0, ROWS, 800))
            host.offer(pa.record_batch({"event": np.arange(800) + 800 * number, "product": keys}))
            host.step()
        served[policy] = host.ledger.matched
        list(host.drain())
        assert host.ledger.deferred == 0
    assert served["selective"] > 1.5 * served["keep"]


class _Shed(ShedFile):
    """A file that remembers the keys that went into it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.keys: set[int] = set()

    def put(self, batch: pa.RecordBatch) -> None:
        self.keys.update(batch["product"].to_pylist())
        super().put(batch)


@pytest.mark.parametrize("name", CACHED)
def test_selective_sheds_no_tuple_that_the_front_stage_answers(name: str, tmp_path: Path) -> None:
    """A tenth of the tuples has key 7, which is in the front stage soon; the others any key."""
    sink, random = _Shed(tmp_path), np.random.default_rng(1)
    join = Overloaded(_join(name, 90_000), policy="selective", memory="400k", sink=sink)
    host, count = Host(join), 3_000 if name == "cinlj" else 500
    for number in range(20):
        if number == 10:
            assert join.join.answers(pa.record_batch({"event": [0], "product": [7]})).all()
            sink.keys.clear()
        keys = np.where(np.arange(count) % 10 == 0, 7, random.integers(0, ROWS, count))
        host.offer(pa.record_batch({"event": np.arange(count) + count * number, "product": keys}))
        for _ in range(4):
            host.step()
    assert len(sink.keys) > 100
    assert 7 not in sink.keys
    list(host.drain())
    assert host.ledger.deferred == 0
    assert host.ledger.matched == 20 * count


@pytest.mark.parametrize("name", CACHED)
def test_a_front_stage_alone_that_is_full_is_no_overload(name: str, tmp_path: Path) -> None:
    """All tuples have a key that it knows; it puts so many out in a step."""
    with Overloaded(_join(name, 90_000), policy="selective", memory="400k", folder=tmp_path) as join:
        host = Host(join)
        for number in range(8):
            host.offer(pa.record_batch({"event": np.arange(20) + 20 * number, "product": np.full(20, 7)}))
            list(host.drain())
        host.offer(pa.record_batch({"event": np.arange(5_000), "product": np.full(5_000, 7)}))
        steps = 0
        while join.pending:
            host.step()
            steps += 1
            assert join.deferred == 0
        assert steps > 5
        assert host.ledger.totals.front_hits >= 5_000


def test_a_buffer_that_the_join_takes_whole_is_filled_again(tmp_path: Path) -> None:
    """The join has room for more tuples than the buffer has bytes for."""
    with Overloaded(_join("hybridjoin", 20 << 20), policy="keep", memory="256k", folder=tmp_path) as join:
        host, batch = Host(join), _stream(200_000)
        assert host.offer(batch) == 200_000
        assert sum(step.output.num_rows for step in host.drain()) == len(_wanted([batch]))
        assert host.ledger.rows_in == 200_000


class _FailingOnce(ShedFile):
    """The second read fails, once."""

    reads = 0

    def take(self, rows: int) -> pa.RecordBatch | None:
        self.reads += 1
        if self.reads == 2:
            raise SpillError("the disk said no")
        return super().take(min(rows, 10))


def test_a_read_that_fails_half_way_loses_nothing(tmp_path: Path) -> None:
    with Overloaded(_join(), policy="keep", memory="160k", sink=_FailingOnce(tmp_path)) as join:
        host, batch, out, errors = Host(join), _stream(20_000), 0, 0
        host.offer(batch)
        while join.pending or join.deferred:
            try:
                out += host.step().output.num_rows
            except SpillError:
                errors += 1
        assert errors == 1
        assert out == len(_wanted([batch]))
        assert host.ledger.rows_in == 20_000


@contextmanager
def _file_limit(limit: int) -> Iterator[None]:
    """Files may not grow beyond this, as on a disk that is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_full_disk_loses_nothing_and_the_caller_can_step_on(policy: str, tmp_path: Path) -> None:
    batches = [_stream(700, 700 * i) for i in range(30)]
    join = Overloaded(_join(), policy=policy, memory="160k", folder=tmp_path)
    host, steps, errors = Host(join), [], []
    with _file_limit(40_000):
        for batch in batches:
            rest = batch
            while rest.num_rows:
                try:
                    rest = rest.slice(host.offer(rest))
                except SpillError as error:
                    errors.append(str(error))
                try:
                    steps.append(host.step())
                except SpillError as error:
                    errors.append(str(error))
    steps += host.drain()
    assert errors
    assert "the disk is full" in errors[0]
    assert "No tuple is lost" in errors[0]
    assert _rows(steps) == _wanted(batches)
    join.close()


def test_a_folder_that_cant_be_written_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(SpillError, match=r"can't write into the folder .*give another folder"):
        Overloaded(_join(), policy="keep", folder=tmp_path / "nowhere")


def test_the_file_is_for_its_owner_only_and_has_no_name(tmp_path: Path) -> None:
    store = ShedFile(tmp_path, buffer_bytes=100)
    store.put(pa.record_batch({"a": np.arange(1_000)}))
    assert store.written_bytes > 8_000
    assert store.mode == 0o600
    assert not list(tmp_path.iterdir())
    taken = store.take(5_000)
    assert taken is not None
    assert taken.num_rows == 1_000
    assert store.take(1) is None
    store.close()


class _List:
    """A sink of one's own."""

    def __init__(self) -> None:
        self.batches: list[pa.RecordBatch] = []

    def put(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)

    def take(self, rows: int) -> pa.RecordBatch | None:
        if not self.batches:
            return None
        first = self.batches.pop(0)
        if first.num_rows > rows:
            self.batches.insert(0, first.slice(rows))
        return first.slice(0, rows)

    def close(self) -> None:
        """Nothing to close."""


def test_any_sink_that_takes_record_batches_will_do() -> None:
    batches = [_stream(700, 700 * i) for i in range(20)]
    sink = _List()
    join = Overloaded(_join(), policy="keep", memory="200k", sink=sink)
    steps, most = _overload(join, batches)
    assert most > 0
    assert not sink.batches
    assert _rows(steps) == _wanted(batches)


@pytest.mark.parametrize(
    ("given", "problem"),
    [({"policy": "wish"}, "no policy 'wish'; choose one of drop, sample, keep, considering, selective"),
     ({"position": 1.5}, "position must be a number from 0 .* got 1.5"), ({"position": -0.1}, "position must be"),
     ({"position": "x"}, "position must be"), ({"age_limit": 0}, "age_limit must be a whole number of steps, .* got 0"),
     ({"age_limit": 1.5}, "age_limit must be"), ({"sink": 5}, r"sink must have put\(batch\), .* got int")],
)  # fmt: skip
def test_bad_parameters_are_clear_errors(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParameterError, match=problem):
        Overloaded(_join(), **given)


def test_too_little_memory_and_joins_that_give_nothing_back_are_errors() -> None:
    with pytest.raises(BudgetError, match="give memory="):
        Overloaded(_join(), memory=1_000)
    with pytest.raises(ParameterError, match="this join sheds already"):
        Overloaded(Overloaded(_join()))
    schema = pa.schema([("product", pa.int64())])
    plain = HybridJoin(_relation(), JoinSpec(schema, (("product", "id"),)), Budget("40k"))
    with pytest.raises(ParameterError, match="returnable=True"):
        Overloaded(plain, policy="keep")


def test_nothing_is_shed_while_the_join_keeps_up(tmp_path: Path) -> None:
    join = Overloaded(_join(), policy="keep", folder=tmp_path)
    host = Host(join)
    for number in range(30):
        host.offer(_stream(5, 5 * number))
        host.step()
        assert join.deferred == 0
