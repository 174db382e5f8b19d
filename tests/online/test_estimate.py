"""`mr.estimate` in process: exact in the end, as DuckDB has it, and early reports that can be believed."""

from __future__ import annotations

import math
import os
import signal
import warnings
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.relations.parquet_folders import parquet_folder

import millrace as mr
from millrace.core.errors import ParameterError, SpillError

SEGMENTS = ["online", "shop", "phone", None]


def _orders(rows: int = 3000, seed: int = 1) -> pa.Table:
    random = np.random.default_rng(seed)
    keys = [None if i % 97 == 0 else int(k) for i, k in enumerate(random.integers(0, rows, rows))]
    return pa.table(
        {
            "id": pa.array(keys, pa.int64()),
            "name": pa.array([None if k is None else f"order number {k}" for k in keys]),
            "region": pa.array([int(r) for r in random.integers(0, 5, rows)], pa.int32()),
            "segment": pa.array([SEGMENTS[int(s)] for s in random.integers(0, 4, rows)]),
            "rate": pa.array([None if i % 13 == 0 else float(x) for i, x in enumerate(random.normal(1, 0.3, rows))]),
            "day": pa.array(random.integers(9000, 9400, rows).astype(np.int32)).cast(pa.date32()),
        }
    )


def _items(rows: int = 9000, orders: int = 3000, seed: int = 2) -> pa.Table:
    random = np.random.default_rng(seed)
    keys = [None if i % 101 == 0 else int(k) for i, k in enumerate(random.integers(0, orders + 300, rows))]
    return pa.table(
        {
            "order_id": pa.array(keys, pa.int32()),
            "order_name": pa.array([None if k is None else f"order number {k}" for k in keys]),
            "price": pa.array([None if i % 7 == 0 else round(float(x), 2) for i, x in enumerate(random.gamma(4, 25, rows))]),
            "discount": pa.array(random.integers(0, 10, rows) / 100),
            "pieces": pa.array(
                [None if i % 11 == 0 else int(x) for i, x in enumerate(random.integers(1, 9, rows))], pa.int16()
            ),
            "colour": pa.array([["red", "green", "blue"][int(c)] for c in random.integers(0, 3, rows)]),
        }
    )


ORDERS, ITEMS = _orders(), _items()
ON = ("id", "order_id")


def _duckdb(select: str, *, on: str = "id = order_id", where: str = "", group: str = "") -> list[tuple[Any, ...]]:
    connection = duckdb.connect()
    connection.register("l", ORDERS)
    connection.register("r", ITEMS)
    sql = f"SELECT {group + ',' if group else ''} {select} FROM l JOIN r ON {on}"
    sql += f" WHERE {where}" if where else ""
    sql += f" GROUP BY {group}" if group else ""
    return connection.execute(sql).fetchall()


def _same(value: float, expected: Any) -> bool:
    if expected is None:
        return math.isnan(value)
    return value == pytest.approx(float(expected), rel=1e-9, abs=1e-9)


ALL = {
    "n": "count(*)",
    "with_price": "count(price)",
    "revenue": "sum(price * (1 - discount))",
    "weighted": "sum(price * rate + pieces)",
    "mean": "avg(price)",
    "spread": "var_samp(price)",
    "whole": "var_pop(price * rate)",
    "deviation": "stddev_samp(price)",
    "deviation_all": "stddev_pop(pieces)",
}


@pytest.mark.parametrize(
    ("where", "memory"),
    [
        ("", "256m"),
        ("", "600k"),
        ("region < 3 AND colour <> 'red'", "2m"),
        ("price > 100 * rate", "256m"),
        ("day >= DATE '1995-01-01'", "50m"),
    ],
)
def test_the_end_is_what_duckdb_says(where: str, memory: str) -> None:
    run = mr.estimate(ORDERS, ITEMS, on=ON, where=where or None, memory=memory, **ALL)
    report = run.exact()
    (expected,) = _duckdb(", ".join(ALL.values()), where=where)
    assert report.exact
    assert report.relative_half_width == 0.0
    for name, value in zip(ALL, expected, strict=True):
        assert _same(report[name].value, value), name
    assert report.pairs == expected[0]


