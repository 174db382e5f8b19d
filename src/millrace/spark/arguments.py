"""The arguments of `enrich`, checked and put into one form. Each error says what to write instead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from millrace.catalog import ALGORITHMS, BROADCAST, algorithm, spark_strategies
from millrace.core.budget import parse_bytes
from millrace.core.conditions import Condition, Pairs, key_pairs
from millrace.core.errors import ParameterError, SchemaError, StrategyError
from millrace.core.protocols import HOWS, How
from millrace.joins.cache_share import check_share, check_threshold
from millrace.relations.files import READ_MODES
from millrace.spark.key_sketch import MOST_KEYS
from millrace.spark.reports import observation_classes
from millrace.spark.schema import spelled

_HOWS: dict[str, How] = {**{how: how for how in HOWS}, "leftouter": "left", "leftsemi": "semi", "leftanti": "anti"}
_MOST_PARTITIONS = (1 << 31) - 1  # Spark counts them in an int


def check_frame(data: Any, what: str) -> None:
    """`data` is a Spark DataFrame; `what` is what the caller calls it."""
    if not isinstance(data, DataFrame):
        raise ParameterError(f"the {what} must be a Spark DataFrame; got {_named_type(data)}: {_way_to_a_frame(data, what)}")


def _way_to_a_frame(data: Any, what: str) -> str:
    if hasattr(data, "planned"):
        return "the stream comes first, then the table"
    if hasattr(data, "to_spark"):
        return f"give {what}.to_spark()"
    if hasattr(data, "toDF"):
        return f"give {what}.toDF()"
    if isinstance(data, (str, os.PathLike)):
        return f"read it first, for instance spark.read.parquet({str(data)!r})"
    if hasattr(data, "load") and hasattr(data, "parquet"):
        return "a reader makes one with load(path), parquet(path) and the like"
    if type(data).__name__ == "GroupedData":
        return "grouped rows make one with agg(...), count() and the like"
    return f"make one with spark.createDataFrame({what})" if data is not None else "did a function forget to return it?"


def wrong_table(table: Any) -> ParameterError:
    """The error for a value that is no table: it says how to make a table."""
    if isinstance(table, DataFrame):
        advice = "build a table from it once, with mr.MasterTable.build(frame, key, path)"
    elif isinstance(table, (str, os.PathLike)):
        path = repr(str(table))
        advice = f"write mr.MasterTable.open({path}), or mr.ParquetTable({path}) for Parquet files"
    elif isinstance(table, type):
        advice = f"write mr.{table.__name__}(path)"
    elif isinstance(table, (Mapping, Iterable)) and not hasattr(table, "columns"):
        advice = "several tables are given as a list of mr.Lookup(table, on=...)"
    else:
        advice = "make one with mr.MasterTable.build, mr.MasterTable.open or mr.ParquetTable"
    return ParameterError(f"the table must be a MasterTable or a ParquetTable; got {_named_type(table)}: {advice}")


def _named_type(value: Any) -> str:
    """The type of a value, with its library where the name alone may mislead: pandas has a DataFrame too."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    kind = type(value)
    home = kind.__module__.split(".")[0]
    return kind.__name__ if home in ("builtins", "pathlib", "millrace", "pyspark") else f"{home}.{kind.__name__}"


def checked_how(how: Any) -> How:
    """One of the four joins. Spark's own names work too, in upper or lower case.

    >>> checked_how("left_outer"), checked_how("ANTI")
    ('left', 'anti')
    """
    known = _HOWS.get(how.lower().replace("_", "")) if isinstance(how, str) else None
    if known is None:
        why = ": which table rows never match shows only when a stream has ended" if _keeps_table_rows(how) else ""
        raise ParameterError(f"how must be one of {', '.join(HOWS)}; got {how!r}{why}")
    return known


def _keeps_table_rows(how: Any) -> bool:
    return isinstance(how, str) and how.lower().startswith(("right", "full", "outer"))


def checked_on(on: Any) -> Pairs | Condition:
    """Keys as pairs of columns, or the condition."""
    if isinstance(on, Condition):
        return on
    parts = [*on.keys(), *on.values()] if isinstance(on, Mapping) else on if isinstance(on, (list, tuple)) else [on]
    if any(isinstance(part, Column) for part in parts):
        raise ParameterError(
            f"on takes names of columns, not Column objects; got {on!r}: write on='name', on=('stream name', 'table name'), "
            "or mr.expr(...) for a comparison"
        )
    return key_pairs(on)


def in_key_order(on: Sequence[tuple[str, str]], key: tuple[str, ...], given: Any) -> Pairs:
    """The pairs in the order of the table's key. The pairs must name the whole key. `given`: what the caller wrote."""
    theirs = {table: mine for mine, table in on}
    if set(theirs) == set(key) and len(on) == len(key):
        return tuple((theirs[name], name) for name in key)
    text = (
        f"on must give a stream column for each key column of the table ({', '.join(key)}); got "
        f"{', '.join(f'{mine} -> {table}' for mine, table in on)}"
    )
    (mine, table), *more = on
    if isinstance(given, tuple) and not more and {mine, table} == set(key):
        text += f": a pair is (stream column, table column), two columns of both sides are a list, [{mine!r}, {table!r}]"
    elif len(key) == 1 and not more:
        text += f": write on=({mine!r}, {key[0]!r}) if that is the stream column to look up"
    raise SchemaError(text)


