"""Devices with a virtual clock: reads and writes take a time by formula, the same on every machine.

    clock 0 ......... 8.0 ms ....... 8.9 ms ............ 9.8 ms
          | seek          | 64 KiB       | 64 KiB next to it |        hdd2008

A transfer that begins where the last transfer of the same stream ended costs no seek. `read` and `write` wait for the device.
`start` does not wait; `wait` then waits for the rest of the transfer. Work in between, which the clock is told of, overlaps
with the transfer. A device with several streams does as many transfers at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from millrace.core.errors import ParameterError

MEGABYTE = 1_000_000
Kind = Literal["read", "write"]


@dataclass(frozen=True)
class Device:
    """Seconds to get to a place, and bytes a second from there on. `streams` is how many transfers go on at a time."""

    name: str
    seek: float
    read_rate: float
    write_rate: float
    streams: int = 1

    def __post_init__(self) -> None:
        if not (self.seek >= 0 and self.read_rate > 0 and self.write_rate > 0 and self.streams >= 1):
            raise ParameterError(
                f"device {self.name!r} needs a seek of 0 seconds or more, rates above 0 and at least one stream; got "
                f"seek={self.seek}, read_rate={self.read_rate}, write_rate={self.write_rate}, streams={self.streams}"
            )

    def seconds(self, kind: Kind, count: int, *, sequential: bool) -> float:
        """What one transfer of `count` bytes takes."""
        rate = self.read_rate if kind == "read" else self.write_rate
        return (0.0 if sequential else self.seek) + count / rate


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device("hdd2008", seek=8e-3, read_rate=70 * MEGABYTE, write_rate=70 * MEGABYTE),
        Device("ssd", seek=1e-4, read_rate=500 * MEGABYTE, write_rate=400 * MEGABYTE),
        Device("object-store", seek=20e-3, read_rate=100 * MEGABYTE, write_rate=100 * MEGABYTE, streams=16),
        # 1 MB is read in 13.687 ms, written in 13.757 ms, and read at random in 25.515 ms
        Device(
            "prjoin-disk",
            seek=25.515e-3 - 13.687e-3,
            read_rate=MEGABYTE / 13.687e-3,
            write_rate=MEGABYTE / 13.757e-3,
        ),
        Device("prjoin-ssd", seek=0.0, read_rate=250 * MEGABYTE, write_rate=170 * MEGABYTE),
    )
}


def device(name: str) -> Device:
    """A device by its name.

    >>> device("hdd2008").seconds("read", 7_000_000, sequential=True)
    0.1
    """
    if name not in DEVICES:
        raise ParameterError(f"there is no device {name!r}; choose one of {', '.join(DEVICES)}")
    return DEVICES[name]


class VirtualClock:
    """Seconds since the start. Work and waiting move the clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def work(self, seconds: float) -> None:
        """The processor was busy for so long. Transfers that were started go on meanwhile."""
        if not seconds >= 0:
            raise ParameterError(f"work takes zero or more seconds; got {seconds!r}")
        self.now += seconds

    def wait_until(self, time: float) -> None:
        self.now = max(self.now, time)


@dataclass(frozen=True)
class Transfer:
    """A read or write under way: done at this time."""

    done: float


@dataclass
class _Stream:
    free_at: float = 0.0
    head: tuple[object, int] | None = None  # file and offset where the last transfer ended


class VirtualDevice:
    """A device at work. Counts what it did; `busy` is the time that transfers took, all streams together.

    >>> disk = VirtualDevice(device("hdd2008"), VirtualClock())
    >>> [round(disk.read("R", offset, 70_000), 6) for offset in (0, 70_000, 0)]
    [0.009, 0.001, 0.009]
    >>> round(disk.clock.now, 6), disk.seeks, disk.bytes_read
    (0.019, 2, 210000)
    """

    def __init__(self, model: Device, clock: VirtualClock) -> None:
        self.model = model
        self.clock = clock
        self.reads = self.writes = self.seeks = self.bytes_read = self.bytes_written = 0
        self.busy = 0.0
        self._streams = [_Stream() for _ in range(model.streams)]

    def start(self, kind: Kind, file: object, offset: int, count: int) -> Transfer:
        """Begin a transfer as soon as a stream is free. Does not wait for the transfer."""
        if offset < 0 or count < 0:
            raise ParameterError(f"a transfer has an offset and a length of zero or more; got {offset} and {count}")
        stream = self._stream_for((file, offset))
        sequential = stream.head == (file, offset)
        seconds = self.model.seconds(kind, count, sequential=sequential)
        stream.free_at = max(self.clock.now, stream.free_at) + seconds
        stream.head = (file, offset + count)
        self.busy += seconds
        self.seeks += not sequential
        if kind == "read":
            self.reads += 1
            self.bytes_read += count
        else:
            self.writes += 1
            self.bytes_written += count
        return Transfer(stream.free_at)

    def wait(self, transfer: Transfer) -> float:
        """Wait until a transfer is done; returns the seconds waited."""
        before = self.clock.now
        self.clock.wait_until(transfer.done)
        return self.clock.now - before

    def read(self, file: object, offset: int, count: int) -> float:
        """Read and wait; returns the seconds waited."""
        return self.wait(self.start("read", file, offset, count))

    def write(self, file: object, offset: int, count: int) -> float:
        """Write and wait; returns the seconds waited."""
        return self.wait(self.start("write", file, offset, count))

    def finish(self) -> float:
        """Wait until all transfers are done; returns the seconds waited."""
        return self.wait(Transfer(max(stream.free_at for stream in self._streams)))

    def _stream_for(self, place: tuple[object, int]) -> _Stream:
        """The stream that stands at this place, if no other stream is free sooner; else the stream that is free first."""
        soonest = min(max(self.clock.now, stream.free_at) for stream in self._streams)
        free = [stream for stream in self._streams if stream.free_at <= soonest]
        return next((stream for stream in free if stream.head == place), free[0])
