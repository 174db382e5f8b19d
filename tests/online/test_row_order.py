"""Rows that do not come in random order are seen, read in random order where they can be, and allowed for where they can't."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.core.keys import KeyCodec
from millrace.online.pair_functions import Products
from millrace.online.question.expressions import Names
from millrace.online.question.sides import Side, Word
from millrace.online.sampling.block_variance import Matches, Sampled
from millrace.online.sampling.rank_tests import columns_in_order
from millrace.online.sampling.row_order import Clusters
from millrace.online.tables.row_groups import ParquetSource

ROWS = 12_000


def _segments(values: Any, count: int = 20) -> list[pa.RecordBatch]:
    batch = pa.record_batch({"x": values})
    size = len(values) // count
    return [batch.slice(number * size, size) for number in range(count)]


def test_values_in_random_order_pass_and_those_in_some_order_do_not() -> None:
    random = np.random.default_rng(1)
    passed = 0
    for _ in range(50):
        shapes = [random.normal(size=4000), random.pareto(0.5, 4000), random.integers(0, 3, 4000)]
        passed += sum(not columns_in_order(_segments(values), neighbours=True) for values in shapes)
    assert passed >= 148
    values = random.pareto(1.0, 4000)
    trend = random.normal(size=4000) + np.arange(4000) / 4000
    beside = np.repeat(random.permutation(1000), 4)
    for ordered in (np.sort(values), -np.sort(values), trend, beside):
        assert columns_in_order(_segments(ordered), neighbours=True) == {"x"}
    assert columns_in_order(_segments(beside), neighbours=False) == {"x"}
    texts = pa.array([None if x % 7 == 0 else f"text {x:05}" for x in range(4000)])
    assert columns_in_order(_segments(texts), neighbours=True) == {"x"}
    for nothing in ([True] * 4000, pa.nulls(4000), random.random(4000) < 0.5, pa.array([[1]] * 4000)):
        assert columns_in_order(_segments(nothing), neighbours=True) == set()


# --- reading


def _write(table: pa.Table, path: Path, rows: int) -> Path:
    pq.write_table(table, path, row_group_size=rows)
    return path


def _inside(table: pa.Table, by: str, rows: int) -> pa.Table:
    """Row groups alike, each sorted inside."""
    return pa.concat_tables([table.slice(first, rows).sort_by(by) for first in range(0, len(table), rows)])


@pytest.mark.parametrize("most_bytes", [1 << 20, 20_000])
def test_mixed_row_groups_give_every_row_once_in_an_order_of_the_seed(most_bytes: int, tmp_path: Path) -> None:
    source = ParquetSource(_write(pa.table({"k": np.arange(5000), "t": ["x"] * 5000}), tmp_path / "t", 1500))
    assert source.mix(["k"], most_bytes)
    assert source.held_bytes <= most_bytes
    orders = [[k for batch in source.batches(["k"], 300, seed) for k in batch["k"].to_pylist()] for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == list(range(5000))
    first = np.array(orders[0][:300]) % 1500  # from all of the row group, not from its start
    assert 500 < first.mean() < 1000
    assert max(batch.num_rows for batch in source.batches(["k"], 300, 1)) <= 300
    assert not source.mix(["k"], 100)
    assert not source.mix(["k"], source.mixing_bytes(["k"]) - 100)
    assert source.mix(["k"], source.mixing_bytes(["k"]))


def _population(seed: int = 12, rows: int = ROWS) -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(seed)
    left = pa.table({"k": random.permutation(rows), "x": random.gamma(4, 0.25, rows)})
    return left, pa.table({"k": random.integers(0, rows, rows), "v": random.gamma(4, 0.25, rows)})


def _early(left: Any, right: Any, seed: int, **options: Any) -> Any:
    options = {"memory": "600k", "every": 0, "threads": 1, "s": "sum(v * x)", "mean": "avg(v)", **options}
    with mr.estimate(left, right, on="k", seed=seed, **options) as run:
        return next(report for report in run if report.share_read > 0.25)


def test_rows_sorted_inside_row_groups_are_read_in_random_order(tmp_path: Path) -> None:
    """Read as they lie, the mean of a quarter would be a fifth too small, and its interval a twentieth wide."""
    left, right = _population()
    path = _write(_inside(right, "v", 4000), tmp_path / "right", 4000)
    truth = float(np.mean(right["v"].to_numpy()))
    off = []
    for seed in range(6):
        report = _early(left, path, seed)
        assert report.variance_of == "rows"
        estimate = report["mean"]
        assert estimate.half_width < 0.1 * truth
        off.append((estimate.value - truth) / estimate.half_width)
    assert np.abs(off).max() < 2  # half-widths
    assert abs(np.mean(off)) < 1


def test_one_row_group_is_as_good_as_a_table_in_memory(tmp_path: Path) -> None:
    left, right = _population()
    truth = float(np.mean(right["v"].to_numpy()))
    for name, table in (("as it is", right), ("sorted", right.sort_by("v"))):
        report = _early(left, _write(table, tmp_path / name, ROWS), 3)
        assert report.variance_of == "rows"
        assert report["mean"].low <= truth <= report["mean"].high


def test_row_groups_too_large_to_be_mixed_give_no_interval_and_say_what_would_do(tmp_path: Path) -> None:
    left, right = _population()
    wide = right.append_column("text", pa.array([f"{i:0300}" for i in range(ROWS)])).sort_by("v")
    path = _write(wide, tmp_path / "right", ROWS)
    asked = {"where": "text <> 'none'", "s": "sum(v * x)"}
    report = _early(left, path, 1, **asked)
    assert not np.isfinite(report["s"].half_width)
    assert "too large to be mixed" in report.warnings[0]
    needed = int(report.warnings[0].split("memory=")[1].split()[0])
    enough = _early(left, path, 1, **asked, memory=needed)
    assert np.isfinite(enough["s"].half_width)
    end = mr.estimate(left, path, on="k", memory="600k", s="sum(v * x)").exact()
    assert end["s"].value == pytest.approx(mr.estimate(left, right, on="k", s="sum(v * x)").exact()["s"].value)


def test_tables_sorted_by_their_keys_in_few_row_groups_are_seen(tmp_path: Path) -> None:
    left, right = _population()
    paths = [_write(table.sort_by("k"), tmp_path / name, 600) for name, table in (("l", left), ("r", right))]
    report = _early(*paths, 1)
    assert report.variance_of == "blocks"
    assert not report["s"].half_width < 0.3 * report["s"].value  # as rows it would be a tenth
    assert "both tables are ordered by their keys" in report.warnings[0]


def test_means_of_tables_sorted_by_their_keys_are_nearly_as_sure_as_those_of_rows(tmp_path: Path) -> None:
    """Which keys of both tables have been read is a matter of blocks, what lies beside a key is not: COUNT suffers, AVG hardly.
    With these seeds the first sample has too few matches, and the others must tell."""
    left, right = _population(rows=20_000)
    paths = [_write(table.sort_by("k"), tmp_path / name, 250) for name, table in (("l", left), ("r", right))]
    wider: dict[str, list[float]] = {"mean": [], "n": []}
    for seed in (5, 6, 7, 8):
        blocks, rows = (_early(*paths, seed, memory="1m", n="count(*)", order=order) for order in ("auto", "random"))
        assert (blocks.variance_of, rows.variance_of) == ("blocks", "rows")
        for label, each in wider.items():
            each.append(blocks[label].half_width / rows[label].half_width)
    assert np.median(wider["mean"]) < 2
    assert np.median(wider["n"]) > 4


def test_tables_in_the_same_parts_by_a_hash_of_the_key_are_seen(tmp_path: Path) -> None:
    """As Spark writes buckets: no column shows it, but a file of one side meets one file of the other alone."""
    left, right = _population()
    for name, table in (("l", left), ("r", right)):
        folder = tmp_path / name
        folder.mkdir()
        bucket = table["k"].to_numpy() * 7919 % 10_007 % 20
        for number in range(20):
            pq.write_table(table.filter(pa.array(bucket == number)), folder / f"{number}.parquet")
    report = _early(tmp_path / "l", tmp_path / "r", 1)
    assert report.variance_of == "blocks"
    assert "of their own" in report.warnings[0]


def test_rows_of_one_key_side_by_side_count_as_one(tmp_path: Path) -> None:
    left, _ = _population()
    random = np.random.default_rng(2)
    keys = np.repeat(random.permutation(ROWS)[: ROWS // 10], 10)
    right = pa.table({"k": keys, "v": random.gamma(4, 0.25, ROWS)})
    beside = _early(left, _write(right, tmp_path / "beside", 400), 1)
    mixed = _early(left, _write(right.take(random.permutation(ROWS)), tmp_path / "mixed", 400), 1)
    assert (beside.variance_of, mixed.variance_of) == ("blocks", "rows")
    assert "rows of the same key lie together" in beside.warnings[0] or "what they meet" in beside.warnings[0]
    assert beside["s"].half_width > 1.5 * mixed["s"].half_width


def test_small_files_that_differ_are_seen(tmp_path: Path) -> None:
    left, right = _population()
    by_value, folder = right.sort_by("v"), tmp_path / "right"
    folder.mkdir()
    for number in range(0, ROWS, 40):
        pq.write_table(by_value.slice(number, 40), folder / f"{number:05}.parquet")
    report = _early(left, folder, 1)
    assert report.variance_of == "blocks"
    assert "blocks differ in right.v" in report.warnings[0]


def test_groups_that_lie_in_files_of_their_own_are_allowed_for(tmp_path: Path) -> None:
    """The count of all is as good as ever, that of a day is not: it lies in a few blocks."""
    left, right = _population()
    days = pa.array(np.repeat(np.arange(30), ROWS // 30))
    report = _early(left, _write(right.append_column("day", days), tmp_path / "r", 100), 1, group_by="day", n="count(*)")
    assert report.variance_of == "blocks"
    assert report.order.inflation > 5


def test_partitioned_folders_have_the_columns_of_their_paths(tmp_path: Path) -> None:
    left, right = _population()
    days = pa.array([datetime.date(2024, 1, 1 + int(k) % 3) if k % 4 else None for k in right["k"].to_pylist()])
    right = right.append_column("day", days).append_column("region", pa.array(np.arange(ROWS) % 2))
    pq.write_to_dataset(right, tmp_path / "right", ["day", "region"])
    expected = right.group_by(["day", "region"]).aggregate([("v", "sum")]).to_pylist()
    for memory in ("100m", "600k"):
        report = mr.estimate(
            left, tmp_path / "right", on="k", group_by=["day", "region"], s=mr.sum_("v"), memory=memory
        ).exact()
        assert len(expected) == len(report.groups or ()) == 8
        for row in expected:
            assert report["s", (row["day"], row["region"])].value == pytest.approx(row["v_sum"])
    one = mr.estimate(left, tmp_path / "right", on="k", where="day = DATE '2024-01-02' AND region = 1", n="count(*)").exact()
    assert one["n"].value == sum(str(d) == "2024-01-02" and r for d, r in zip(days, right["region"].to_pylist(), strict=True))


def test_files_may_differ_in_what_they_say_about_nulls_and_in_other_columns(tmp_path: Path) -> None:
    left, right = _population()
    folder = tmp_path / "right"
    folder.mkdir()
    kinds = [
        pa.schema([pa.field("k", pa.int64(), nullable=False), pa.field("v", pa.float64())], {"made": "by one"}),
        pa.schema([pa.field("k", pa.int64(), metadata={"a": "b"}), pa.field("v", pa.float64(), nullable=False)]),
    ]
    for number in range(20):
        part = right.slice(number * 600, 600).cast(kinds[number % 2])
        part = part.append_column("more", pa.array(range(600))) if number % 3 else part
        pq.write_table(part, folder / f"{number}.parquet")
    for memory in ("100m", "600k"):
        end = mr.estimate(left, folder, on="k", s=mr.sum_("v"), memory=memory).exact()
        assert end["s"].value == pytest.approx(float(np.sum(right["v"].to_numpy())))


# --- the variance of blocks


def _blocks(folder: Path, *, by_key: bool) -> tuple[Any, Any, Any]:
    """Two small tables in 24 blocks each, with sources, sides and functions of COUNT(*) and SUM(v)."""
    random = np.random.default_rng(7)
    rows, keys = 480, 120
    tables = {
        "l": pa.table({"k": random.integers(0, keys, rows)}),
        "r": pa.table({"k": random.integers(0, keys, rows), "v": np.repeat(random.gamma(4, 0.25, 24), 20)}),
    }
    if by_key:
        tables = {name: table.sort_by("k") for name, table in tables.items()}
    sources = tuple(ParquetSource(_write(table, folder / name, 20)) for name, table in tables.items())
    codec = KeyCodec((pa.int64(),))
    value = Names((tables["l"].schema, tables["r"].schema), []).parse("v", "value")
    sides = (Side(0, codec, ["k"]), Side(1, codec, ["k"], words=[Word(value, ())]))
    return sources, sides, Products(((), ()), ((), (1,)))


def _sampled(sources: Any, sides: Any, blocks: int, rows: int, seed: int) -> list[Sampled]:
    """Blocks of both sides, other ones for each seed."""
    found = []
    for number, (source, side) in enumerate(zip(sources, sides, strict=True)):
        batches = source.sample(source.schema.names, blocks, rows, 2 * seed + number)
        found.append(Sampled(side, source, batches, source.sampled_rows(blocks, 2 * seed + number)))
    return found


def _totals(sources: Any, rows: int) -> np.ndarray[Any, Any]:
    """COUNT(*) and SUM(v) of every unit of so many rows of one side with every unit of the other."""
    one, other = (pa.Table.from_batches([pa.concat_batches(list(_as_it_lies(source)))]) for source in sources)
    same = (one["k"].to_numpy()[:, None] == other["k"].to_numpy()).astype(np.float64)
    values = np.stack([same, same * other["v"].to_numpy()], axis=2)
    return values.reshape(len(one) // rows, rows, len(other) // rows, rows, 2).sum(axis=(1, 3))


def _as_it_lies(source: ParquetSource) -> Any:
    return source.read(source.schema.names).to_batches()


def _expected(totals: Any) -> list[Any]:
    """EA, EB and EG of COUNT(*) and SUM(v), by their definition."""
    n, m = totals.shape[:2]
    x, y, all_ = totals.sum(axis=1), totals.sum(axis=0), totals.sum(axis=(0, 1))
    centred = totals - (x / m)[:, None] - y / n + all_ / (n * m)
    squares = [((x - all_ / n) ** 2).sum(axis=0), ((y - all_ / m) ** 2).sum(axis=0), (centred**2).sum(axis=(0, 1))]
    return [squares[0] * n / (n - 1), squares[1] * m / (m - 1), squares[2] * n * m / ((n - 1) * (m - 1))]


@pytest.mark.parametrize("by_key", [False, True])
def test_the_variance_of_blocks_is_estimated_without_bias(by_key: bool, tmp_path: Path) -> None:
    """From half of the blocks and half of their rows, over many samples."""
    sources, sides, functions = _blocks(tmp_path, by_key=by_key)
    for source in sources:
        assert source.mix(source.schema.names, 1 << 20)
    found = []
    for seed in range(100):
        levels = Matches(*_sampled(sources, sides, 12, 10, seed), functions).expected(sources)
        found.append([[np.diagonal(each) for each in level] for level in levels])
    for level, rows in enumerate((1, 20)):
        truth = np.array(_expected(_totals(sources, rows)))
        estimates = np.array(found)[:, level]
        errors = estimates.std(axis=0) / np.sqrt(len(estimates))
        assert (np.abs(estimates.mean(axis=0) - truth) < 4 * errors + 0.01 * truth).all(), (level, truth)


def test_all_blocks_in_full_give_the_variance_of_blocks_exactly(tmp_path: Path) -> None:
    sources, sides, functions = _blocks(tmp_path, by_key=True)
    levels = Matches(*_sampled(sources, sides, 24, 20, 1), functions).expected(sources)
    for level, rows in zip(levels, (1, 20), strict=True):
        for found, truth in zip(level, _expected(_totals(sources, rows)), strict=True):
            np.testing.assert_allclose(np.diagonal(found), truth, rtol=1e-9)


def test_two_samples_count_by_what_they_tell_and_below_0_only_once_they_are_pooled() -> None:
    one, zero = np.ones((1, 1)), np.zeros((1, 1))
    few = Clusters(8 * one, zero, -2 * one, (one, one, one), (20, 20), 1, 5.0)
    many = Clusters(-4 * one, zero, 4 * one, (one, one, one), (20, 20), 1, 15.0)
    both = few.pooled(many)
    assert (float(both.a[0, 0]), float(both.g[0, 0]), both.degrees) == (-1.0, 2.5, 15.0)
    _, ratio = both.added(0.5, 0.5)  # 0 for a, and 2.5 over three
    assert float(ratio[0]) == pytest.approx(1 + 2.5 / 3)
