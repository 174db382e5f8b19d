"""Conditions in words, as a plan prints them."""

from __future__ import annotations

import datetime

import pyarrow.compute as pc
import pytest

import millrace as mr

DAY = datetime.timedelta(days=1)


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (mr.between("ip", "ip_from", "ip_to"), "ip between ip_from and ip_to"),
        (
            mr.between("sold", "start", "end", on={"product": "id"}, closed="left", open_ended=True),
            "sold between start and end, closed: left, open-ended, product = id",
        ),
        (mr.near("x", "y", 0.5), "x within 0.5 of y"),
        (mr.near("at", "day", DAY, on="shop"), "at within 1 day, 0:00:00 of day, shop = shop"),
        (mr.similar("name", "title", 0.9), "name similar to title, levenshtein of 0.9 or more"),
        (mr.expr("stream.a < master.b"), "stream.a < master.b"),
        (mr.expr(pc.field("stream.a") < pc.field("master.b")), "(stream.a < master.b)"),
    ],
)
def test_a_condition_reads_well(condition: object, words: str) -> None:
    assert str(condition) == words