@pytest.mark.parametrize(
    ("group_by", "where"),
    [
        ("segment", ""),
        ("colour", "price > 50"),
        (["colour", "region"], ""),
        (["segment", "region"], "rate < 1"),
        ("segment", "price > 90 * rate"),
    ],
)
def test_groups_end_as_duckdb_has_them(group_by: Any, where: str) -> None:
    asked = {"n": "count(*)", "revenue": "sum(price)", "mean": "avg(price * rate)"}
    columns = [group_by] if isinstance(group_by, str) else group_by
    report = mr.estimate(ORDERS, ITEMS, on=ON, group_by=group_by, where=where or None, **asked).exact()
    expected = _duckdb(", ".join(asked.values()), where=where, group=", ".join(columns))
    keys = {row[0] if len(columns) == 1 else row[: len(columns)]: row[len(columns) :] for row in expected}
    assert set(report.groups or ()) == set(keys)
    for key, values in keys.items():
        for name, value in zip(asked, values, strict=True):
            assert _same(report[name, key].value, value), (name, key)
    assert report["n"] == {key: report["n", key] for key in keys}


@pytest.mark.parametrize(
    ("on", "sql"),
    [
        (("name", "order_name"), "name = order_name"),
        ([("id", "order_id"), ("region", "pieces")], "id = order_id AND region = pieces"),
    ],
)
def test_texts_and_several_columns_as_keys(on: Any, sql: str) -> None:
    report = mr.estimate(ORDERS, ITEMS, on=on, n=mr.count(), revenue=mr.sum_("price * rate"), memory="3m").exact()
    ((n, revenue),) = _duckdb("count(*), sum(price * rate)", on=sql)
    assert (report["n"].value, report["revenue"].value) == (n, pytest.approx(revenue, rel=1e-9))


def test_values_over_both_sides_that_are_no_product() -> None:
    asked = {
        "far": "sum(abs(price - 100 * rate))",
        "n": "count(nullif(pieces, region))",
        "odd": "var_samp(CASE WHEN rate > 1 THEN price ELSE pieces END)",
    }
    report = mr.estimate(ORDERS, ITEMS, on=ON, **asked).exact()
    (expected,) = _duckdb(", ".join(asked.values()))
    for name, value in zip(asked, expected, strict=True):
        assert _same(report[name].value, value), name


def test_a_spread_of_equal_whole_numbers_is_exactly_0() -> None:
    report = mr.estimate(
        ORDERS, ITEMS, on=ON, group_by="pieces", d=mr.stddev_samp("pieces"), v=mr.var_pop("pieces + 1")
    ).exact()
    for group in report.groups or ():
        if group is not None:
            assert (report["d", group].value, report["v", group].value) == (0.0, 0.0)


def test_decimals_are_compared_as_they_are_written() -> None:
    """Three tenths are not 3 * 0.1."""
    tenths = pa.array([Decimal(n) / 10 for n in range(1000)], pa.decimal128(18, 1))
    left = pa.table({"k": np.arange(1000), "d": tenths})
    right = pa.table({"k": np.arange(1000), "x": np.arange(1000) / 10, "e": tenths.cast(pa.decimal128(12, 3))})
    for where in ("d = 0.3", "d IN (0.3, 0.5)", "d = x", "d = e", "d <= e AND d >= x"):
        expected = {"d = 0.3": 1, "d IN (0.3, 0.5)": 2}.get(where, 1000)
        assert mr.estimate(left, right, on="k", where=where, n=mr.count()).exact()["n"].value == expected, where


def test_infinities_and_nan_go_into_sums_as_in_sql() -> None:
    left = pa.table({"k": [1, 2, 3, 4], "x": [1.0, math.inf, math.nan, 2.0]})
    right = pa.table({"k": [1, 2, 2, 5], "g": ["one", "two", "two", "none"]})
    report = mr.estimate(left, right, on="k", group_by="g", s=mr.sum_("x"), n=mr.count()).exact()
    assert report["s", "one"].value == 1.0
    assert report["s", "two"].value == math.inf
    assert math.isnan(mr.estimate(left, left, on="k", s=mr.sum_("left.x")).exact()["s"].value)


