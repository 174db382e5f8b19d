"""The paper's experiments on virtual devices: end-to-end times and early results of the joins, as ratios."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from millrace.online.joins.grace import Grace
from millrace.online.joins.prjoin import PRJoin
from millrace.online.joins.ripple import Ripple
from millrace.online.storage.memory_plan import Layout
from millrace.online.virtual.experiment import Setting, Simulated, simulate

SMALL = Setting(rows=80_000)
DISK = Setting(rows=200_000)
SSD = Setting(rows=200_000, temporary_device="prjoin-ssd", extent_bytes=250_000)


@cache
def run_of(name: str, setting: Setting = DISK, **options: object) -> Simulated:
    extent = setting.of(setting.extent_bytes)
    layout = Layout(extent_bytes=extent, page_bytes=max(8 * setting.row_words, extent // 16))
    if name == "ripple":
        return simulate(Ripple, setting, extent_bytes=extent)
    return simulate({"grace": Grace, "prjoin": PRJoin}[name], setting, layout=layout, **options)


@pytest.mark.parametrize("name", ["grace", "prjoin"])
def test_every_row_of_a_finds_its_match(name: str) -> None:
    assert run_of(name, SMALL).answer.tolist() == [[SMALL.rows, SMALL.rows]]


def test_pr_join_is_not_much_slower_than_grace() -> None:
    assert run_of("prjoin", SMALL).seconds / run_of("grace", SMALL).seconds <= 1.55


@pytest.mark.slow
def test_with_more_rows_pr_join_is_nearer_to_grace() -> None:
    assert run_of("prjoin").seconds / run_of("grace").seconds <= 1.45


@pytest.mark.slow
def test_pr_join_is_much_faster_than_ripple() -> None:
    ripple = run_of("ripple")
    assert ripple.answer.tolist() == [[DISK.rows, DISK.rows]]
    assert ripple.seconds / run_of("prjoin").seconds >= 5


@pytest.mark.slow
def test_early_results_of_pr_join_come_sooner_than_those_of_ripple() -> None:
    prjoin, ripple = run_of("prjoin", stop=False), run_of("ripple")

    def results_at(run: Simulated, seconds: float) -> int:
        return max((point.results for point in run.points if point.seconds <= seconds), default=0)

    read_at = [point.seconds for point in prjoin.points if point.share_read < 1][-1]
    assert results_at(prjoin, read_at) > 3 * results_at(ripple, read_at)


@pytest.mark.slow
def test_on_an_ssd_reading_again_hides_behind_reading_the_input() -> None:
    grace, prjoin = run_of("grace", SSD), run_of("prjoin", SSD, stop=False)
    assert prjoin.seconds / grace.seconds < 1.15


def test_a_run_takes_the_same_virtual_time_every_time() -> None:
    first, second = run_of("prjoin", SMALL), run_of.__wrapped__("prjoin", SMALL)
    assert first.points == second.points
    assert np.isclose(first.seconds, second.seconds, rtol=0)
