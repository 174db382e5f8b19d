"""The tables of an `enrich` call, one or several, as a list of look-ups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from millrace.core.conditions import Condition
from millrace.core.errors import ParameterError
from millrace.spark.arguments import check_name, checked_hot_keys, checked_how, wrong_table
from millrace.spark.master import MasterTable
from millrace.spark.parquet import ParquetTable

On = str | Sequence[Any] | Mapping[str, str] | Condition


@dataclass(frozen=True)
class Lookup:
    """One of several tables that `enrich` joins in one call. `on`, `how`, `columns` and `hot_keys` are those of `enrich`.
    Without `how` or `hot_keys`, those of the call hold."""

    table: MasterTable | ParquetTable
    on: On
    how: str | None = None
    columns: Sequence[str] | Mapping[str, str] | None = None
    name: str | None = None
    hot_keys: int | None = None  # 0: none of this table


def as_lookups(table: Any, on: On | None, how: str, columns: Any, name: str | None, hot_keys: Any = None) -> list[Lookup]:
    """The table or tables of a call, as a list of look-ups."""
    check_name(name)
    checked_how(how)
    wanted = checked_hot_keys(hot_keys)
    if isinstance(table, Lookup):
        raise ParameterError("a Lookup goes into a list, of one or of several: write [mr.Lookup(...)]")
    if not isinstance(table, (list, tuple)):
        check_table(table)
        return [Lookup(table, cast(On, on), how, columns, name, wanted)]  # without `on`, an error says what it must be
    wrong = next((one for one in table if not isinstance(one, Lookup)), None)
    if wrong is not None or not table:
        got = f"a {type(wrong).__name__} in it" if table else "none"
        raise ParameterError(f"several tables are given as a list of mr.Lookup(table, on=...); got {got}")
    if on is not None or columns is not None:
        raise ParameterError("with several tables, give on= and columns= to each Lookup")
    of_call = {"how": how, "name": name, "hot_keys": wanted}
    return [replace(one, **{field: value for field, value in of_call.items() if getattr(one, field) is None}) for one in table]


def check_table(table: Any) -> None:
    if not isinstance(table, (MasterTable, ParquetTable)):
        raise wrong_table(table)
