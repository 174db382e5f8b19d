"""Temporary data: what is written is read again, nothing stays on disk, and a full disk is a clear error."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from tests.online.tables import ALGORITHMS, join_of, tables

from millrace.core.budget import Budget
from millrace.core.devices import VirtualClock, VirtualDevice, device
from millrace.core.errors import ParameterError, SpillError
from millrace.online.storage.spill import FileSpill, Spill, VirtualSpill


def open_files(folder: Path) -> int:
    """Files of this process that lie in a folder, whether or not they have a name."""
    links = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if _is_open(number)]
    return sum(link.startswith(str(folder)) for link in links)


def _is_open(number: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{number}")


def stores() -> list[Spill]:
    return [FileSpill(), FileSpill(".", mode="direct"), VirtualSpill(VirtualDevice(device("ssd"), VirtualClock()))]


@pytest.mark.parametrize("number", range(3))
def test_extents_come_back_as_they_were_written_in_the_order_asked_for(number: int) -> None:
    spill = stores()[number]
    spill.open(8000, Budget("4m"))
    random = np.random.default_rng(1)
    extents = [random.integers(-9, 9, random.integers(1, 1000)) for _ in range(50)]
    places = []
    for extent in extents:
        place, view = spill.room(len(extent))
        view[:] = extent
        places.append(place)
    order = random.permutation(50)
    fetch = spill.fetch([places[i] for i in order], [len(extents[i]) for i in order])
    for i, words in zip(order, fetch, strict=True):
        np.testing.assert_array_equal(words, extents[i])
    assert spill.written_bytes == spill.read_bytes == 8 * sum(map(len, extents))
    spill.close()


def test_extents_can_be_read_between_writes_and_a_fetch_can_be_left() -> None:
    spill = FileSpill()
    spill.open(800, Budget("1m"))
    places = []
    for value in range(200):
        place, view = spill.room(100)
        view[:] = value
        places.append(place)
        fetch = spill.fetch(places[-7:], [100] * len(places[-7:]))
        assert next(iter(fetch))[0] == max(0, value - 6)
        fetch.close()
    spill.close()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_no_file_is_left_after_success_error_or_close(name: str, tmp_path: Path) -> None:
    data = tables("one to one")
    for steps in (5, 10**9):
        join = join_of(name, data.a, data.b, memory=3 << 15, spill=FileSpill(tmp_path))
        for _ in range(steps):
            if join.step().done:
                break
        assert not list(tmp_path.iterdir())  # it never has a name
        assert open_files(tmp_path) == 1
        join.close()
        join.close()
        assert open_files(tmp_path) == 0


@pytest.mark.parametrize("name", ALGORITHMS)
def test_when_temporary_space_runs_out_the_last_report_stays(name: str, tmp_path: Path) -> None:
    data = tables("one to one", rows=50_000)
    join = join_of(name, data.a, data.b, memory=1 << 18, spill=FileSpill(tmp_path, limit_bytes=200_000))
    answers = []

    def until_it_ends() -> None:
        while True:
            answers.append(join.step().pieces.answer().copy())

    with pytest.raises(SpillError, match=r"limit of 195\.3 KiB; give a higher limit"):
        until_it_ends()
    join.close()
    # the step that failed may have found more before; what had been found is there
    assert join.pieces.answer()[0, 0] >= answers[-1][0, 0] >= 0
    assert open_files(tmp_path) == 0


def test_a_disk_that_is_full_is_named_with_what_to_do(tmp_path: Path) -> None:
    """The system itself refuses to write: the process may not make files beyond 256 KiB."""
    program = f"""
        import resource, signal
        from tests.online.tables import join_of, tables
        from millrace.core.errors import SpillError
        from millrace.online.storage.spill import FileSpill
        data = tables("one to one", rows=50_000)
        join = join_of("prjoin", data.a, data.b, memory=1 << 18, spill=FileSpill({str(tmp_path)!r}))
        join.step()
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, 1 << 18))
        try:
            while not join.step().done:
                pass
        except SpillError as full:
            print(full)
        finally:
            join.close()
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert f"the disk of {tmp_path} is full after" in done.stdout
    assert "free space there" in done.stdout
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there_is_an_error_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(SpillError, match="make it or give another one"):
        FileSpill(tmp_path / "gone")
    with pytest.raises(ParameterError, match="choose buffered or direct"):
        FileSpill(tmp_path, mode="quick")  # type: ignore[arg-type]


def test_a_virtual_store_takes_the_time_of_its_device() -> None:
    clock = VirtualClock()
    disk = VirtualDevice(device("prjoin-disk"), clock)
    spill = VirtualSpill(disk, scale=1000.0, overlapped=False)
    spill.open(1000, Budget("1m"))
    places = [spill.room(125)[0] for _ in range(8)]  # 1,000 bytes that stand for 1 MB each
    sequential = disk.model.seek + 8 * 13.757e-3
    assert clock.now == pytest.approx(sequential)
    list(spill.fetch([places[5], places[2]], [125, 125]))
    assert clock.now == pytest.approx(sequential + 2 * 25.515e-3)


def test_overlapped_transfers_go_on_while_the_clock_moves_elsewhere() -> None:
    clock = VirtualClock()
    spill = VirtualSpill(VirtualDevice(device("prjoin-ssd"), clock), scale=1000.0)
    spill.open(1000, Budget("1m"))
    places = [spill.room(125)[0] for _ in range(2)]
    assert clock.now == 0.0
    clock.work(1.0)
    fetch = spill.fetch(places, [125, 125])
    assert not fetch.ready
    clock.work(2 * 1e6 / 250e6)
    assert fetch.ready
    list(fetch)
    assert clock.now == pytest.approx(1.008)
