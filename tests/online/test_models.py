"""The models give the figures of the paper."""

from __future__ import annotations

import pytest

from millrace.core.errors import ParameterError
from millrace.online.virtual.models import (
    FUDGE_FACTOR,
    MODELS,
    Model,
    Setting,
    dbo,
    grace,
    hash_ripple,
    prjoin,
    ripple,
    sms,
)

EQUAL = Setting(10_000, 30_000, 500, 2.0, 2.0, 2.0)
C = EQUAL.common_rate / 2.0
# 10 GB x 10 GB, 500 MB, in pages of 1 MB; input and temporary data on disks
PAPER = Setting(10_000, 10_000, 500, 13.687e-3, 13.757e-3, 25.515e-3)


def area_after(model: Model, seconds: float) -> float:
    """Covered when so much I/O time has passed, steps taken to be even."""
    covered, start = 0.0, 0.0
    for step in model.steps:
        share = 1.0 if step.seconds == 0 else min(1.0, max(0.0, (seconds - start) / step.seconds))
        covered, start = covered + share * step.area, start + step.seconds
    return covered


def early_rates(model: Model) -> tuple[float, ...]:
    return tuple(step.rate for step in model.steps if step.early)


def prjoin_rate(s: Setting, mu: float, nu: float) -> float:
    """Equation 10: S mu (nu^2 + 2 nu)/(nu (T_ri+T_wt+T_rt) + (1 - 1/mu) T_rt): a ripple from mu a by mu b pages, wider by nu.

    What was joined before in memory (mu = 1) need not be read again.
    """
    all_of_it = s.read_input_seconds + s.write_temporary_seconds + s.read_temporary_seconds
    return s.common_rate * mu * (nu**2 + 2 * nu) / (nu * all_of_it + (1 - 1 / mu) * s.read_temporary_seconds)


def prjoin_step(gamma: float, j: int, place: float) -> tuple[float, float]:
    """Equation 12: mu and nu of the j-th join of a partition; `place` is i/n, where it stands in the stagger."""
    if j == 1:
        return 1.0, (1 + gamma) ** (1 + place) - 1
    return (1 + gamma) ** (j - 1 + place), gamma


def prjoin_most_seconds(s: Setting, gamma: float = 1.0) -> float:
    """Equation 13, the bound with the stop constraint."""
    return s.input_pages * (
        s.read_input_seconds + s.write_temporary_seconds + (1 + 1 / gamma) * s.read_temporary_seconds
    )  # fmt: skip


def test_memory_is_shared_in_proportion_to_the_inputs() -> None:
    assert EQUAL.in_memory_a * 3 == pytest.approx(EQUAL.in_memory_b)
    assert EQUAL.in_memory_a + EQUAL.in_memory_b == pytest.approx(500 / FUDGE_FACTOR)
    assert EQUAL.common_rate == pytest.approx(10_000 * 30_000 * 500 / (40_000**2 * FUDGE_FACTOR))


def test_with_equal_times_prjoin_doubles_its_rate_from_step_to_step() -> None:
    rates = [prjoin_rate(EQUAL, *prjoin_step(1.0, j, 0.0)) / C for j in range(1, 6)]
    assert [round(rate, 1) for rate in rates] == [1.0, 1.7, 3.2, 6.2, 12.2]
    assert rates == pytest.approx([2 ** (j - 1) * 3 / (4 - 2 ** (1 - j)) for j in range(1, 6)])


def test_later_partitions_of_a_step_have_higher_rates() -> None:
    for j in (1, 2, 4):
        rates = [prjoin_rate(EQUAL, *prjoin_step(1.0, j, place / 8)) for place in range(8)]
        assert rates == sorted(rates)


def test_with_equal_times_ripple_grows_by_block_as_the_paper_says() -> None:
    rates = [rate / C for rate in early_rates(ripple(EQUAL))]
    assert rates[0] == pytest.approx(1.0)
    assert [round(rate, 2) for rate in rates[1:6]] == [1.0, 1.25, 1.4, 1.5, 1.57]


