"""Temporary data of a join: extents appended to one file, and read back.

    room() --> [ buffer | buffer | buffer ] --writer thread--> file: extent | extent | extent | ...
                                                                        |
    Fetch <-- [ slot | slot | slot | slot ] <--reader thread------------+        read ahead, in the order asked for

`FileSpill` is a real file. It has no name from the moment it is made, so the system takes its space back when the process ends,
however it ends. `VirtualSpill` keeps its bytes in memory and moves the clock of a virtual device by formula; one byte may stand
for `scale` bytes there, so that an experiment with gigabytes runs in seconds on a part of the rows, all ratios as they were.
"""

from __future__ import annotations

import errno
import os
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, Literal, NoReturn, Protocol

import numpy as np

from millrace.core.arrays import Int64Array
from millrace.core.budget import Budget, format_bytes
from millrace.core.devices import Transfer, VirtualDevice
from millrace.core.errors import ParameterError, SpillError
from millrace.online.protocol import Counters

ALIGNMENT = 4096
_READ_AHEAD_FROM = 32 << 10
Mode = Literal["buffered", "direct"]
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Fetch(Protocol):
    """Extents being read. Iterate once; an array is valid until the next is asked for."""

    @property
    def ready(self) -> bool:
        """Whether going on would not wait (for the first extent, or for all of them: as the store can say)."""
        ...

    def __iter__(self) -> Iterator[Int64Array]: ...

    def close(self) -> None: ...


class Spill(Protocol):
    """Where temporary data go."""

    written_bytes: int
    read_bytes: int
    seeks: int

    def buffer_bytes(self, extent_bytes: int) -> int:
        """What `open` will reserve."""
        ...

    def open(self, extent_bytes: int, budget: Budget) -> None:
        """Before all else: the largest extent that will come, and where the memory for buffers comes from."""
        ...

    def room(self, words: int) -> tuple[int, Int64Array]:
        """Room for so many words at the end: its place, and the array to fill before the next call of anything here."""
        ...

    def flush(self) -> None:
        """What has been written so far can be fetched by another thread from now on."""
        ...

    def fetch(self, places: Sequence[int], words: Sequence[int]) -> Fetch:
        """Begin to read extents."""
        ...

    def close(self) -> None: ...


def count_transfers(counters: Counters, spill: Spill) -> None:
    """What a store did, into a join's counters."""
    counters.temp_written_bytes, counters.temp_read_bytes, counters.seeks = spill.written_bytes, spill.read_bytes, spill.seeks


