"""What a measurement was taken with."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from millrace import __version__


def versions_of(*packages: str) -> dict[str, str | None]:
    """Of Python, of millrace itself and of packages; None for those that are not installed.

    millrace tells its own: the distribution that a checkout was installed as may be another one, or none.
    """
    return {"python": platform.python_version(), "millrace": __version__, **{name: _installed(name) for name in packages}}


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
