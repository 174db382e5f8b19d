"""When tuples arrive."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.core.errors import ParameterError
from millrace.streams import Arrivals, BurstyArrivals, PausedArrivals, SteadyArrivals

PROCESSES: dict[str, Callable[[], Arrivals]] = {
    "steady": lambda: SteadyArrivals(per_step=3.7),
    "bursty": lambda: BurstyArrivals(seed=31),
    "scaled bursty": lambda: BurstyArrivals(mean_per_step=12.34, seed=31),
    "paused": lambda: PausedArrivals(BurstyArrivals(seed=31), pauses=[(20, 60), (50, 90), (300, 301)]),
}


def variance_time_slope(counts: npt.NDArray[np.int64], scales: list[int]) -> float:
    """Slope of log variance of the mean over m steps against log m: -1 for independent counts, nearer 0 for bursts that
    persist from scale to scale."""
    variances = [counts[: len(counts) // m * m].reshape(-1, m).mean(axis=1).var() for m in scales]
    return float(np.polyfit(np.log(scales), np.log(variances), 1)[0])


@pytest.fixture(scope="module")
def bursty() -> npt.NDArray[np.int64]:
    return BurstyArrivals(seed=32).arrivals(1 << 18)


@pytest.mark.parametrize("scales", [[1, 2, 4, 8], [4, 8, 16, 32], [16, 32, 64, 128], [64, 128, 256]])
def test_bursts_average_out_far_slower_than_those_of_a_poisson_process(
    bursty: npt.NDArray[np.int64], scales: list[int]
) -> None:
    poisson = np.random.default_rng(33).poisson(bursty.mean(), size=len(bursty))
    assert variance_time_slope(poisson, scales) == pytest.approx(-1.0, abs=0.1)
    assert variance_time_slope(bursty, scales) > -0.5


def test_bursty_counts_are_what_ten_sources_of_doubling_bandwidth_can_give(bursty: npt.NDArray[np.int64]) -> None:
    assert set(np.unique(bursty % 2)) == {0}
    assert bursty.min() == 0
    assert bursty.max() == sum(2**i for i in range(1, 11)) == BurstyArrivals().full_bandwidth
    assert bursty.mean() == pytest.approx(1023, rel=0.05)


def test_each_source_is_on_half_of_the_time_and_strong_ones_toggle_rarely(bursty: npt.NDArray[np.int64]) -> None:
    on = (bursty[:, None] >> np.arange(1, 11)) & 1  # bit i of the total bandwidth is the state of source i
    assert on.mean(axis=0) == pytest.approx(np.full(10, 0.5), abs=0.05)
    toggles = np.abs(np.diff(on, axis=0)).sum(axis=0)
    # a stretch lasts half of 2^i steps on average; the weakest sources toggle unseen between two steps
    assert toggles[4:] == pytest.approx(len(bursty) / 2.0 ** np.arange(4, 10), rel=0.2)


def test_the_bursty_process_starts_in_its_stationary_state() -> None:
    starts = np.array([BurstyArrivals(seed=seed).arrivals(200) for seed in range(400)])
    for step in (0, 50, 199):
        # one source of 1024 alone has a standard deviation of 512; 590 in all
        assert abs(starts[:, step].mean() - 1023) < 4 * 591 / np.sqrt(400)
        assert starts[:, step].std() == pytest.approx(591, rel=0.1)


def test_scaled_bursts_have_the_wished_average_and_the_same_shape() -> None:
    plain = BurstyArrivals(seed=34).arrivals(50_000)
    scaled = BurstyArrivals(mean_per_step=100.0, seed=34).arrivals(50_000)
    assert np.all(np.abs(scaled - plain * (100.0 / 1023.0)) <= 1)
    assert scaled.sum() == pytest.approx(plain.sum() * 100.0 / 1023.0, abs=1)


@pytest.mark.parametrize("per_step", [0, 1, 7, 0.25, 2.5, 1000 / 3])
def test_steady_arrivals_never_stray_from_the_rate_by_a_whole_tuple(per_step: float) -> None:
    counts = SteadyArrivals(per_step).arrivals(10_000)
    assert np.all(np.abs(np.cumsum(counts) - np.arange(1, 10_001) * per_step) <= 1)
    assert counts.max() - counts.min() <= 1


def test_pauses_are_empty_and_nothing_else_is() -> None:
    counts = PausedArrivals(SteadyArrivals(5), pauses=[(10, 20), (15, 30), (90, 200)]).arrivals(100)
    assert np.flatnonzero(counts == 0).tolist() == [*range(10, 30), *range(90, 100)]


def test_after_a_pause_the_inner_process_goes_on_where_it_was() -> None:
    paused = PausedArrivals(BurstyArrivals(seed=35), pauses=[(3, 8), (20, 21)]).arrivals(100)
    flowing = np.setdiff1d(np.arange(100), [*range(3, 8), 20])
    assert np.array_equal(paused[flowing], BurstyArrivals(seed=35).arrivals(94))


def test_a_paused_process_does_not_move_the_one_it_was_made_from() -> None:
    inner = BurstyArrivals(seed=36)
    first = PausedArrivals(inner, pauses=[(0, 5)]).arrivals(50)
    assert np.array_equal(PausedArrivals(inner, pauses=[(0, 5)]).arrivals(50), first)
    assert np.array_equal(inner.arrivals(45), first[5:])


@pytest.mark.parametrize("name", PROCESSES)
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 300), max_size=8))
def test_how_steps_are_cut_does_not_change_the_counts(name: str, cuts: list[int]) -> None:
    whole, pieces = PROCESSES[name](), PROCESSES[name]()
    expected = whole.arrivals(sum(cuts))
    assert expected.dtype == np.int64
    assert expected.shape == (sum(cuts),)
    assert np.array_equal(np.concatenate([np.empty(0, np.int64), *(pieces.arrivals(cut) for cut in cuts)]), expected)


def test_another_seed_gives_other_bursts() -> None:
    assert not np.array_equal(BurstyArrivals(seed=1).arrivals(100), BurstyArrivals(seed=2).arrivals(100))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SteadyArrivals(-1), "per_step must be at least 0"),
        (lambda: SteadyArrivals(float("inf")), "per_step must be a finite number; got inf"),
        (lambda: SteadyArrivals(1).arrivals(-1), "steps must be at least 0; got -1"),
        (lambda: BurstyArrivals(sources=0), "sources must be from 1 to 30; got 0"),
        (lambda: BurstyArrivals(mean_per_step=0), "mean_per_step must be more than 0"),
        (lambda: BurstyArrivals(seed=-3), "seed must be at least 0; got -3"),
        (lambda: PausedArrivals(SteadyArrivals(1), [(5, 5)]), "stop of a pause must be at least 6; got 5"),
        (lambda: PausedArrivals(SteadyArrivals(1), [(-1, 5)]), "start of a pause must be at least 0; got -1"),
        (lambda: PausedArrivals(SteadyArrivals(1), [3, 5]), "pauses must be pairs of steps"),  # type: ignore[list-item]
    ],
)
def test_a_bad_parameter_is_an_error_that_names_it(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ParameterError) as raised:
        make()
    assert message in str(raised.value)
