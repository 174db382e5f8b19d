"""Each kind of piece gets the formula that fits it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from millrace.core.errors import ParameterError
from millrace.online.statistics.answers import totals_of
from millrace.online.statistics.estimators import Totals, finishing, rectangle, staggered
from millrace.online.statistics.pieces_snapshot import COUNTS, PiecesSnapshot
from millrace.online.statistics.totals import Sums, stacked, sums_of_matches

RANDOM = np.random.default_rng(30)


NONE = np.zeros(2, np.int64)


def _pieces(kind: Any, sums: Sums, certain: Sums | None = None, **counts: Any) -> PiecesSnapshot:
    """Counts that are not given are 0."""
    plain = dict.fromkeys(COUNTS, NONE[: len(sums.t)]) | {"exact": np.zeros(len(sums.t), np.bool_)}
    return PiecesSnapshot(kind, **vars(sums), **(plain | counts), certain=certain or Sums.zeros())


def _sums(matches: int, rows: int = 8) -> Sums:
    return sums_of_matches(
        RANDOM.integers(0, rows, matches), RANDOM.integers(0, rows, matches), RANDOM.gamma(2.0, size=matches)
    )


def _two() -> Sums:
    return stacked([_sums(12), _sums(15)])


def _assert_same(one: Totals | None, other: Totals) -> None:
    assert one is not None
    np.testing.assert_allclose(one.value, other.value)
    np.testing.assert_allclose(one.covariance, other.covariance)
    assert one.exact == other.exact


def test_partitions_are_staggered_while_input_is_read_and_rectangles_after() -> None:
    pieces = _pieces(
        "partitions", _two(), rows_a=np.array([20, 30]), rows_b=np.array([25, 30]), own_a=np.array([10, 14]),
        own_b=np.array([11, 16]), total_a=np.array([50, 50]), total_b=np.array([40, 60]),
    )  # fmt: skip
    reading = totals_of(pieces, 100, 100, input_ended=False)
    _assert_same(reading, staggered(pieces.sums, pieces.rows_a, pieces.rows_b, 100, 100))
    ended = totals_of(pieces, 100, 100, input_ended=True)
    _assert_same(ended, finishing(pieces.sums, pieces.own_a, pieces.own_b, pieces.total_a, pieces.total_b))


def test_finished_partitions_are_exact_and_a_hardly_joined_one_falls_back_on_global_counts() -> None:
    pieces = _pieces(
        "partitions", _two(), rows_a=np.array([100, 30]), rows_b=np.array([100, 30]), own_a=np.array([50, 1]),
        own_b=np.array([40, 16]), total_a=np.array([50, 50]), total_b=np.array([40, 60]), exact=np.array([True, False]),
    )  # fmt: skip
    totals = totals_of(pieces, 100, 100, input_ended=True)
    _assert_same(totals, staggered(pieces.sums, np.array([100, 30]), np.array([100, 30]), 100, 100))
    assert totals is not None
    assert np.isfinite(totals.covariance).all()


def test_what_is_certain_is_added_to_every_kind() -> None:
    certain = _sums(4)
    for kind, exact in (("samples", np.array([True, True])), ("partitions", np.array([False, False]))):
        pieces = _pieces(kind, _two(), exact=exact, rows_a=np.array([20, 30]), rows_b=np.array([20, 30]))
        plain = totals_of(pieces, 100, 100, input_ended=False)
        more = totals_of(replace(pieces, certain=certain), 100, 100, input_ended=False)
        assert plain is not None
        assert more is not None
        np.testing.assert_allclose(more.value - plain.value, certain.t)


def test_one_rectangle_is_a_rectangle() -> None:
    pieces = _pieces("rectangles", stacked([_sums(20)]), own_a=np.array([30]), own_b=np.array([40]))
    _assert_same(
        totals_of(pieces, 100, 200, input_ended=False),
        rectangle(Sums(*(getattr(pieces, n)[0] for n in ("t", "sx", "sy", "q", "pairs"))), 30, 40, 100, 200),
    )


def test_a_ripple_in_pieces_estimates_the_total_of_its_rectangle() -> None:
    pieces = _pieces(  # old rows with old, then new rows of A with all of B
        "rectangles", _two(), first_a=np.array([0, 10]), own_a=np.array([10, 10]), first_b=np.array([0, 0]),
        own_b=np.array([20, 20]),
    )  # fmt: skip
    totals = totals_of(pieces, 40, 40, input_ended=False)
    assert totals is not None
    assert float(totals.value[0, 0]) == pytest.approx(float(pieces.t.sum()) * 40 * 40 / (20 * 20))


def test_a_join_that_is_done_holds_the_answer() -> None:
    pieces = _pieces("counts", _two(), certain=_sums(3))
    totals = totals_of(pieces, 100, 100, input_ended=True, done=True)
    assert totals is not None
    assert totals.exact
    np.testing.assert_allclose(totals.value, pieces.t.sum(axis=0) + pieces.certain.t)


def test_pieces_that_depend_on_the_data_give_no_estimate() -> None:
    assert totals_of(_pieces("counts", _two()), 100, 100, input_ended=False) is None
    with pytest.raises(ParameterError, match="no formula"):
        totals_of(_pieces("spirals", _two()), 100, 100, input_ended=False)
