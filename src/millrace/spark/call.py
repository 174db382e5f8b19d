"""The arguments of an `enrich` or `explain` call, checked, and the plan that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from millrace.spark.arguments import check_choices, check_frame, checked_front, checked_memory, checked_partitions
from millrace.spark.choosing import Hints, Ranked
from millrace.spark.lookups import Lookup, as_lookups
from millrace.spark.plan import Plan
from millrace.spark.planning import make_plan
from millrace.tuning.arrivals import checked_arrivals
from millrace.tuning.skew import Skew, as_skew


@dataclass(frozen=True)
class Call:
    """Everything that a plan follows from."""

    stream: DataFrame
    lookups: list[Lookup]
    memory_bytes: int
    strategy: str
    read: str
    ordered: bool
    partitions: int | None
    front: Mapping[str, Any]
    skew: Skew
    arrivals_per_second: float | None

    @staticmethod
    def checked(
        stream: Any, table: Any, on: Any, how: Any, *, columns: Any, memory: Any, strategy: Any, read: Any, partitions: Any,
        ordered: Any, cache_share: Any, threshold: Any, name: Any, hot_keys: Any, skew: Any, arrivals_per_second: Any,
    ) -> Call:  # fmt: skip
        """The arguments as they were given; an error for what can't be meant."""
        check_frame(stream, "stream")
        lookups = as_lookups(table, on, how, columns, name, hot_keys)
        check_choices(strategy, read, ordered)
        front = checked_front(strategy, cache_share, threshold)
        tasks = None if partitions is None else checked_partitions(partitions)
        given = checked_memory(memory)
        arrivals = None if arrivals_per_second is None else checked_arrivals(arrivals_per_second)
        return Call(stream, lookups, given, strategy, read, ordered, tasks, front, as_skew(skew), arrivals)

    def hints(self) -> Hints:
        return Hints.of(self.stream.sparkSession, self.skew, self.arrivals_per_second, self.partitions)

    def plan(self, memory_bytes: int | None = None) -> tuple[Plan, tuple[Ranked, ...]]:
        """The plan, and what else could serve each table; with other memory, if that is given."""
        return make_plan(
            self.stream, self.lookups, memory_bytes or self.memory_bytes, strategy=self.strategy, read=self.read,
            ordered=self.ordered, partitions=self.partitions, front=self.front, hints=self.hints(),
        )  # fmt: skip
