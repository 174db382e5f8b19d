"""Calibrations: kept, found again, and not used where they do not hold."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.core import calibration as calibrations
from millrace.core.calibration import (
    FOLDER_VARIABLE,
    Calibration,
    LookUpCosts,
    Measured,
    Part,
    ReadCosts,
    SparkCosts,
    as_object,
    calibration_folder,
    check_calibration_folder,
    load_calibration,
    of_object,
    save_calibration,
)
from millrace.core.errors import ParameterError
from millrace.core.machine_name import Machine, device_name, device_number, this_machine
from millrace.core.strict_json import UnreadableError
from millrace.core.unitcosts import UnitCosts

DAY = 86_400.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def measured(*parts: Part, days_ago: float = 0.0) -> Calibration:
    """These parts, with values that are no defaults."""
    whole = Calibration(
        reads={"direct": ReadCosts(1e-3, 2e-9, 3e-6), "buffered": ReadCosts(1e-7, 1e-10, 2e-6)},
        work={"meshjoin": UnitCosts(probe=9e-8, front=1e-8), "inlj": UnitCosts(probe=8e-8)},
        look_up=LookUpCosts(1e-5, 7e-8, 3e-10, ((50_000.0, 2e-8), (4_000_000.0, 9e-8))),
        spark=SparkCosts(batch=0.2),
        spread={"reads.direct.seek": 0.1, "work.meshjoin.probe": 0.2, "look_up.row": 0.05, "spark.batch": 0.3},
    )
    one = Measured(time.time() - days_ago * DAY, "here", "/dev/sda", {"numba": "1"})
    return replace(whole, measured=dict.fromkeys(("reads", "work", "look_up", "spark"), one)).only(parts)


ALL: tuple[Part, ...] = ("reads", "work", "look_up", "spark")


def test_what_was_saved_is_found_again(folder: Path) -> None:
    written = save_calibration(measured(*ALL))
    assert sorted(path.name.partition("-")[0] for path in written) == ["disk", "machine"]
    assert all(path.parent == folder for path in written)
    found, whole = load_calibration(), measured(*ALL)
    assert (found.reads, found.work, found.look_up, found.spark) == (whole.reads, whole.work, whole.look_up, whole.spark)
    assert found.spread == whole.spread
    assert found.measured["reads"].device == "/dev/sda"
    assert found.note == ""


def test_costs_are_the_reads_of_the_mode_and_the_work_of_the_join() -> None:
    costs = measured(*ALL).costs("meshjoin", "direct")
    assert (costs.seek, costs.request, costs.probe, costs.front) == (1e-3, 3e-6, 9e-8, 1e-8)
    assert measured("work").costs("meshjoin", "direct").seek == UnitCosts().seek
    assert measured("reads").costs("meshjoin", None) == replace(UnitCosts(), seek=1e-7, read_byte=1e-10, request=2e-6)


def test_where_nothing_was_measured_the_note_says_so() -> None:
    found = load_calibration()
    assert (found.measured, found.work, found.spark) == ({}, {}, SparkCosts())
    assert found.note == "nothing was measured on this machine: defaults are used; run millrace tune --calibrate"


def test_parts_are_kept_one_by_one() -> None:
    save_calibration(measured("reads", "work", "look_up"))
    found = load_calibration()
    assert found.note == "Spark's own part was not measured: defaults are used; run millrace tune --calibrate --spark"
    assert found.look_up == measured("look_up").look_up
    assert "spark.batch" not in found.spread
    save_calibration(measured("spark"))
    found = load_calibration()
    assert found.note == ""
    assert set(found.measured) == set(ALL)
    assert found.spread == measured(*ALL).spread


def test_another_disk_has_reads_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(calibrations, "device_number", lambda path: "8-1" if "fast" in str(path) else "8-2")
    save_calibration(measured(*ALL), tmp_path / "fast" / "table")
    assert load_calibration(tmp_path / "fast" / "other").note == ""
    found = load_calibration(tmp_path / "slow")
    assert found.reads == {}
    assert found.work == measured("work").work
    assert found.note == "reading from the disk of the table was not measured: defaults are used; run millrace tune --calibrate"


def test_what_executors_measured_is_kept_apart() -> None:
    save_calibration(measured(*ALL), cluster=True)
    assert load_calibration(cluster=True).spark == SparkCosts(batch=0.2)
    assert load_calibration().measured == {}
    save_calibration(replace(measured("spark"), spark=SparkCosts(batch=0.1)))
    assert load_calibration(cluster=True).spark == SparkCosts(batch=0.2)


@pytest.mark.parametrize(("days", "used"), [(89, True), (91, False)])
def test_a_part_that_is_too_old_is_not_used(days: float, used: bool) -> None:
    save_calibration(measured("work", "look_up", "spark", "reads"))
    save_calibration(measured("work", days_ago=days))
    found = load_calibration()
    assert found.has("work") is used
    assert found.has("spark")
    assert found.note == ("" if used else f"the work of joins was measured {days} days ago: defaults are used; run "
                          "millrace tune --calibrate")  # fmt: skip


def _machine(**other: Any) -> Callable[[], Machine]:
    return lambda: replace(this_machine(), **other)


@pytest.mark.parametrize(
    ("other", "said"),
    [({"cores": 999}, "was measured with 999 cores, and this machine has"), ({"processor": "Z80"}, "on another machine .*Z80")],
)
def test_what_another_machine_measured_is_not_used(other: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(calibrations, "this_machine", _machine(**other))
        save_calibration(measured(*ALL))
        assert load_calibration().note == ""
    found = load_calibration()
    assert found.measured == {}
    _matches(said, found.note)
    save_calibration(measured("look_up"))  # replaces what the other machine measured
    assert set(load_calibration().measured) == {"look_up"}


def _matches(pattern: str, text: str) -> None:
    assert re.search(pattern, text), text
    assert "defaults are used; run millrace tune --calibrate" in text


def _drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda whole: whole.pop(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda whole: whole.update(format=2), "has format 2, and this millrace reads 1"),
        (lambda whole: whole.update(more=1), "unknown: more"),
        (_drop("machine"), "missing: machine"),
        (lambda whole: whole["parts"].update(disk={}), "parts reads, work, look_up, spark are expected"),
        (lambda whole: whole["parts"]["spark"]["values"].update(latency=1), "unknown: latency"),
        (lambda whole: whole["parts"]["spark"]["values"].update(batch=-1), "zero or more; got -1"),
        (lambda whole: whole["parts"]["spark"]["values"].update(batch="fast"), "got 'fast'"),
        (lambda whole: whole["parts"]["work"]["values"]["inlj"].update(probe=None), "got None"),
        (lambda whole: whole["parts"]["look_up"]["values"].update(row_by_rows=[[1]]), "can't be read"),
        (lambda whole: whole["parts"]["work"].update(values=[]), "can't be read"),
        (lambda whole: whole["parts"]["spark"]["measured"].update(at="today"), "got 'today'"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_not_used(
    change: Callable[[dict[str, Any]], None], said: str, folder: Path
) -> None:
    save_calibration(measured(*ALL))
    path = next(folder.glob("machine-*"))
    whole = json.loads(path.read_text())
    change(whole)
    path.write_text(json.dumps(whole))
    found = load_calibration()
    assert set(found.measured) <= {"reads"}
    assert found.spark == SparkCosts()
    _matches(f"{path.name}.*{said}" if "can't" not in said else said, found.note)


def test_a_cut_file_is_not_used_and_saving_makes_it_whole_again(folder: Path) -> None:
    save_calibration(measured(*ALL))
    path = next(folder.glob("disk-*"))
    path.write_text(path.read_text()[:40])
    found = load_calibration()
    assert found.reads == {}
    assert f"{path} can't be read" in found.note
    save_calibration(measured("reads"))
    assert load_calibration().note == ""


def test_writers_at_the_same_time_lose_no_part(folder: Path) -> None:
    start = threading.Barrier(3)

    def save(part: Part) -> None:
        start.wait()
        for _ in range(5):
            save_calibration(measured(part))

    writers = [threading.Thread(target=save, args=(part,)) for part in ("work", "look_up", "spark")]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert set(load_calibration().measured) == {"work", "look_up", "spark"}
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def test_a_file_that_did_not_change_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_calibration(measured(*ALL))
    load_calibration()
    reads: list[Path] = []
    real = calibrations._parsed
    monkeypatch.setattr(calibrations, "_parsed", lambda path: (reads.append(path), real(path))[1])
    assert load_calibration().spark.batch == 0.2
    assert reads == []
    save_calibration(replace(measured("spark"), spark=SparkCosts(batch=0.25)))
    assert load_calibration().spark.batch == 0.25
    assert [path.name.partition("-")[0] for path in reads] == ["machine"]


def test_the_folder_is_named_or_lies_in_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert calibration_folder() == tmp_path / "kept"
    monkeypatch.delenv(FOLDER_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert calibration_folder() == tmp_path / "cache" / "millrace"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert calibration_folder() == tmp_path / ".cache" / "millrace"


def test_a_folder_that_can_not_be_written_is_an_error_that_says_what_to_do(folder: Path) -> None:
    folder.write_text("a file")
    with pytest.raises(ParameterError, match=f"can't be written .*{FOLDER_VARIABLE}"):
        save_calibration(measured("spark"))


def test_a_calibration_travels_as_plain_values() -> None:
    whole = measured(*ALL)
    assert of_object(json.loads(json.dumps(as_object(whole)))) == whole
    with pytest.raises(UnreadableError):
        of_object([])


def test_a_part_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ParameterError, match="'disk'"):
        measured(*ALL).only(["disk"])  # type: ignore[list-item]


def test_a_path_that_does_not_exist_lies_on_the_disk_of_its_folder(tmp_path: Path) -> None:
    assert device_number(tmp_path / "no" / "such" / "table") == device_number(tmp_path)
    assert device_number(tmp_path) is not None
    assert device_name(tmp_path)


def test_a_folder_that_cannot_be_used_is_an_error_before_anything_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "file" / "below"))
    with pytest.raises(ParameterError, match="can't be made"):
        check_calibration_folder()
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "new"))
    check_calibration_folder()
    assert (tmp_path / "new").is_dir()


def test_what_was_measured_in_the_future_does_not_count(tmp_path: Path) -> None:
    ahead = {"look_up": Measured(time.time() + 30 * DAY, "here")}
    save_calibration(replace(Calibration(), look_up=LookUpCosts(call=0.5), measured=ahead), tmp_path)
    assert load_calibration(tmp_path).look_up == LookUpCosts()
