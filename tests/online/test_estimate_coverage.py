"""Reports of `mr.estimate` itself, over many seeds: intervals hold, values are unbiased, V^ is about the true variance."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import millrace as mr
from millrace.online.statistics.quantiles import normal_quantile

Z = normal_quantile(0.95)
ALL = {
    "n": "count(*)",
    "s": "sum(v)",
    "both": "sum(v * rate)",
    "mean": "avg(v)",
    "spread": "var_samp(v)",
    "deviation": "stddev_samp(v)",
}
FEW = {"n": "count(*)", "s": "sum(v)", "mean": "avg(v)"}
MATCHES = {"spread": 1500, "deviation": 1500}  # squares need more of them


def _tables(keys: int = 800, rows: int = 6000) -> tuple[pa.Table, pa.Table]:
    random = np.random.default_rng(11)
    left = pa.table({"k": np.arange(keys), "region": random.integers(0, 3, keys), "rate": random.gamma(8, 0.125, keys)})
    right = pa.table(
        {
            "k": random.integers(0, keys, rows),
            "v": random.gamma(4, 0.25, rows),
            "colour": random.choice(["red", "green"], rows),
        }
    )
    return left, right


@dataclass
class Measured:
    """Of one aggregate and group: a number per run."""

    held: list[float]
    off: list[float]  # mean relative error
    squares: list[float]  # mean square of the error
    variances: list[float]  # mean V^

    def check(self, what: Any, errors: float = 3.0) -> None:
        """Coverage within so many standard errors; the two others, of which there are hundreds, within one more."""
        runs = len(self.held)
        assert runs > 10, what
        coverage, off = np.mean(self.held), np.array(self.off)
        assert coverage >= 0.95 - errors * math.sqrt(0.95 * 0.05 / runs), (what, coverage)
        # a ratio of totals is off by a small part of its standard deviation
        assert abs(off.mean()) <= ((errors + 1) / math.sqrt(runs) + 0.1) * off.std(ddof=1), (what, off.mean())
        ratio = np.mean(self.variances) / np.mean(self.squares)
        assert abs(ratio - 1) <= 0.1 + (errors + 1) * math.sqrt(2 / runs), (what, ratio)


def _measured(left: Any, right: Any, seeds: int, asked: dict[str, str], **options: Any) -> dict[Any, Measured]:
    """All reports with matches enough. Those of one run count as one."""
    found: dict[Any, Measured] = defaultdict(lambda: Measured([], [], [], []))
    for seed in range(seeds):
        options = {"memory": "2m", "threads": 1, **options}
        reports = list(mr.estimate(left, right, on="k", seed=seed, every=0, **options, **asked))
        end = reports.pop()
        seen: dict[Any, list[tuple[bool, float, float, float]]] = defaultdict(list)
        for report in reports:
            third = report.share_read == 1
            for label in asked:
                early = report.estimates[label]
                for place, group in enumerate(report.groups if report.groups is not None else (None,)):
                    truth = float(end.estimates[label].value[0 if group is None else end._places[group]])
                    if early.pairs[place] >= MATCHES.get(label, 200) and np.isfinite(early.high[place]):
                        low, high, value = early.low[place] / truth, early.high[place] / truth, early.value[place] / truth
                        seen[label, group, third].append(
                            (low <= 1 <= high, value - 1, (value - 1) ** 2, ((high - low) / 2 / Z) ** 2)
                        )
        for key, rows in seen.items():
            held, off, squares, variances = np.mean(rows, axis=0)
            each = found[key]
            each.held.append(held)
            each.off.append(off)
            each.squares.append(squares)
            each.variances.append(variances)
    return found


CASES: dict[str, dict[str, Any]] = {
    "in memory": {},
    "spilled": {"memory": "300k"},
    "filtered": {"where": "v > 0.5 AND region < 2"},
    "filtered by pairs": {"where": "v > 0.5 * rate"},
    "groups of the left": {"group_by": "region"},
    "groups of the right": {"group_by": "colour", "where": "region > 0"},
    "two threads": {"threads": 2},
}


def test_reports_cover_what_they_promise() -> None:
    case = "groups of the right"
    found = _measured(*_tables(), 14, FEW, **CASES[case])
    assert {third for _, _, third in found} == {False, True}
    for key, measured in found.items():
        measured.check((case, key), errors=4.0)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_over_many_seeds_reports_cover_what_they_promise(case: str) -> None:
    asked = {**FEW, "deviation": ALL["deviation"]} if case == "spilled" else ALL
    found = _measured(*_tables(), 120, asked, **CASES[case])
    for key, measured in found.items():
        measured.check((case, key), errors=4.0 if case == "two threads" else 3.0)  # two threads: other reports every time


def _written(table: pa.Table, path: Path, rows: int = 250) -> Path:
    pq.write_table(table, path, row_group_size=rows)
    return path


def _block_tables(folder: Path, left_by: str | None, right_by: str | None) -> tuple[Path, Path]:
    random = np.random.default_rng(12)
    rows = 20_000
    left = pa.table({"k": random.permutation(rows), "x": random.gamma(4, 0.25, rows)})
    right = pa.table({"k": random.integers(0, rows, rows), "v": random.gamma(4, 0.25, rows)})
    left, right = (table if by is None else table.sort_by(by) for table, by in ((left, left_by), (right, right_by)))
    return _written(left, folder / "left.parquet"), _written(right, folder / "right.parquet")


BLOCKS = {
    "random order": (None, None),
    "one side by value": (None, "v"),
    "both by value": ("x", "v"),
    "both by key": ("k", "k"),
}


def _of_blocks(folder: Path, case: str, seeds: int) -> dict[Any, Measured]:
    asked = {"n": "count(*)", "s": "sum(v * x)", "mean": "avg(v)"}
    return _measured(*_block_tables(folder, *BLOCKS[case]), seeds, asked, memory="1m")


def test_reports_on_row_groups_cover_what_they_promise(tmp_path: Path) -> None:
    """V^ of blocks is one of few rows, and Student's t is in the width: it may be larger, but not by far."""
    case = "both by value"
    for key, measured in _of_blocks(tmp_path, case, 8).items():
        assert np.mean(measured.held) >= 0.95 - 4 * math.sqrt(0.95 * 0.05 / 8), (case, key)
        assert np.mean(measured.variances) < 8 * np.mean(measured.squares), (case, key)


@pytest.mark.slow
@pytest.mark.parametrize("case", list(BLOCKS))
def test_over_many_seeds_reports_on_row_groups_cover_nearly_what_they_promise(case: str, tmp_path: Path) -> None:
    for key, measured in _of_blocks(tmp_path, case, 80).items():
        least = 0.95 if case == "random order" else 0.9
        assert np.mean(measured.held) >= least - 3 * math.sqrt(0.95 * 0.05 / 80), (case, key)
        off = np.array(measured.off)
        assert abs(off.mean()) <= (3 / math.sqrt(len(off)) + 0.1) * off.std(ddof=1), (case, key)
        assert np.mean(measured.variances) < 4 * np.mean(measured.squares), (case, key)
