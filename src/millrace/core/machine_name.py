"""Which machine this is, and which disk a path lies on: what a measurement holds for."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    """What tells a machine from another one. Costs of one do not hold for the other."""

    host: str
    processor: str
    cores: int


@lru_cache(maxsize=1)
def this_machine() -> Machine:
    return Machine(platform.node() or "unknown", _processor(), os.cpu_count() or 1)


def _processor() -> str:
    """The name of the processor; the architecture where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [value.strip() for name, _, value in (line.partition(":") for line in lines) if name.strip() == "model name"]
    return names[0] if names else platform.machine()


def device_number(path: Path) -> str | None:
    """The disk of a path, or of the nearest folder above it that exists: `major-minor`. None: it can't be told."""
    for place in (path, *path.absolute().parents):
        try:
            device = os.stat(place).st_dev
        except OSError:
            continue
        return f"{os.major(device)}-{os.minor(device)}"
    return None


def device_name(path: Path) -> str:
    """The disk of a path for people, such as /dev/sda1; its number where the system does not tell."""
    number = device_number(path)
    if number is None:
        return "unknown"
    try:
        lines = Path("/proc/self/mountinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:  # ... major:minor root folder options - type device ...
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [number.replace("-", ":")] and len(source.split()) > 1:
            return source.split()[1]
    return number