class FileSpill:
    """A temporary file in `folder`. `direct` reads and writes pass the system's cache by; `limit_bytes`: no more than that."""

    def __init__(
        self, folder: str | Path | None = None, *, mode: Mode = "buffered", limit_bytes: int | None = None, ahead: int = 4
    ) -> None:
        if mode not in ("buffered", "direct"):
            raise ParameterError(f"spill mode {mode!r} is not known; choose buffered or direct")
        if ahead < 2:
            raise ParameterError(f"at least 2 extents are read ahead; got {ahead}")
        self.folder = Path(folder) if folder is not None else Path(tempfile.gettempdir())
        if not self.folder.is_dir():
            raise SpillError(f"there is no folder {self.folder} for temporary data; make it or give another one")
        self.mode, self.limit_bytes = mode, limit_bytes
        self.written_bytes = self.read_bytes = self.seeks = 0
        self._ahead = ahead
        self._align = ALIGNMENT if mode == "direct" else 8
        self._descriptor: int | None = None
        self._head = -1  # where the last transfer ended
        self._lock = Lock()
        self._counting = Lock()
        self._end = 0  # of the file, with what is in the current buffer

    def buffer_bytes(self, extent_bytes: int) -> int:
        extent = -(-extent_bytes // self._align) * self._align
        return 3 * (_buffer_bytes(extent) + self._align) + 2 * self._ahead * (extent + self._align)

    def open(self, extent_bytes: int, budget: Budget) -> None:
        budget.reserve("spill buffers", self.buffer_bytes(extent_bytes))
        extent = -(-extent_bytes // self._align) * self._align
        self._buffers = [_aligned(_buffer_bytes(extent), self._align) for _ in range(3)]
        self._slots: deque[Any] = deque(_aligned(extent, self._align) for _ in range(2 * self._ahead))
        self._current, self._used = 0, 0
        self._writes: list[Future[None] | None] = [None, None, None]
        self._writer = ThreadPoolExecutor(1, "millrace-spill-write")
        self._reader = ThreadPoolExecutor(1, "millrace-spill-read")
        try:
            self._descriptor = _nameless(self.folder, self.mode)
        except OSError as refused:
            self._fail(refused)

    def room(self, words: int) -> tuple[int, Int64Array]:
        count = -(-8 * words // self._align) * self._align
        if self.limit_bytes is not None and self._end + count > self.limit_bytes:
            raise SpillError(
                f"temporary data reached the limit of {format_bytes(self.limit_bytes)}; give a higher limit, or more memory"
            )
        with self._lock:
            if self._used + count > len(self._buffers[self._current]):
                self._submit()
        view = self._buffers[self._current][self._used : self._used + 8 * words].view(np.int64)
        place = self._end
        self._used += count
        self._end += count
        self.written_bytes += 8 * words
        return place, view

    def _submit(self) -> None:
        """Hand the current buffer to the writer, and wait until the next one is free."""
        if self._used:
            number, used, place = self._current, self._used, self._end - self._used
            self._writes[number] = self._writer.submit(self._write, self._buffers[number][:used], place)
            self._current, self._used = (number + 1) % 3, 0
        self._settle(self._current)

    def _settle(self, number: int) -> None:
        write, self._writes[number] = self._writes[number], None
        if write is not None:
            write.result()

    def _write(self, data: Any, place: int) -> None:
        if self._descriptor is None:
            return
        with self._counting:
            self.seeks += place != self._head
            self._head = place + len(data)
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(self._descriptor, data[done:], place + done)
        except OSError as refused:
            self._fail(refused)

    def fetch(self, places: Sequence[int], words: Sequence[int]) -> Fetch:
        if self._descriptor is None:
            raise SpillError("temporary data are closed; run it again")
        with self._lock:
            if any(place >= self._end - self._used for place in places):
                self._submit()
            writes = [write for write in self._writes if write is not None]
        for write in writes:
            write.result()
        with self._lock:
            return _FileFetch(self, places, words)

    def flush(self) -> None:
        with self._lock:
            self._submit()

    def _read(self, slot: Any, place: int, count: int) -> Any:
        assert self._descriptor is not None
        aligned = -(-count // self._align) * self._align
        with self._counting:
            self.seeks += place != self._head
            self._head = place + aligned
            self.read_bytes += count
        view = memoryview(slot)[:aligned]
        done = 0
        while done < aligned:
            try:
                got = os.preadv(self._descriptor, [view[done:]], place + done)
            except OSError as refused:
                self._fail(refused)
            if got == 0:
                raise SpillError(f"temporary data in {self.folder} end too early: at {place + done} bytes; run it again")
            done += got
        return slot

    def _fail(self, refused: OSError) -> NoReturn:
        if refused.errno in _FULL:
            raise SpillError(
                f"the disk of {self.folder} is full after {format_bytes(self._end)} of temporary data; free space there, "
                "name another folder, or give more memory"
            ) from refused
        raise SpillError(f"temporary data in {self.folder} can't be written or read: {refused}") from refused

    def close(self) -> None:
        if self._descriptor is not None:
            descriptor, self._descriptor = self._descriptor, None
            self._reader.shutdown(wait=True, cancel_futures=True)
            self._writer.shutdown(wait=True, cancel_futures=True)
            os.close(descriptor)


class _FileFetch:
    """Reads ahead into its share of the slots; small extents when they are asked for, as another thread would cost more."""

    def __init__(self, spill: FileSpill, places: Sequence[int], words: Sequence[int]) -> None:
        self._spill = spill
        self._left = deque(zip(places, words, strict=True))
        self._reads: deque[tuple[Future[Any], int]] = deque()
        self._lent: Any = None  # the slot whose rows are being used
        self._free = [spill._slots.popleft() for _ in range(min(spill._ahead, len(places), len(spill._slots)))]
        if places and not self._free:
            raise SpillError("two fetches are under way: end one before the next")
        self._small = bool(words) and 8 * max(words) < _READ_AHEAD_FROM
        self._start()

    def _start(self) -> None:
        while self._free and self._left and not self._small:
            place, words = self._left.popleft()
            self._reads.append((self._spill._reader.submit(self._spill._read, self._free.pop(), place, 8 * words), words))

    @property
    def ready(self) -> bool:
        return not self._reads or self._reads[0][0].done()

    def __iter__(self) -> Iterator[Int64Array]:
        while self._small and self._left:
            place, words = self._left.popleft()
            yield self._spill._read(self._free[0], place, 8 * words)[: 8 * words].view(np.int64)
        while self._reads:
            read, words = self._reads.popleft()
            self._lent = read.result()
            yield self._lent[: 8 * words].view(np.int64)
            self._take_back()
            self._start()
        self.close()

    def _take_back(self) -> None:
        if self._lent is not None:
            self._free.append(self._lent)
            self._lent = None

    def close(self) -> None:
        self._left.clear()
        while self._reads:
            read, _ = self._reads.popleft()
            self._free.append(read.result())
        self._take_back()
        self._spill._slots.extend(self._free)
        self._free = []


def _buffer_bytes(extent: int) -> int:
    """Several small extents are written at once."""
    return extent * max(1, min((1 << 20) // extent, 4))


def _aligned(count: int, alignment: int) -> Any:
    raw = np.empty(count + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + count]


def _nameless(folder: Path, mode: Mode) -> int:
    """A file that nobody else can open, and that is gone when it is closed."""
    flags = os.O_RDWR | (os.O_DIRECT if mode == "direct" else 0)
    try:
        return os.open(folder, flags | os.O_TMPFILE, 0o600)
    except OSError as refused:
        if refused.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT):
            raise
    descriptor, name = tempfile.mkstemp(prefix="millrace-", dir=folder)
    os.close(descriptor)
    try:
        return os.open(name, flags)
    finally:
        os.unlink(name)


class VirtualSpill:
    """Temporary data on a virtual device. `overlapped`: a write is not waited for, and reads of a fetch go on together."""

    def __init__(
        self, device: VirtualDevice, *, scale: float = 1.0, overlapped: bool = True, write_bytes: int = 1_000_000
    ) -> None:
        self.device, self.scale, self.overlapped = device, scale, overlapped
        self.write_bytes = write_bytes  # of the device: writes are that long
        self.written_bytes = self.read_bytes = 0
        self._extents: dict[int, Int64Array] = {}
        self._end = self._started = 0
        self._writes: deque[Transfer] = deque()

    @property
    def seeks(self) -> int:
        return self.device.seeks

    def buffer_bytes(self, extent_bytes: int) -> int:
        return 0

    def open(self, extent_bytes: int, budget: Budget) -> None:
        pass

    def room(self, words: int) -> tuple[int, Int64Array]:
        place, view = self._end, np.empty(words, np.int64)
        self._extents[place] = view
        self._end += 8 * words
        self.written_bytes += 8 * words
        while (self._end - self._started) * self.scale >= self.write_bytes:
            self._write(max(1, int(self.write_bytes / self.scale)))
        return place, view

    def _write(self, count: int) -> None:
        transfer = self.device.start("write", "temporary", round(self._started * self.scale), round(count * self.scale))
        self._started += count
        if not self.overlapped:
            self.device.wait(transfer)
            return
        self._writes.append(transfer)
        if len(self._writes) > 2:
            self.device.wait(self._writes.popleft())

    def flush(self) -> None:
        pass

    def fetch(self, places: Sequence[int], words: Sequence[int]) -> Fetch:
        if any(place + 8 * count > self._started for place, count in zip(places, words, strict=True)):
            self._write(self._end - self._started)
        return _VirtualFetch(self, list(places), list(words))

    def close(self) -> None:
        self._extents.clear()


class _VirtualFetch:
    def __init__(self, spill: VirtualSpill, places: list[int], words: list[int]) -> None:
        self._spill, self._places, self._words = spill, places, words
        self._transfers: list[Transfer] = []
        if spill.overlapped:
            self._transfers = [self._start(number) for number in range(len(places))]

    def _start(self, number: int) -> Transfer:
        spill, count = self._spill, 8 * self._words[number]
        spill.read_bytes += count
        return spill.device.start("read", "temporary", round(self._places[number] * spill.scale), round(count * spill.scale))

    @property
    def ready(self) -> bool:
        return all(transfer.done <= self._spill.device.clock.now for transfer in self._transfers[-1:])

    def __iter__(self) -> Iterator[Int64Array]:
        for number, place in enumerate(self._places):
            transfer = self._transfers[number] if self._transfers else self._start(number)
            self._spill.device.wait(transfer)
            yield self._spill._extents[place]

    def close(self) -> None:
        pass