def test_sums_of_nothing_are_null_and_counts_are_0() -> None:
    empty = ITEMS.slice(0, 0)
    for right, where in ((empty, None), (ITEMS, "price < -1"), (ITEMS, "rate > 1000 * price")):
        report = mr.estimate(ORDERS, right, on=ON, where=where, n=mr.count(), s=mr.sum_("price"), m=mr.avg("price")).exact()
        assert report["n"].value == 0
        assert math.isnan(report["s"].value)
        assert math.isnan(report["m"].value)
    assert mr.estimate(ORDERS, empty, on=ON, group_by="segment", n=mr.count()).exact().groups == ()


# --- inputs


def test_parquet_arrow_readers_and_duckdb_give_the_same_end(tmp_path: Path) -> None:
    folder = parquet_folder(tmp_path / "items", ITEMS, files=3, rows_per_group=500)
    one = folder / "0.parquet"
    pq.write_table(ORDERS, tmp_path / "orders.parquet")
    spill = tmp_path / "spill"
    spill.mkdir()
    expected = _duckdb("sum(price)")[0][0]
    connection = duckdb.connect()
    rights: list[Any] = [folder, str(folder), ITEMS, ITEMS.to_reader(200), connection.read_parquet(f"{folder}/*.parquet")]
    for right in rights:
        for memory in ("64m", "700k"):
            if isinstance(right, pa.RecordBatchReader) and memory == "700k":
                continue  # it can be read once
            with mr.estimate(tmp_path / "orders.parquet", right, on=ON, s=mr.sum_("price"), memory=memory, spill=spill) as run:
                assert run.exact()["s"].value == pytest.approx(expected, rel=1e-9)
            assert list(spill.iterdir()) == []
    few = mr.estimate(ORDERS, one, on=ON, n=mr.count()).exact()
    assert few.rows == (3000, 3000)


def test_tables_sorted_by_their_key_are_recognised(tmp_path: Path) -> None:
    """The worst case: blocks of either side meet one block of the other, or none."""
    keys = np.arange(60_000)
    left = parquet_folder(tmp_path / "left", pa.table({"k": keys}), files=2, rows_per_group=1000)
    rows = pa.table({"k": keys, "v": np.ones(60_000)})
    right = parquet_folder(tmp_path / "right", rows, files=2, rows_per_group=1000)
    made = held = 0
    for seed in range(20):
        with mr.estimate(left, right, on="k", s=mr.sum_("v"), memory="5m", every=0, threads=1, seed=seed) as run:
            report = next(report for report in run if report.share_read > 0.2)
        assert report.variance_of == "blocks"
        assert report.order.inflation > 50
        if np.isfinite(report["s"].half_width):
            made += 1
            held += report["s"].low <= 60_000 <= report["s"].high
    assert made >= 15
    assert held >= 0.7 * made  # as rows they would hold in one case of seven


