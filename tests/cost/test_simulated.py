"""The equations beside joins that run on a virtual disk."""

from __future__ import annotations

from typing import Any

import pytest
from tests.cost.simulations import Scene

from millrace.cost.pages import Order

EVEN: tuple[float, Order] = (0.0, "scattered")
SKEWED: tuple[float, Order] = (1.0, "scattered")
SORTED: tuple[float, Order] = (1.0, "sorted")


def check(name: str, scene: Scene, close: float, tuples: int = 20_000, *, shares: float = 0.02, **given: Any) -> None:
    found, expected = scene.measure(name, tuples=tuples, **given), scene.forecast(name, **given)
    assert expected.tuples_per_second == pytest.approx(found.tuples_per_second, rel=close)
    each, counted = expected.expected.iteration.each(), found.each()
    for term in ("bytes_read", "matches", "pinned_matches", "front_hits"):
        assert each[term] == pytest.approx(counted[term], rel=close, abs=shares), term
    assert each["probes"] == pytest.approx(counted["probes"], rel=max(0.1, close), abs=0.1)


@pytest.mark.parametrize("buffer_pages", [None, 1, 40])
@pytest.mark.parametrize("name", ["meshjoin", "rmeshjoin"])
def test_a_scan_does_what_is_expected(name: str, buffer_pages: int | None) -> None:
    check(
        name, Scene(rows=15_000, memory_bytes=800_000), 0.03, **({} if buffer_pages is None else {"buffer_pages": buffer_pages})
    )


@pytest.mark.parametrize(
    ("stream", "given", "close"),
    [
        (EVEN, {}, 0.03), (EVEN, {"buffer_pages": 4}, 0.03), (SKEWED, {}, 0.03), (SKEWED, {"buffer_pages": 40}, 0.05),
        (SORTED, {}, 0.12),
    ],
)  # fmt: skip
def test_hybridjoin_does_what_is_expected(stream: tuple[float, Order], given: dict[str, int], close: float) -> None:
    check("hybridjoin", Scene(zipf=stream[0], order=stream[1]), close, **given)


@pytest.mark.parametrize(
    ("stream", "pinned", "close"), [(EVEN, 30, 0.05), (SKEWED, 20, 0.08), (SORTED, 20, 0.1), (SORTED, 45, 0.1)]
)
def test_xhybridjoin_does_what_is_expected(stream: tuple[float, Order], pinned: int, close: float) -> None:
    check("xhybridjoin", Scene(zipf=stream[0], order=stream[1]), close, 30_000, pinned_pages=pinned, buffer_pages=6)


@pytest.mark.parametrize("stream", [EVEN, SKEWED])
@pytest.mark.parametrize("buffer_pages", [None, 12])
def test_sweepjoin_does_what_is_expected(stream: tuple[float, Order], buffer_pages: int | None) -> None:
    given = {} if buffer_pages is None else {"buffer_pages": buffer_pages}
    check("sweepjoin", Scene(zipf=stream[0], order=stream[1]), 0.05, **given)


@pytest.mark.parametrize("stream", [EVEN, SKEWED])
def test_inlj_does_what_is_expected(stream: tuple[float, Order]) -> None:
    check("inlj", Scene(zipf=stream[0], order=stream[1]), 0.03, 2_000, tuples_per_step=64)


def test_inlj_with_a_pool_does_what_is_expected() -> None:
    check("inlj", Scene(rows=30_000), 0.1, 10_000, tuples_per_step=64, pool_bytes=800_000)


@pytest.mark.parametrize(("name", "close"), [("ssij", 0.15), ("partitionjoin", 0.25)])
@pytest.mark.parametrize("stream", [EVEN, SKEWED])
def test_joins_by_block_do_about_what_is_expected(name: str, close: float, stream: tuple[float, Order]) -> None:
    check(name, Scene(zipf=stream[0], order=stream[1]), close, shares=0.05)


@pytest.mark.parametrize("name", ["chybridjoin", "csweepjoin"])
def test_cached_joins_do_what_is_expected_once_they_have_learned(name: str) -> None:
    check(name, Scene(), 0.05, 5_000)
