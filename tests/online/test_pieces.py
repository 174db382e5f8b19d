"""What a join reports while it runs is what it says: the sums of exactly those rows that a piece covers."""

from __future__ import annotations

import numpy as np
import pytest
from tests.online.tables import join_of, tables

from millrace.core.arrays import Int64Array
from millrace.online.joins.prjoin import PRJoin
from millrace.online.protocol import Pieces, run
from millrace.online.statistics.totals import Sums, sums_of_matches
from millrace.online.storage.pages import bucket_of


def sums_of(a: Int64Array, b: Int64Array) -> Sums:
    order = np.argsort(a[:, 0], kind="stable")
    low, high = (np.searchsorted(a[order, 0], b[:, 0], side) for side in ("left", "right"))
    at_b = np.repeat(np.arange(len(b)), high - low)
    at_a = order[np.arange(len(at_b)) - np.repeat(np.cumsum(high - low) - (high - low), high - low) + low[at_b]]
    values = np.stack([np.ones(len(at_b)), b[at_b, 1].view(np.float64)], axis=1)
    return sums_of_matches(at_a, at_b, values)


def assert_piece(pieces: Pieces, i: int, a: Int64Array, b: Int64Array) -> None:
    expected = sums_of(a, b)
    for name in ("t", "sx", "sy", "q", "pairs"):
        np.testing.assert_array_equal(getattr(pieces, name)[i], getattr(expected, name), err_msg=f"{name} of piece {i}")


@pytest.mark.parametrize("name", ["ripple", "hash_ripple", "sms", "dbo"])
def test_a_rectangle_has_the_sums_of_its_rows(name: str) -> None:
    data = tables("duplicates", rows=8000)
    checked = 0
    for progress in run(join_of(name, data.a, data.b, memory=80_000)):
        if progress.reported and not progress.input_ended and progress.pieces.kind == "rectangles":
            p = progress.pieces
            for i in range(len(p)):
                rows_a = data.a[p.first_a[i] : p.first_a[i] + p.own_a[i]]
                rows_b = data.b[p.first_b[i] : p.first_b[i] + p.own_b[i]]
                assert_piece(p, i, rows_a, rows_b)
                checked += 1
    assert checked > 8


@pytest.mark.parametrize("name", ["sms", "dbo"])
def test_while_runs_are_merged_rectangles_and_certain_keys_share_the_pairs(name: str) -> None:
    data = tables("duplicates", rows=8000)
    per_key = np.bincount(data.a[:, 0], minlength=400) * np.bincount(data.b[:, 0], minlength=400)
    below = np.concatenate(([0], np.cumsum(per_key)))  # pairs of keys below each key
    whole = below[-1]
    last, seen = 0, 0
    for progress in run(join_of(name, data.a, data.b, memory=80_000)):
        p = progress.pieces
        certain = int(p.certain.pairs[0])
        assert certain >= last
        if 0 < certain < whole:
            code = int(np.searchsorted(below, certain))
            assert below[code] == certain  # the keys that are certain are those below some key
            left_a, left_b = (side[:, 0] >= code for side in (data.a, data.b))
            for i in range(len(p)):
                a = slice(p.first_a[i], p.first_a[i] + p.own_a[i])
                b = slice(p.first_b[i], p.first_b[i] + p.own_b[i])
                expected = sums_of(data.a[a][left_a[a]], data.b[b][left_b[b]])
                assert p.pairs[i, 0] == expected.pairs[0]
                np.testing.assert_allclose(p.sx[i], expected.sx, atol=1e-3)
            seen += 1
            if seen == 2:
                break
        last = certain
    assert seen == 2


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("kind", ["duplicates", "skew"])
def test_a_partition_has_the_sums_of_its_rows_among_those_read_when_it_was_joined(kind: str, threads: int) -> None:
    data = tables(kind, rows=12_000)
    join = join_of("prjoin", data.a, data.b, memory=120_000, threads=threads)
    assert isinstance(join, PRJoin)
    reports = 0
    for progress in run(join):
        reports += progress.reported
        if not progress.reported or reports % 25:
            continue
        p = progress.pieces
        parts = join._partitions
        of_a, of_b = (
            parts._mapping[[bucket_of(code, np.uint64(parts._shift)) for code in side[:, 0]]] for side in (data.a, data.b)
        )
        for i in range(0, len(p), 3):
            a, b = data.a[: p.rows_a[i]], data.b[: p.rows_b[i]]
            in_a, in_b = of_a[: len(a)] == i, of_b[: len(b)] == i
            assert_piece(p, i, a[in_a], b[in_b])
            assert (p.own_a[i], p.own_b[i]) == (in_a.sum(), in_b.sum())
    assert reports > 50


def test_partitions_of_grace_are_the_whole_answer_bit_by_bit() -> None:
    data = tables("foreign key", rows=8000)
    steps = run(join_of("grace", data.a, data.b, memory=80_000))
    done = [int(progress.pieces.exact.sum()) for progress in steps if progress.reported]
    assert done == list(range(1, len(done) + 1))
    assert len(done) > 3
