"""Inputs of a join that are read from a device with a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass

from millrace.core.devices import Transfer, VirtualDevice
from millrace.online.protocol import Batch, Input


@dataclass
class Track:
    """Where reading stands on a device. Inputs that share one lie interleaved, as they are read, and so cost no seeks."""

    place: int = 0


class VirtualInput:
    """Another input whose reads take what they would take on a virtual device; one byte stands for `scale` bytes.

    It is read in units of `unit_bytes` of the device; `overlapped`: the next unit is read while the join works on this one.
    """

    def __init__(
        self, wrapped: Input, device: VirtualDevice, track: Track, *, scale: float = 1.0, overlapped: bool = True,
        unit_bytes: int = 1_000_000,
    ) -> None:  # fmt: skip
        self._wrapped, self._device, self._track = wrapped, device, track
        self.rows, self.width = wrapped.rows, wrapped.width
        self.scale, self.overlapped = scale, overlapped
        self._unit_rows = max(1, round(unit_bytes / scale / (8 * self.width)))
        self._to_start = wrapped.rows
        self._ahead: Transfer | None = None
        self._left = 0  # rows of the unit at hand

    @property
    def ended(self) -> bool:
        return self._wrapped.ended

    def _start(self) -> Transfer:
        rows = min(self._unit_rows, self._to_start)
        self._to_start -= rows
        size = round(rows * self.width * 8 * self.scale)
        transfer = self._device.start("read", "input", self._track.place, size)
        self._track.place += size
        return transfer

    def read(self, rows: int) -> Batch:
        """At most one unit; waits for it on the clock."""
        if self._left == 0:
            self._device.wait(self._ahead or self._start())
            self._ahead = self._start() if self.overlapped and self._to_start else None
            self._left = self._unit_rows
        batch = self._wrapped.read(min(rows, self._left))
        self._left -= batch.rows
        return batch