def chosen_columns(columns: Any, schema: pa.Schema, on: Pairs, how: How, sensitive: bool) -> Pairs:
    """(table column, name in the output) of the columns to add, in the order asked for."""
    if how in ("semi", "anti"):
        if columns:
            raise ParameterError(
                f"{'an anti' if how == 'anti' else 'a semi'} join puts out stream columns only; leave columns= out"
            )
        return ()
    if columns is None:
        same = {theirs for mine, theirs in on if mine == theirs or (not sensitive and mine.lower() == theirs.lower())}
        return tuple((name, name) for name in schema.names if name not in same)
    chosen = []
    for name, renamed in _wanted(columns):
        found = spelled(name, schema.names, sensitive)
        if found not in schema.names:
            wrong_way = isinstance(columns, Mapping) and spelled(renamed, schema.names, sensitive) in schema.names
            advice = "; a dict goes from table column to new name" if wrong_way else ""
            raise SchemaError(f"the table has no column {name!r}; it has {', '.join(schema.names)}{advice}")
        chosen.append((found, renamed))
    return tuple(chosen)


def _wanted(columns: Any) -> list[tuple[str, str]]:
    """(table column, new name) as they were written."""
    if isinstance(columns, str):
        text = "leave columns= out for all of them" if columns == "*" else f"write [{columns!r}]"
        raise ParameterError(f"columns must be a list of names; got the text {columns!r}: {text}")
    if isinstance(columns, Mapping):
        pairs = list(columns.items())
    elif isinstance(columns, Iterable) and not isinstance(columns, (bytes, set, frozenset, Column)):
        pairs = [(name, name) for name in columns]
    else:
        raise ParameterError(f"columns must be a list of names, or a dict of names and new names; got {columns!r}")
    for name, renamed in pairs:
        if not isinstance(name, str) or not isinstance(renamed, str):
            wrong = name if not isinstance(name, str) else renamed
            raise ParameterError(f"columns are given by name, new names by a dict {{'name': 'new name'}}; got {wrong!r}")
    return pairs


def checked_memory(memory: Any) -> int:
    """Bytes."""
    try:
        return parse_bytes(memory if isinstance(memory, bool) or not hasattr(memory, "__index__") else index(memory))
    except ParameterError as wrong:
        raise ParameterError(f"memory: {wrong}") from None
    except OverflowError:
        raise ParameterError(f"memory: no machine has so much; got {memory!r}") from None


def checked_partitions(partitions: Any) -> int:
    if isinstance(partitions, bool) or not hasattr(partitions, "__index__"):
        raise ParameterError(f"partitions must be a whole number; got {partitions!r}")
    count = index(partitions)
    if count < 1:
        raise ParameterError(f"partitions must be at least 1; got {count}")
    if count > _MOST_PARTITIONS:
        raise ParameterError(f"partitions must be at most {_MOST_PARTITIONS}; got {count}")
    return count


def checked_hot_keys(wanted: Any) -> int:
    """Keys that a report keeps; 0: none."""
    if wanted is None:
        return 0
    if isinstance(wanted, bool) or not hasattr(wanted, "__index__"):
        raise ParameterError(f"hot_keys must be a whole number of keys, such as 100, or None; got {wanted!r}")
    if not 0 <= (count := index(wanted)) <= MOST_KEYS:
        raise ParameterError(f"hot_keys must be between 0 (off) and {MOST_KEYS:,}; got {count}")
    return count


def check_choices(strategy: Any, read: Any, ordered: Any) -> None:
    if strategy != "auto" and strategy not in (names := spark_strategies()):
        known = any(row.name == strategy for row in ALGORITHMS)
        wrong = f"strategy {strategy!r} does not run on Spark" if known else f"there is no strategy {strategy!r}"
        raise StrategyError(f"{wrong}; choose one of auto, {', '.join(names)}")
    if read != "auto" and read not in READ_MODES:
        raise ParameterError(f"read must be one of auto, {', '.join(READ_MODES)}; got {read!r}")
    if not isinstance(ordered, bool):
        raise ParameterError(f"ordered must be True or False; got {ordered!r}")


def checked_front(strategy: str, cache_share: Any, threshold: Any) -> dict[str, Any]:
    """What was said of the front stage; an error if the join has none."""
    check_share(cache_share)
    check_threshold(threshold)
    said = {name: value for name, value in (("cache_share", cache_share), ("threshold", threshold)) if value != "auto"}
    if said and (strategy in ("auto", BROADCAST) or not algorithm(strategy).cached):
        cached = [row.name for row in ALGORITHMS if row.cached]
        near = [name for name in cached if name.endswith(strategy)]
        use = ", ".join(near or cached)
        raise StrategyError(f"{min(said)} is for a join with a front stage; strategy {strategy!r} has none: use {use}")
    return said


def check_name(name: Any) -> None:
    if name is not None and (not isinstance(name, str) or not name):
        raise ParameterError(f"name must be a text, for the reports; got {name!r}")


def check_observation(observation: Any, stream: DataFrame, tables: int) -> None:
    if observation is None:
        return
    if not isinstance(observation, observation_classes()):
        raise ParameterError(f"observation must be an Observation of pyspark.sql; got {observation!r}")
    if stream.isStreaming:
        raise ParameterError("an observation counts a batch DataFrame; for a stream, leave it out and use mr.reports(query)")
    if tables > 1:
        raise ParameterError("an observation counts one table: enrich in several calls, each with its own")