def test_with_equal_times_the_others_have_the_rates_of_the_paper() -> None:
    extend = next(step for step in hash_ripple(EQUAL).steps if step.name == "extend")
    assert extend.rate / C == pytest.approx(0.5)
    assert early_rates(sms(EQUAL))[0] / C == pytest.approx(FUDGE_FACTOR / 2)
    assert early_rates(dbo(EQUAL))[0] / C == pytest.approx(FUDGE_FACTOR)
    assert early_rates(grace(EQUAL)) == (0.0,)


def test_ripples_total_is_its_closed_form() -> None:
    setting = Setting(9_000, 1_000, 1_290, 1.0, 2.0, 3.0)  # a + b = 1,000; l = 10
    assert ripple(setting).total_seconds == pytest.approx(1_000 * (10 * 1.0 + 9 * 2.0 + 45 * 3.0))


def test_grace_sms_and_dbo_read_and_write_everything_once() -> None:
    for model in (grace, sms, dbo):
        assert model(PAPER).total_seconds == pytest.approx(20_000 * (13.687e-3 + 13.757e-3 + 25.515e-3))
        assert model(PAPER).temporary_read_pages == 20_000


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("setting", [EQUAL, PAPER, Setting(700, 300, 400, 1.0, 1.5, 0.5), Setting(20, 30, 500, 1.0, 1.0, 1.0)])
def test_every_model_ends_with_the_whole_area_in_its_total_time(name: str, setting: Setting) -> None:
    model = MODELS[name](setting)
    assert sum(step.area for step in model.steps) == pytest.approx(setting.pages_a * setting.pages_b)
    assert sum(step.seconds for step in model.steps) == pytest.approx(model.total_seconds)
    assert area_after(model, model.total_seconds) == pytest.approx(setting.pages_a * setting.pages_b)
    assert area_after(model, 0.0) == 0.0


@pytest.mark.parametrize("gamma", [0.25, 0.5, 1.0, 2.0, 4.0])
def test_with_the_stop_constraint_prjoin_stays_within_the_bound(gamma: float) -> None:
    model = prjoin(PAPER, gamma)
    assert model.temporary_read_pages <= (1 + 1 / gamma) * PAPER.input_pages
    assert model.total_seconds <= prjoin_most_seconds(PAPER, gamma)
    assert grace(PAPER).total_seconds * 0.9 < model.total_seconds


def test_without_the_stop_constraint_more_is_covered_early_at_more_cost() -> None:
    on, off = prjoin(PAPER, stop=True), prjoin(PAPER, stop=False)
    assert off.total_seconds > on.total_seconds
    assert max(early_rates(off)) > max(early_rates(on))


def test_on_the_papers_disks_prjoin_is_far_below_ripple_and_near_grace() -> None:
    model = prjoin(PAPER)
    assert ripple(PAPER).total_seconds / model.total_seconds > 5
    assert model.total_seconds / grace(PAPER).total_seconds < 1.5


def test_more_partitions_do_not_change_what_prjoin_reads_by_much() -> None:
    few, many = prjoin(PAPER, partitions=32), prjoin(PAPER, partitions=512)
    assert few.temporary_read_pages == pytest.approx(many.temporary_read_pages, rel=0.05)


def test_inputs_that_fit_in_memory_need_no_temporary_storage() -> None:
    small = Setting(20, 30, 500, 1.0, 1.0, 1.0)
    for name in ("ripple", "hash_ripple", "sms", "dbo", "prjoin"):
        assert MODELS[name](small).total_seconds == pytest.approx(50.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Setting(0, 1, 1, 1, 1, 1),
        lambda: Setting(1, 1, 1, 0, 1, 1),
        lambda: Setting(1, 1, 1, 1, -1, 1),
        lambda: Setting(1, 1, 1, 1, 1, 1, 0.5),
        lambda: prjoin(EQUAL, gamma=0),
        lambda: prjoin(EQUAL, partitions=0),
    ],
)
def test_settings_that_cannot_be_are_an_error(wrong) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ParameterError):
        wrong()
