"""Virtual devices: times by formula, overlapped or not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.core.devices import DEVICES, MEGABYTE, Device, Transfer, VirtualClock, VirtualDevice, device
from millrace.core.errors import ParameterError


def disk(name: str = "hdd2008") -> VirtualDevice:
    return VirtualDevice(device(name), VirtualClock())


@pytest.mark.parametrize(
    ("name", "kind", "sequential", "seconds"),
    [
        ("hdd2008", "read", False, 8e-3 + 1 / 70),
        ("hdd2008", "write", True, 1 / 70),
        ("ssd", "read", False, 1e-4 + 1 / 500),
        ("ssd", "write", True, 1 / 400),
        ("object-store", "read", False, 20e-3 + 1 / 100),
        ("prjoin-disk", "read", True, 13.687e-3),
        ("prjoin-disk", "read", False, 25.515e-3),
        ("prjoin-disk", "write", True, 13.757e-3),
        ("prjoin-ssd", "read", False, 1 / 250),
        ("prjoin-ssd", "write", False, 1 / 170),
    ],
)
def test_a_megabyte_takes_what_the_device_is_described_to_take(name: str, kind: str, sequential: bool, seconds: float) -> None:
    assert device(name).seconds(kind, MEGABYTE, sequential=sequential) == pytest.approx(seconds)  # type: ignore[arg-type]


def test_going_on_costs_no_seek_going_elsewhere_does() -> None:
    on = disk()
    on.read("R", 0, 100)
    on.read("R", 100, 100)
    assert on.seeks == 1
    on.read("S", 200, 100)  # another file
    on.read("R", 200, 100)
    on.write("R", 300, 100)  # goes on, even if it writes
    assert (on.seeks, on.reads, on.writes, on.bytes_read, on.bytes_written) == (3, 4, 1, 400, 100)
    assert on.clock.now == pytest.approx(on.busy) == pytest.approx(3 * 8e-3 + 500 / 70e6)


def test_work_overlaps_with_a_transfer_that_was_started() -> None:
    on = disk()
    transfer = on.start("read", "R", 0, 7 * MEGABYTE)
    assert on.clock.now == 0.0
    on.clock.work(0.05)
    assert on.wait(transfer) == pytest.approx(0.108 - 0.05)
    assert on.wait(transfer) == 0.0
    on.clock.work(1.0)
    assert on.clock.now == pytest.approx(1.108)


def test_one_stream_does_one_transfer_after_the_other() -> None:
    on = disk()
    first, second = on.start("read", "R", 0, 7 * MEGABYTE), on.start("write", "T", 0, 7 * MEGABYTE)
    assert (first.done, second.done) == (pytest.approx(0.108), pytest.approx(0.216))
    assert on.finish() == pytest.approx(0.216)


def test_several_streams_work_at_a_time() -> None:
    on = disk("object-store")
    transfers = [on.start("read", "R", place * MEGABYTE, MEGABYTE) for place in range(17)]
    assert [transfer.done for transfer in transfers[:16]] == [pytest.approx(0.03)] * 16
    assert transfers[16].done == pytest.approx(0.04)  # goes on where the last of the first sixteen ended
    assert on.finish() == pytest.approx(0.04)
    assert on.busy == pytest.approx(16 * 0.03 + 0.01)


PLACES = st.tuples(st.sampled_from(["read", "write"]), st.sampled_from("RT"), st.integers(0, 5), st.integers(0, 9))


@given(st.lists(PLACES, max_size=30), st.sampled_from(sorted(DEVICES)), st.floats(0, 0.1))
def test_overlapping_is_never_slower_and_no_faster_than_the_device(
    places: list[tuple[str, str, int, int]], name: str, work: float
) -> None:
    waiting, going_on = disk(name), disk(name)
    for kind, file, offset, count in places:
        (waiting.read if kind == "read" else waiting.write)(file, offset * MEGABYTE, count * MEGABYTE)
        waiting.clock.work(work)
        going_on.start(kind, file, offset * MEGABYTE, count * MEGABYTE)  # type: ignore[arg-type]
        going_on.clock.work(work)
    going_on.finish()
    assert going_on.bytes_read == waiting.bytes_read
    assert going_on.clock.now <= waiting.clock.now + 1e-9 or name == "object-store"
    assert going_on.clock.now >= going_on.busy / going_on.model.streams - 1e-9
    assert waiting.clock.now == pytest.approx(waiting.busy + work * len(places))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ParameterError, match="no device 'tape'; choose one of hdd2008, ssd"):
        device("tape")
    with pytest.raises(ParameterError, match="device 'odd' needs"):
        Device("odd", seek=-1.0, read_rate=1.0, write_rate=1.0)
    with pytest.raises(ParameterError, match="work takes zero or more seconds"):
        VirtualClock().work(-1.0)
    with pytest.raises(ParameterError, match="offset and a length of zero or more"):
        disk().read("R", -1, 5)


def test_waiting_for_the_past_takes_no_time() -> None:
    on = disk()
    on.clock.work(2.0)
    assert on.wait(Transfer(1.0)) == 0.0
    assert on.clock.now == 2.0
