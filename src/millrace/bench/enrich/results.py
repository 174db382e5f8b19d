"""What one contender did at one batch size, and how the contenders compare."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

OK = "ok"
FLOOR = "identity-map"


@dataclass(frozen=True)
class Result:
    """Times of the warm micro-batches in seconds; `status` is "ok" or says why there are none."""

    contender: str
    batch_rows: int
    status: str = OK
    seconds: tuple[float, ...] = ()
    trigger_seconds: tuple[float, ...] = ()
    cold_seconds: tuple[float, ...] = ()
    setup_seconds: float | None = None
    rows_out: tuple[int, ...] = ()
    checksum: str | None = None
    settings: dict[str, str] | None = None
    peak_worker_anon_bytes: int | None = None
    peak_anon_bytes_of_workers: tuple[int, ...] = ()
    peak_jvm_rss_bytes: int | None = None
    peak_service_rss_bytes: int | None = None

    @property
    def median_seconds(self) -> float | None:
        return median(self.seconds) if self.seconds else None

    def followed_by(self, later: Result) -> Result:
        """This result with those of a later repeat; a repeat that went wrong decides."""
        if self.status != OK or later.status != OK:
            return self if self.status != OK else later
        return replace(
            self,
            seconds=self.seconds + later.seconds,
            trigger_seconds=self.trigger_seconds + later.trigger_seconds,
            cold_seconds=self.cold_seconds + later.cold_seconds,
            rows_out=self.rows_out if later.rows_out == self.rows_out else self.rows_out + later.rows_out,
            peak_worker_anon_bytes=_larger(self.peak_worker_anon_bytes, later.peak_worker_anon_bytes),
            peak_anon_bytes_of_workers=self.peak_anon_bytes_of_workers + later.peak_anon_bytes_of_workers,
            peak_jvm_rss_bytes=_larger(self.peak_jvm_rss_bytes, later.peak_jvm_rss_bytes),
            peak_service_rss_bytes=_larger(self.peak_service_rss_bytes, later.peak_service_rss_bytes),
        )


def merged(results: list[Result]) -> list[Result]:
    """One result per contender and batch size, in the order they first came."""
    by_name: dict[tuple[str, int], Result] = {}
    for result in results:
        name = (result.contender, result.batch_rows)
        by_name[name] = by_name[name].followed_by(result) if name in by_name else result
    return list(by_name.values())


def compared(results: list[Result]) -> list[dict[str, Any]]:
    """Every result as plain values, with its ratios to the floor and to millrace at the same batch size."""
    return [_beside(result, [other for other in results if other.batch_rows == result.batch_rows]) for result in results]


def rows_agree(results: list[Result]) -> bool:
    """Whether all contenders put out the same number of rows, micro-batch by micro-batch."""
    counts = {(result.batch_rows, result.rows_out) for result in results if result.status == OK}
    return len(counts) == len({batch_rows for batch_rows, _ in counts})


def checksums_agree(results: list[Result]) -> bool:
    """Whether all contenders that enrich put out the same rows in the first micro-batch."""
    sums = {(result.batch_rows, result.checksum) for result in results if result.checksum is not None}
    return len(sums) == len({batch_rows for batch_rows, _ in sums})


def failures(results: list[Result]) -> list[Result]:
    return [result for result in results if result.status.startswith("failed")]


def _beside(result: Result, others: list[Result]) -> dict[str, Any]:
    own = result.median_seconds
    floor = next((other for other in others if other.contender == FLOOR), None)
    ours = _millrace(others)
    plain = asdict(result)
    plain["median_seconds"] = own
    plain["ratio_to_identity_map"] = ratio(own, floor.median_seconds if floor else None)
    plain["ratio_to_millrace"] = ratio(own, ours.median_seconds if ours else None)
    plain["peak_worker_anon_over_identity_map_bytes"] = (
        result.peak_worker_anon_bytes - floor.peak_worker_anon_bytes
        if floor and floor.peak_worker_anon_bytes and result.peak_worker_anon_bytes
        else None
    )
    return plain


def _millrace(results: list[Result]) -> Result | None:
    """The strategy a user gets: auto, or the first one measured."""
    ours = [result for result in results if result.contender.startswith("millrace") and result.status == OK]
    return min(ours, key=lambda result: result.contender != "millrace-auto", default=None)


def ratio(one: float | None, other: float | None) -> float | None:
    """None where one of the two is missing."""
    return round(one / other, 4) if one is not None and other else None


def _larger(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)