def test_blocks_that_differ_make_wider_intervals_and_the_report_says_so(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    keys = np.arange(40_000)
    left = pa.table({"k": keys})
    values = np.repeat(random.normal(10, 5, 80), 500)  # each block has a mean of its own
    in_order = pa.table({"k": random.permutation(keys), "v": values})
    sorted_right = parquet_folder(tmp_path / "sorted", in_order, files=2, rows_per_group=500)
    order = random.permutation(40_000)
    shuffled = pa.table({"k": random.permutation(keys), "v": values[order]})
    mixed_right = parquet_folder(tmp_path / "mixed", shuffled, files=2, rows_per_group=500)
    reports = {}
    for name, folder in (("sorted", sorted_right), ("mixed", mixed_right)):
        with mr.estimate(left, folder, on="k", s=mr.sum_("v"), memory="8m", every=0, threads=1) as run:
            reports[name] = next(run)
    assert reports["mixed"].variance_of == "rows"
    assert reports["mixed"].order.message is None
    assert reports["sorted"].variance_of == "blocks"
    assert reports["sorted"].order.inflation > 2
    assert any("random order" in warning for warning in reports["sorted"].warnings)
    assert "note: rows do not come in random order" in str(reports["sorted"])
    with mr.estimate(left, sorted_right, on="k", s=mr.sum_("v"), memory="8m", every=0, order="random") as run:
        assert next(run).variance_of == "rows"


# --- early reports


def _population() -> tuple[pa.Table, pa.Table, float]:
    random = np.random.default_rng(8)
    left = pa.table({"k": np.arange(2000)})
    right = pa.table({"k": random.integers(0, 2000, 12_000), "v": random.gamma(4.0, 0.25, 12_000)})
    return left, right, float(right["v"].to_numpy().sum())


def test_early_intervals_hold_the_answer_as_often_as_they_say() -> None:
    left, right, truth = _population()
    runs, held, off = 60, 0, []
    for seed in range(runs):
        with mr.estimate(left, right, on="k", s=mr.sum_("v"), seed=seed, every=0, threads=1, memory="4m") as run:
            for report in run:
                if report.share_read > 0.15:
                    break
        assert 0 < report.share_read < 0.6
        estimate = report["s"]
        assert estimate.low < estimate.value < estimate.high
        held += estimate.low <= truth <= estimate.high
        off.append(estimate.value / truth - 1)
    # 95 % of 60, less four standard errors; the mean error within four of its own
    assert held >= 50
    assert abs(np.mean(off)) < 4 * np.std(off) / math.sqrt(runs)


def test_sums_of_values_that_are_never_negative_have_intervals_above_0() -> None:
    """On the scale of logarithms: as far below as above, as a factor. A difference of two sums may be below 0."""
    asked = {"s": "sum(price)", "both": "sum(price * (region + 1))", "less": "sum(price - 1000)"}
    run = mr.estimate(ORDERS, ITEMS, on=ON, every=0, memory="2m", where="colour = 'red'", **asked)
    reports = [report for report in run if report.pairs >= 20]
    for label in ("s", "both"):
        for early in (report[label] for report in reports[:3]):
            assert 0 < early.low < early.value < early.high
            assert early.high / early.value == pytest.approx(early.value / early.low)
    early = reports[0]["less"]
    assert early.high - early.value == pytest.approx(early.value - early.low)


def test_matches_without_a_value_are_no_matches_of_an_aggregate() -> None:
    """Most values are null: more pairs are joined than the count will ever be."""
    left, right, _ = _population()
    thin = [float(x) if i % 50 == 0 else None for i, x in enumerate(right["v"].to_numpy())]
    right = right.append_column("thin", pa.array(thin))
    made = 0
    asked = {"n": "count(thin)", "s": "sum(thin)", "d": "var_samp(thin)"}
    with mr.estimate(left, right, on="k", every=0, threads=1, memory="4m", **asked) as run:
        for report in run:
            if not report.exact:
                for name in asked:
                    estimate, pairs = report[name], report.estimates[name].pairs[0]
                    assert pairs <= 240
                    if np.isfinite(estimate.high):
                        assert estimate.low <= estimate.value <= estimate.high
                        assert pairs >= 5
                        made += 1
    assert made
    assert report["n"].value == 240


def test_intervals_shrink_to_the_exact_answer_and_a_seed_repeats_a_run() -> None:
    left, right, truth = _population()

    def values(seed: int) -> list[float]:
        run = mr.estimate(left, right, on="k", s=mr.sum_("v"), n=mr.count(), seed=seed, every=0, threads=1, memory="4m")
        reports = list(run)
        assert reports == run.history
        assert [report.number for report in reports] == list(range(1, len(reports) + 1))
        widths = [report["s"].half_width for report in reports]
        assert widths[0] > widths[len(widths) // 2] > widths[-1] == 0
        assert reports[-1]["s"].value == pytest.approx(truth)
        outcome = run.held()
        assert 0 <= outcome["s"].held <= outcome["s"].intervals <= len(reports) - 1
        return [report["s"].value for report in reports]

    assert values(3) == values(3) != values(4)


def test_intervals_of_all_groups_together_and_of_all_looks_are_wider() -> None:
    left, right, _ = _population()
    right = right.append_column("g", pa.array(np.arange(len(right)) % 20))
    reach = {}
    kinds: dict[str, dict[str, Any]] = {"each": {}, "together": {"together": True}, "always": {"interval": "always"}}
    for name, options in kinds.items():
        options = {**options, "group_by": "g", "every": 0, "threads": 1, "memory": "4m"}
        with mr.estimate(left, right, on="k", s=mr.sum_("v"), **options) as run:
            report = next(report for report in run if report.share_read > 0.7 and report.relative_half_width < 1)
        reach[name] = report.relative_half_width
    # z of 1 - 0.05/20 over z of 0.95, and 3.13 over 1.96; Student's t adds a little
    assert reach["together"] / reach["each"] == pytest.approx(3.02 / 1.96, rel=0.05)
    assert reach["always"] / reach["each"] == pytest.approx(3.13 / 1.96, rel=0.05)


def test_reports_tell_how_long_it_takes() -> None:
    left, right, _ = _population()
    with mr.estimate(left, right, on="k", s=mr.sum_("v"), every=0, threads=1, memory="4m", target=0.05) as run:
        early = next(report for report in run if np.isfinite(report.relative_half_width))
        assert early.target == 0.05
        assert early.seconds_to_exact is not None
        assert early.seconds_to_exact > 0
        assert early.seconds_to_target is not None
        assert early.seconds_to_target >= 0
        assert "exact in about" in str(early)
        end = run.exact()
    assert (end.seconds_to_target, end.seconds_to_exact) == (0.0, None)
    assert str(end).splitlines()[0].endswith("pairs")
    with pytest.raises(KeyError, match="there is no 'x'"):
        end["x"]


# --- stopping


def test_a_run_stops_by_its_rules_and_goes_on() -> None:
    left, right, truth = _population()
    with mr.estimate(left, right, on="k", s=mr.sum_("v"), every=0, threads=1, memory="4m") as run:
        wide = run.until(relative=0.2)
        assert 0 < wide.relative_half_width <= 0.2
        assert not wide.exact
        assert run.until(relative=0.3) is wide  # it is narrow enough already
        assert run.seconds(0) is wide
        narrow = run.until(relative=0.05)
        assert narrow.relative_half_width <= 0.05
        assert narrow.number > wide.number
        assert run.exact()["s"].value == pytest.approx(truth)
        assert run.exact() is run.last
        assert list(run) == []
    with mr.estimate(left, right, on="k", s=mr.sum_("v"), memory="4m") as run:
        assert run.seconds(0).number == 1
        with pytest.raises(ParameterError, match="until needs"):
            run.until()


def test_a_closed_run_keeps_its_reports_and_nothing_else(tmp_path: Path) -> None:
    left, right, _ = _population()
    before = len(os.listdir("/proc/self/fd"))
    reader = right.to_reader(1000)
    run = mr.estimate(left, reader, on="k", s=mr.sum_("v"), every=0, memory="600k", spill=tmp_path)
    assert list(tmp_path.iterdir())  # the reader's rows
    first = next(run)
    run.close()
    run.close()
    assert list(tmp_path.iterdir()) == []
    assert len(os.listdir("/proc/self/fd")) == before
    assert run.last is first
    assert list(run) == []
    with pytest.raises(ParameterError, match="closed"):
        run.exact()


def test_ctrl_c_ends_a_run_cleanly(tmp_path: Path) -> None:
    rows = np.random.default_rng(4).permutation(200_000)
    run = mr.estimate(
        pa.table({"k": rows}), pa.table({"k": rows}).to_reader(5000), on="k", n=mr.count(), memory="2m", spill=tmp_path
    )
    last = next(run)

    def interrupt(number: int, frame: FrameType | None) -> None:
        inside = frame
        while inside is not None and inside.f_code.co_name != "_advance":
            inside = inside.f_back
        if inside is None:  # not yet
            signal.setitimer(signal.ITIMER_REAL, 0.001)
        else:
            raise KeyboardInterrupt  # as Python's own handler does

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        with pytest.raises(KeyboardInterrupt):
            run.exact()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert run.last is not None
    assert run.last.number >= last.number
    assert list(tmp_path.iterdir()) == []
    assert list(run) == []


def test_temporary_space_that_runs_out_leaves_the_last_report(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    left = pa.table({"k": random.permutation(60_000)})
    right = pa.table({"k": random.permutation(60_000), "v": random.normal(10, 1, 60_000)})
    run = mr.estimate(left, right, on="k", s=mr.sum_("v"), every=0, memory="500k", spill=tmp_path, spill_limit="100k")
    with pytest.raises(SpillError, match=r"limit of 100.0 KiB.*run\.last"):
        run.exact()
    assert run.last is not None
    assert np.isfinite(run.last["s"].half_width)
    assert list(tmp_path.iterdir()) == []
    assert list(run) == []


def test_more_groups_and_longer_texts_than_the_sample_showed() -> None:
    rows = 30_000
    left = pa.table({"k": np.arange(rows), "t": ["x"] * rows})
    groups = np.where(np.arange(rows) % 1000 == 0, np.arange(rows) // 1000, -1)
    texts = ["y" * (200 if i == 17_000 else 1) for i in range(rows)]
    right = pa.table({"k": np.arange(rows), "g": groups, "t": texts})
    report = mr.estimate(left, right, on="k", group_by="g", n=mr.count(), memory="2m").exact()
    assert len(report.groups or ()) == 31
    assert report["n", -1].value == rows - 30
    longer = mr.estimate(left, right, on="k", n=mr.count(), where="left.t < right.t", memory="20m").exact()
    assert longer["n"].value == rows


def test_verify_tells_how_often_intervals_hold_on_these_tables() -> None:
    left, right, _ = _population()
    both = mr.estimate(left, right, on="k", s=mr.sum_("v"), far=mr.sum_("abs(left.k - right.v)"), where="v > 0.1")
    with both, pytest.raises(ParameterError, match="can't be verified"):
        both.verify("far", reshuffles=40)
    with mr.estimate(left, right, on="k", s=mr.sum_("v"), d=mr.stddev_samp("v"), where="v > 0.1") as run:
        run.exact()
        for name in ("s", "d"):
            coverage = run.verify(name, reshuffles=30)
            assert coverage.rows[-1].coverage > 0.7
            assert abs(coverage.rows[-1].bias) < 0.05
        with pytest.raises(ParameterError, match="no aggregate 'x'"):
            run.verify("x")


def test_reports_of_many_groups_do_not_pile_up() -> None:
    """What stays is spread over the run, and the last is there."""
    random = np.random.default_rng(1)
    rows, groups = 20_000, 4000
    left = pa.table({"k": np.arange(rows), "g": random.integers(0, groups, rows)})
    right = pa.table({"k": random.integers(0, rows, rows), "x": random.integers(0, 9, rows)})
    with mr.estimate(left, right, on="k", group_by="g", memory="100m", every=0, n="count(*)", s="sum(x)") as run:
        numbers = [report.number for report in run]
        assert numbers == list(range(1, len(numbers) + 1))
        assert sum(report.held_bytes for report in run.history) <= 4 << 20
        assert 8 <= len(run.history) < len(numbers)
        assert run.history[0].number == 1
        assert run.last is not None
        assert run.last.exact
        assert run.held()["n"].intervals > 0


def test_early_reports_of_infinite_values_say_nothing_on_the_side() -> None:
    random = np.random.default_rng(1)
    left = pa.table({"k": np.arange(20_000), "x": np.where(random.random(20_000) < 0.01, np.inf, 1.0)})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = mr.estimate(left, left, on="k", every=0, s=mr.sum_("left.x"), a=mr.avg("left.x"), v=mr.var_pop("left.x"))
        assert run.exact()["s"].value == math.inf
    assert len(run.history) > 2


def test_numbers_too_large_to_be_added_up_are_no_error() -> None:
    left = pa.table({"k": [1, 1], "x": [1e308, 1e308]})
    report = mr.estimate(left, left, on="k", s=mr.sum_("left.x"), v=mr.var_pop("left.x")).exact()
    assert report["s"].value == math.inf
    assert not math.isfinite(report["v"].value)


@pytest.mark.parametrize("odd", [float("inf"), float("nan")])
@pytest.mark.parametrize("where", [None, "left.k + right.k >= 0"])
def test_an_infinity_that_meets_a_null_is_left_out(odd: float, where: str | None) -> None:
    """And one that meets a number is not."""
    left = pa.table({"k": [1, 2, 3], "x": pa.array([None, 2.0, 3.0], pa.float64())})
    right = pa.table({"k": [1, 2, 2], "y": [odd, 5.0, 1.0]})
    asked = {"on": "k", "s": "sum(left.x * right.y)", "a": "avg(left.x * right.y)", "n": "count(left.x * right.y)"}
    end = mr.estimate(left, right, where=where, **asked).exact()
    assert [end[name].value for name in "san"] == [12.0, 6.0, 2.0]
    met = mr.estimate(left, pa.table({"k": [1, 2], "y": [4.0, odd]}), where=where, **asked).exact()
    assert not math.isfinite(met["s"].value)
    assert met["n"].value == 1
