"""`mr.estimate` checks what it is given and hands it to one of its engines."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import millrace as mr
from millrace.core.errors import ParameterError
from millrace.front.estimate import ENGINES, estimate
from millrace.online.run.options import Asked, Options

TABLE = pa.table({"k": [1, 2, 2]})


def test_the_public_function_is_that_of_the_front() -> None:
    assert mr.estimate is estimate


def test_there_are_these_engines_and_no_others() -> None:
    assert list(ENGINES) == ["auto", "local", "spark"]
    with pytest.raises(ParameterError, match="engine must be one of auto, local, spark; got 'flink'"):
        mr.estimate(TABLE, TABLE, on="k", engine="flink", n=mr.count())  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match='estimates on Spark are not there yet; use engine="local" with Parquet folders'):
        mr.estimate(TABLE, TABLE, on="k", engine="spark", n=mr.count())
    for engine in ("auto", "local"):
        assert mr.estimate(TABLE, TABLE, on="k", engine=engine, n=mr.count()).exact()["n"].value == 5  # type: ignore[arg-type]


def test_an_engine_is_given_what_was_asked_and_options_that_were_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[Asked, Options]] = []

    def open_nothing(asked: Asked, options: Options) -> Any:
        given.append((asked, options))

    monkeypatch.setitem(ENGINES, "spark", open_nothing)
    mr.estimate(
        "left",
        "right",
        on="k",
        engine="spark",
        group_by="g",
        where="x > 1",
        memory="1m",
        seed=4,
        spill_limit="2k",
        n="count(*)",
    )
    ((asked, options),) = given
    assert (asked.left, asked.right, asked.on, asked.group_by, asked.where) == ("left", "right", "k", "g", "x > 1")
    assert asked.aggregations["n"].name == "COUNT"
    assert (options.memory_bytes, options.seed, options.spill_limit_bytes) == (1 << 20, 4, 2048)
    with pytest.raises(ParameterError, match="seed must be"):
        mr.estimate("left", "right", on="k", engine="spark", seed=-1, n=mr.count())
    assert len(given) == 1
