"""Calibration without Spark: known costs are found again, and a short one of a real disk leaves nothing behind."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from millrace.catalog import ALGORITHMS, algorithm
from millrace.core.calibration import load_calibration, save_calibration
from millrace.core.errors import TableError
from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.tuning import calibrate_disk as disk
from millrace.tuning.calibrate import Effort, calibrate_machine, largest_file
from millrace.tuning.calibrate_disk import Overhead, calibrate_disk
from millrace.tuning.calibrate_work import Observation, costs_of, fit_work
from millrace.tuning.fitting import fit, nonnegative
from millrace.tuning.scratch_tables import scratch_folder

QUICK = Effort(
    disk_seconds=0.2, look_up_seconds=0.2, work_seconds=0.3, sample_bytes=16 << 20,
    join_tables=((30_000, 64 << 10), (10_000, 8 << 10)), look_up_rows=(2_000,),
    algorithms=tuple(algorithm(name) for name in ("meshjoin", "sweepjoin", "csweepjoin")),
)  # fmt: skip


def test_least_squares_without_negative_values_agrees_with_trying_all_subsets() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        matrix, wanted = random.normal(size=(6, 4)), random.normal(size=6)
        best = math.inf
        for subset in range(16):
            columns = [place for place in range(4) if subset >> place & 1]
            x = np.zeros(4)
            if columns:
                x[columns] = np.linalg.lstsq(matrix[:, columns], wanted, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, float(np.sum((matrix @ x - wanted) ** 2)))
        found = nonnegative(matrix, wanted)
        assert (found >= 0).all()
        assert float(np.sum((matrix @ found - wanted) ** 2)) == pytest.approx(best)


def test_terms_that_grow_together_share_what_was_measured_as_the_guess_does() -> None:
    counts = np.array([[n, n, pages] for n, pages in ((100.0, 5.0), (1_000.0, 1.0), (300.0, 40.0))])
    found = fit(counts, counts @ np.array([3.0, 3.0, 50.0]), np.array([1.0, 2.0, 20.0]))
    assert found.costs.tolist() == pytest.approx([2.0, 4.0, 50.0], rel=0.05)


def test_a_term_that_never_counted_stays_as_guessed() -> None:
    counts = np.array([[1.0, 0.0], [2.0, 0.0], [3.0, 0.0]])
    found = fit(counts, counts @ np.array([5.0, 0.0]), np.array([1.0, 7.0]))
    assert found.costs.tolist() == pytest.approx([5.0, 7.0], rel=0.01)
    assert found.spread[1] == 0


def test_spread_tells_how_far_measurements_disagree() -> None:
    random = np.random.default_rng(5)
    counts = random.uniform(1, 100, (12, 2))
    exact = counts @ np.array([2.0, 3.0])
    assert fit(counts, exact, np.ones(2)).spread.max() < 0.01
    assert fit(counts, exact * random.uniform(0.7, 1.3, 12), np.ones(2)).spread.min() > 0.02


def observation(costs: UnitCosts, **counts: int) -> Observation:
    steps = counts.pop("steps")
    made = StepCounts(**counts)
    return Observation(made, steps, costs.work(made, steps))


@pytest.mark.parametrize("front", [None, 6e-8])
def test_the_work_of_a_join_is_found_from_what_it_did(front: float | None) -> None:
    true = UnitCosts(take=2e-8, add=4e-8, expire=2e-8, output=9e-8, probe=5e-8, page=3e-6, step=2e-4, front=front)
    random = np.random.default_rng(7)
    seen = []
    for _ in range(12):
        tuples, steps, pages = (int(random.integers(1, most)) for most in (1_000_000, 300, 20_000))
        matches, probes, looked = (int(random.integers(0, most)) for most in (tuples, 3_000_000, 2 * tuples))
        did = {"tuples_in": tuples, "removed": tuples, "matches": matches, "probes": probes, "pages_read": pages}
        seen.append(observation(true, **did, steps=steps, front_lookups=looked if front else 0))
    found = costs_of(seen, fit_work(seen), page_seconds=1e-6)
    assert found.front == (pytest.approx(front, rel=0.05) if front else None)
    assert found.take + found.add + found.expire == pytest.approx(8e-8, rel=0.05)
    for name in ("output", "probe", "step"):
        assert getattr(found, name) == pytest.approx(getattr(true, name), rel=0.05)
    assert found.page == pytest.approx(4e-6, rel=0.05)


def test_reads_of_a_disk_are_found_from_what_reads_take(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A read of the test's disk takes 5 ms to another place, 1 ms, and 10 ns for each byte."""

    def timed(descriptor: int, view: memoryview, places: np.ndarray, seconds: float) -> float:
        in_order = (np.diff(places) == len(view)).mean() > 0.5
        return (0.0 if in_order else 5e-3) + 1e-3 + len(view) * 1e-8

    monkeypatch.setattr(disk, "_timed", timed)
    for costs in calibrate_disk(tmp_path, seconds=0.1, sample_bytes=32 << 20).reads.values():
        assert (costs.seek, costs.request, costs.read_byte) == pytest.approx((5e-3, 1e-3, 1e-8), rel=0.02)
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_direct_reads_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.open

    def refusing(path: str, flags: int, *rest: int, **named: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refusing)
    found = calibrate_disk(tmp_path, seconds=0.05, sample_bytes=16 << 20)
    assert list(found.reads) == ["buffered"]
    assert f"the file system of {tmp_path} has no direct reads" in found.remark


