"""Which files of a folder a micro-batch sees, when only the clock can tell.

A file has two times: when its bytes were last written (`modified`), and when it last changed in any way (`changed`), which is
also when it came under its name. A folder that is renamed carries its files with it, and they keep their times.
"""

from __future__ import annotations

from datetime import UTC, datetime

from millrace.core.errors import TableError
from millrace.relations.parquet_files import Listing, ParquetSource

# A file's time is that of the last tick of the system's clock, so one that came just after a batch may bear an earlier time:
# a replay of the batch must not see it.
TICK_NS = 10_000_000
_MOST_AHEAD_NS = 2_000_000_000


def files_at(time_us: int, found: Listing, known: Listing | None) -> tuple[ParquetSource, ...]:
    """The files of a batch of this time. `found` are there now, and `known` were when the query was planned, before the batch;
    None: it was planned after the batch, which an earlier run has begun.

    A query has seen the known files itself; others must bear times from before the batch. Of an earlier run nothing is left but
    the times of files, and they may leave it open what that run saw.
    """
    limit_ns = time_us * 1000 - TICK_NS
    if known is None:
        return tuple(source for source in found.files if _was_there(source, limit_ns))
    names = {source.path for source in known.files}
    added = [source for source in found.files if source.path not in names]
    return (*known.files, *(source for source in added if _surely_there(source, limit_ns)))


def refuse_times_ahead(listing: Listing, now_us: int) -> None:
    """Files from the future: whoever replays a batch could not tell which it has seen."""
    for source in listing.files:
        if source.changed_ns > now_us * 1000 + _MOST_AHEAD_NS:
            raise TableError(
                f"{source.path} came at {_clock(source.changed_ns)} by the clock of its file system, and it is "
                f"{_clock(now_us * 1000)} here, so times can't tell which files a micro-batch has seen; set the clocks, or "
                "give ParquetTable(..., pins=folder)"
            )


def _was_there(source: ParquetSource, limit_ns: int) -> bool:
    """Whether a file was there at a time, by its own times and those of the folders above it."""
    times = _times(source)
    if _surely_there(source, limit_ns):
        return True
    if min(source.modified_ns, source.changed_ns) > limit_ns:
        return False
    raise TableError(
        f"this micro-batch was begun at {_clock(limit_ns + TICK_NS)} by an earlier run, and whether it saw {source.path} can't "
        f"be known: the file was written at {_clock(source.modified_ns)}, and the file or a folder above it was renamed, "
        f"copied or touched at {_clock(max(times[1:]))}. Give ParquetTable(..., pins=folder), which writes down the files of "
        "each batch; or start with a new checkpoint"
    )


def _surely_there(source: ParquetSource, limit_ns: int) -> bool:
    """All its times are from before; or it was touched later, but nothing has come into the folders since."""
    return max(_times(source)) <= limit_ns or max(source.modified_ns, source.settled_ns) <= limit_ns


def _times(source: ParquetSource) -> tuple[int, int, int]:
    return source.modified_ns, source.changed_ns, source.moved_ns


def _clock(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
