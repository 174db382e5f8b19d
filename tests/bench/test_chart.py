"""The chart of `millrace bench enrich-growth`."""

from __future__ import annotations

import itertools
from typing import Any
from xml.etree import ElementTree

import pytest

from millrace.bench.enrich.chart import growth_chart

SVG = "{http://www.w3.org/2000/svg}"


def result(contender: str, rows: int, seconds: float | None) -> dict[str, Any]:
    times = [] if seconds is None else [seconds] * 5
    return {"contender": contender, "rows": rows, "median_seconds": seconds, "seconds": times}


def drawn(*results: dict[str, Any]) -> ElementTree.Element:
    report = {"options": {"batch_rows": 200_000}, "machine": {"cores": 2}, "results": list(results)}
    return ElementTree.fromstring(growth_chart(report))


def points(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in line.attrib["points"].split())]


def test_a_line_rises_with_the_seconds_and_a_flat_one_lies_flat() -> None:
    chart = drawn(
        *(result("spark-defaults", rows, rows / 1e6) for rows in (10_000_000, 1_000_000, 100_000)),
        *(result("millrace-auto", rows, 0.25) for rows in (10_000_000, 1_000_000, 100_000)),
        result("spark-broadcast", 100_000, 0.3),
        result("spark-broadcast", 1_000_000, None),
        result("somebody-else", 100_000, 1.0),
    )
    spark, ours, broadcast = (points(line) for line in chart.iter(f"{SVG}polyline"))
    assert [x for x, _ in spark] == sorted(x for x, _ in spark) == [x for x, _ in ours]
    steps = [later - earlier for (_, earlier), (_, later) in itertools.pairwise(spark)]
    assert steps[0] == pytest.approx(steps[1], abs=0.2)  # ten times as long is as far up anywhere
    assert steps[0] < -50  # pixels count from the top
    assert len({y for _, y in ours}) == 1
    assert len(broadcast) == 1


def test_labels_say_the_last_value_and_do_not_cover_each_other() -> None:
    chart = drawn(
        result("spark-defaults", 10_000, 0.50), result("spark-broadcast", 10_000, 0.51), result("millrace-auto", 10_000, 0.49)
    )
    texts = {str(text.text): float(text.attrib["y"]) for text in chart.iter(f"{SVG}text")}
    heights = [texts[name] for name in ("the same, broadcast hint", "Spark's stream-static join", "millrace")]
    assert all(lower - upper >= 30 for upper, lower in itertools.pairwise(heights))
    assert "0.49 s at 10 k rows" in texts
    assert "medians of 5 micro-batches, 2 cores, both axes logarithmic" in texts
