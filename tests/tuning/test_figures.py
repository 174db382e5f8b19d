"""The papers' figures that are drawn from equations say what the papers read from them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from millrace.tuning import figures
from millrace.tuning.figures import FIGURES, Figure, Series


def values(points: Sequence[tuple[float, float]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.array([point[1] for point in points])


def rises_then_falls(points: Sequence[tuple[float, float]], ripple: float = 0.01) -> bool:
    """One maximum, which is neither the first nor the last point. Sizes are whole, so that a line may ripple a little."""
    y = values(points)
    top = int(y.argmax())
    up, down = y[: top + 1], y[top:]
    rises = bool((up >= np.maximum.accumulate(up) * (1 - ripple)).all())
    falls = bool((down <= np.minimum.accumulate(down) * (1 + ripple)).all())
    return 0 < top < len(y) - 1 and rises and falls


def upside_down(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    return [(x, 1 / y) for x, y in points]


def one(figure: Figure) -> Sequence[tuple[float, float]]:
    (points,) = figure.series.values()
    return points


def grows(points: Sequence[tuple[float, float]]) -> bool:
    return bool((np.diff(values(points)) > 0).all())


def test_the_check_itself_knows_one_maximum_from_none_and_from_two() -> None:
    def line(*y: float) -> list[tuple[float, float]]:
        return [(float(x), value) for x, value in enumerate(y)]

    assert rises_then_falls(line(1, 2, 3, 2))
    assert not rises_then_falls(line(1, 2, 3))
    assert not rises_then_falls(line(3, 2, 1))
    assert not rises_then_falls(line(1, 3, 2, 3.5, 1))


def test_every_figure_has_a_number_of_its_own_in_order() -> None:
    made = [make() for make in FIGURES.values()]
    assert [figure.number for figure in made] == list(FIGURES) == [1, 2, 3, 8, 15, 20, 21, 22, 23, 24, 25, 26, 40, 43]
    assert len({figure.name for figure in made}) == len(made)
    for figure in made:
        for points in figure.series.values():
            assert len(points) >= 4
            assert np.isfinite(values(points)).all()
            assert (np.diff([point[0] for point in points]) > 0).all()


@pytest.mark.parametrize("arrivals", [1_000.0, 5_000.0, 20_000.0])
def test_memory_for_a_wanted_rate_has_one_minimum(arrivals: float) -> None:
    assert rises_then_falls(upside_down(one(figures.meshjoin_memory(arrivals))))


def test_a_higher_rate_wants_more_memory_whatever_the_buffer() -> None:
    slow, fast = (values(one(figures.meshjoin_memory(rate))) for rate in (2_000.0, 8_000.0))
    assert (fast > slow).all()


def test_the_rate_of_meshjoin_rises_to_one_maximum_and_falls_sharply() -> None:
    points = one(figures.meshjoin_rate())
    assert rises_then_falls(points)
    assert values(points)[-1] < 0.02 * values(points).max()


def test_minimum_and_maximum_are_two_views_of_one_equation() -> None:
    """With the least memory for a rate, this rate is the highest that can be had."""
    wanted = 20_000.0
    memory = min(value for _, value in one(figures.meshjoin_memory(wanted))) * figures.MEGABYTE
    best = max(value for _, value in one(figures.meshjoin_rate(int(memory))))
    assert best == pytest.approx(wanted, rel=0.05)


def test_the_rate_by_our_equations_hardly_rises_at_small_buffers_and_falls_fast_at_large_ones() -> None:
    y = values(one(figures.meshjoin_predicted()))
    assert y[0] > 0.65 * y.max()
    assert y[-1] < 0.2 * y.max()


def test_the_rate_of_hybridjoin_rises_and_falls_with_its_buffer_and_the_cost_of_reading_is_its_mirror() -> None:
    series = figures.hybridjoin_buffer().series
    rate, reading = series["rate"], series["reading, µs a tuple"]
    assert rises_then_falls(rate)
    assert rises_then_falls(upside_down(reading))
    assert abs(int(values(rate).argmax()) - int(values(reading).argmin())) <= 1


def test_inlj_is_dearest_and_all_grow_with_the_relation() -> None:
    series = figures.cost_of_three().series
    assert grows(series["meshjoin"])
    assert grows(series["hybridjoin"])
    assert (values(series["inlj"]) > 100 * values(series["meshjoin"])).all()


def test_each_curve_of_the_grid_has_one_maximum() -> None:
    series: Series = figures.x_grid().series
    assert len(series) == 4
    for name, points in series.items():
        assert rises_then_falls(points), name


def test_the_chance_of_a_match_falls_along_a_sorted_relation() -> None:
    chance = values(one(figures.match_probability()))
    assert (np.diff(chance) < 0).all()
    assert chance.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("make", [figures.x_swappable, figures.x_pinned])
def test_each_part_of_xhybridjoin_has_a_best_size(make: object) -> None:
    assert callable(make)
    assert rises_then_falls(one(make()))


@pytest.mark.parametrize("make", [figures.x_tuned_by_rows, figures.x_tuned_by_memory])
def test_tuned_parts_are_better_than_equal_ones_everywhere(make: object) -> None:
    assert callable(make)
    series = make().series
    assert (values(series["tuned"]) > values(series["two equal parts"])).all()


def test_pinned_pages_save_cost_at_every_size() -> None:
    series = figures.x_cost().series
    assert (values(series["xhybridjoin"]) < 0.5 * values(series["hybridjoin"])).all()
    assert grows(series["xhybridjoin"])


def test_the_back_stage_of_cmeshjoin_rises_then_falls() -> None:
    assert rises_then_falls(one(figures.cmeshjoin_buffer()))


def test_with_a_front_stage_a_tuple_costs_less_at_every_memory() -> None:
    series = figures.cost_of_cached().series
    for plain in ("meshjoin", "hybridjoin", "sweepjoin"):
        assert (values(series[f"c{plain}"]) < values(series[plain])).all(), plain
