"""Numbers for people: commas between thousands, a unit, singular and plural (one page, two pages)."""

from __future__ import annotations


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things.

    >>> counted(1, "page"), counted(12000, "page"), counted(2, "index", "indices")
    ('1 page', '12,000 pages', '2 indices')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def format_seconds(seconds: float) -> str:
    """A time as people write it.

    >>> format_seconds(0.0042), format_seconds(0.25), format_seconds(3.14159), format_seconds(75)
    ('4.2 ms', '250 ms', '3.1 s', '1 min 15 s')
    """
    if seconds < 0.01:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 1:
        return f"{1000 * seconds:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes:,} min {rest} s"