def test_what_a_relation_does_with_a_read_is_added() -> None:
    added = Overhead(1e-6, 5e-6, 1e-9).added(disk.ReadCosts(1e-3, 2e-9, 3e-6))
    assert (added.seek, added.read_byte, added.request) == pytest.approx((1e-3, 3e-9, 4e-6))


def test_a_short_calibration_of_a_real_disk(tmp_path: Path) -> None:
    said: list[str] = []
    found, remarks = calibrate_machine(tmp_path, say=said.append, effort=QUICK)
    assert os.listdir(tmp_path) == []
    assert set(found.reads) - {"direct"} == {"buffered", "mmap"}
    assert ("direct" in found.reads) is not bool(remarks)
    assert set(found.work) == {row.name for row in QUICK.algorithms}
    values = [*(vars(costs) for costs in (*found.reads.values(), *found.work.values())), vars(found.look_up)]
    for name, value in ((name, value) for one in values for name, value in one.items() if not isinstance(value, tuple)):
        least, most = (1, 100) if name == "together" else (0, 1)
        assert value is None or least <= value < most, name
    for costs in found.work.values():
        assert costs.work(StepCounts(tuples_in=1, removed=1, matches=1, probes=1, pages_read=1), steps=1) > 0
    assert found.look_up.row_in(2_000) > 0
    assert [rows for rows, _ in found.look_up.row_by_rows] == [2_000, 30_000]
    assert {"reads", "work", "look_up"} == set(found.measured)
    assert any("sweepjoin" in text for text in said)
    save_calibration(found, tmp_path)
    assert load_calibration(tmp_path).work == found.work


@pytest.mark.parametrize("stop", [KeyboardInterrupt, TableError("full")])
def test_a_calibration_that_is_stopped_leaves_nothing_behind(
    stop: BaseException | type[BaseException], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def stopped(text: str) -> None:
        if "look-ups" in text:
            assert os.listdir(tmp_path)
            raise stop

    with pytest.raises((KeyboardInterrupt, TableError)):
        calibrate_machine(tmp_path, say=stopped, effort=QUICK)
    assert os.listdir(tmp_path) == []


def test_a_place_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TableError, match="nowhere; give a table"):
        calibrate_machine(tmp_path / "nowhere")


def test_the_largest_file_of_a_table_is_measured_if_it_is_big(tmp_path: Path) -> None:
    (tmp_path / "v000001").mkdir()
    (tmp_path / "v000001" / "shard-0.pages").write_bytes(bytes(100))
    (tmp_path / "v000001" / "shard-1.pages").write_bytes(bytes(300))
    assert largest_file(tmp_path, 200) == tmp_path / "v000001" / "shard-1.pages"
    assert largest_file(tmp_path, 400) is None
    assert largest_file(tmp_path / "v000001" / "shard-0.pages", 1) == tmp_path / "v000001" / "shard-0.pages"


def test_every_join_is_measured_by_default() -> None:
    assert tuple(Effort().algorithms) == ALGORITHMS


def test_what_a_killed_calibration_left_behind_is_removed_by_the_next(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    left, ours = (tmp_path / f".millrace-calibration-{process}-x" for process in (gone.pid, os.getpid()))
    for folder in (left, ours):
        folder.mkdir()
    with scratch_folder(tmp_path) as scratch:
        assert sorted(tmp_path.iterdir()) == sorted([ours, scratch])
