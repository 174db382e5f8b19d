"""A snapshot of pieces stays as it was, can be sent as bytes, and gives the same estimates to the last digit."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from tests.online.tables import ALGORITHMS, join_of, tables

from millrace.core.errors import ParameterError
from millrace.online.pair_functions import Products
from millrace.online.protocol import Progress, run
from millrace.online.statistics.answers import totals_of
from millrace.online.statistics.pieces_snapshot import COUNTS, SUMS, PiecesSnapshot
from millrace.online.statistics.totals import Sums

GROUPED = Products(((), (1,)), ((), (1,)), group_a=2, groups_a=3)


def _arrays(pieces: PiecesSnapshot) -> dict[str, np.ndarray[Any, Any]]:
    certain = {f"certain {name}": getattr(pieces.certain, name) for name in SUMS}
    return certain | {name: getattr(pieces, name) for name in (*SUMS, *COUNTS, "exact")}


def _reports(name: str, functions: Products | None = None) -> Any:
    data = tables("duplicates", rows=4000)
    groups = np.random.default_rng(2).integers(0, 3, (len(data.a), 1))
    a = np.ascontiguousarray(np.concatenate([data.a, groups], axis=1))
    options = {} if functions is None else {"functions": functions}
    for progress in run(join_of(name, a, data.b, memory=120_000, **options)):
        if progress.reported:
            yield progress


def _totals(pieces: PiecesSnapshot, progress: Progress) -> Any:
    return totals_of(pieces, 4000, 4000, input_ended=progress.input_ended, done=progress.done)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_snapshot_does_not_change_when_the_join_goes_on(name: str) -> None:
    reports = _reports(name)
    early = next(reports).pieces.snapshot()
    before = {name: array.copy() for name, array in _arrays(early).items()}
    *_, last = reports
    assert last.done
    for each, array in _arrays(early).items():
        np.testing.assert_array_equal(array, before[each], err_msg=each)
    assert early.kind != last.pieces.kind or not np.array_equal(early.t, last.pieces.snapshot().t)
    with pytest.raises(ValueError, match="read-only"):
        early.t[:] = 0.0


@pytest.mark.parametrize("functions", [None, GROUPED], ids=["plain", "groups"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_snapshot_that_was_sent_as_bytes_gives_the_same_estimates(name: str, functions: Products | None) -> None:
    compared = 0
    for number, progress in enumerate(_reports(name, functions)):
        if number % 7 and not progress.done:
            continue
        sent = progress.pieces.snapshot()
        arrived = PiecesSnapshot.from_bytes(sent.to_bytes())
        assert arrived.kind == sent.kind
        for each, array in _arrays(arrived).items():
            assert array.dtype == _arrays(sent)[each].dtype
            np.testing.assert_array_equal(array, _arrays(sent)[each], err_msg=each)
        one, other = _totals(sent, progress), _totals(arrived, progress)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one.value, other.value)
            np.testing.assert_array_equal(one.covariance, other.covariance)
            np.testing.assert_array_equal(one.pairs, other.pairs)
            compared += 1
    assert compared or name in ("xjoin", "hmj", "rpj")


def test_bytes_that_hold_objects_are_refused() -> None:
    """An object could run code when it is read."""
    content = next(_reports("prjoin")).pieces.snapshot().to_bytes()
    with np.load(io.BytesIO(content)) as found:
        arrays = dict(found)
    assert not any(array.dtype.hasobject for array in arrays.values())
    objects = io.BytesIO()
    np.savez(objects, **(arrays | {"rows_a": np.array([{1: 2}], object)}))
    with pytest.raises(ValueError, match="allow_pickle=False"):
        PiecesSnapshot.from_bytes(objects.getvalue())


def test_groups_are_chosen_when_a_snapshot_is_made_or_later() -> None:
    for progress in _reports("prjoin", GROUPED):
        chosen = np.array([2, 0])
        early, late = progress.pieces.snapshot(chosen), progress.pieces.snapshot().select(chosen)
        for each, array in _arrays(early).items():
            np.testing.assert_array_equal(array, _arrays(late)[each], err_msg=each)
            assert array.strides == _arrays(late)[each].strides
        np.testing.assert_array_equal(early.t, progress.pieces.t[:, chosen])
        assert not np.shares_memory(early.rows_a, progress.pieces.rows_a)


def test_other_sums_take_the_place_of_those_of_the_same_pieces() -> None:
    pieces = next(_reports("prjoin", GROUPED)).pieces.snapshot()
    sums = pieces.sums
    wide = pieces.with_sums(Sums(sums.t, 2 * sums.sx, sums.sy, sums.q, sums.pairs))
    np.testing.assert_array_equal(wide.sx, 2 * pieces.sx)
    np.testing.assert_array_equal(wide.rows_a, pieces.rows_a)
    with pytest.raises(ParameterError, match="not those of pieces"):
        pieces.select(np.array([0])).with_sums(sums)


def test_pairs_can_be_those_that_a_function_counts() -> None:
    pieces = next(_reports("prjoin", GROUPED)).pieces.snapshot()
    counted = pieces.counting(0)
    np.testing.assert_array_equal(counted.pairs, pieces.pairs)
    np.testing.assert_array_equal(pieces.counting(1).pairs, np.rint(pieces.t[..., 1]))
    assert counted.certain.pairs.dtype == np.int64
