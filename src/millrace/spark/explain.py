"""`explain`: what an `enrich` call would do, how fast, and whether it keeps up. Runs nothing, unless asked to sample.

The plan that is printed is the plan that runs: `Explanation.enrich()` runs it, and `enrich` makes the same from the same
arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from html import escape
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from millrace.core.budget import format_bytes
from millrace.core.errors import BudgetError, ParameterError
from millrace.core.wording import counted, format_seconds
from millrace.spark.arguments import check_frame
from millrace.spark.call import Call
from millrace.spark.choosing import Ranked
from millrace.spark.enrich import enriched
from millrace.spark.forecast import USUAL_ROWS, BatchForecast, JoinForecast
from millrace.spark.lookups import Lookup, On
from millrace.spark.master import MasterTable
from millrace.spark.parquet import ParquetTable
from millrace.spark.plan import Plan
from millrace.spark.schema import named_column
from millrace.spark.workers import use_this_python
from millrace.tuning.skew import Skew

_SHOWN_ROWS = (20_000, 200_000, 1_000_000)  # of a micro-batch
_OTHER_MEMORY = (0.25, 0.5, 2.0, 4.0)  # times the memory given
_NOTABLE = 1.1  # times the rate: less is not worth a line
_DOUBLINGS = 7  # of the memory given, to find out which memory would keep up
_ROUGH = "by default costs, which may be off by three times"
_HARDLY = 1.02  # times the rate: more memory that gives no more is of no use
_HEAD = 1_000  # keys of a sample
_CERTAIN = 5  # rows of a key in a sample: fewer may be chance
_MOST_SAMPLE = 10_000_000


class Explanation:
    """What an `enrich` call would do. `print` shows it; the fields are for programs."""

    def __init__(self, call: Call, plan: Plan, rankings: tuple[Ranked, ...]) -> None:
        self._call = call
        self._rankings = rankings
        self.plan = plan
        self.skew = call.skew
        self.arrivals_per_second = call.arrivals_per_second
        self._forecast = _forecast(call, tuple(one.chosen for one in rankings))

    @property
    def strategy(self) -> str:
        """The join. For several tables: their joins, with commas."""
        return ", ".join(join.asked.strategy for join in self.plan.joins)

    @cached_property
    def tuples_per_second(self) -> float:
        """Rows a second in long micro-batches, with Spark's part."""
        return self._forecast.highest_rate

    def seconds_per_batch(self, rows: Any) -> float:
        """Seconds of a warm micro-batch of so many rows, with Spark's part."""
        if isinstance(rows, bool) or not isinstance(rows, (int, float)) or not 0 <= rows < float("inf"):
            raise ParameterError(f"rows must be a number of rows, 0 or more; got {rows!r}")
        return self._forecast.seconds(rows)

    @property
    def rows_per_batch(self) -> float:
        """Rows of a micro-batch: those in which the query settles at the arrival rate, or 200,000 where no rate is given."""
        settled = None if self.arrivals_per_second is None else self._forecast.rows_for(self.arrivals_per_second)
        return USUAL_ROWS if settled is None else settled

    @property
    def pages_per_1000_rows(self) -> float:
        """Pages read for a thousand rows, in micro-batches of `rows_per_batch`."""
        rows = max(1.0, self.rows_per_batch)
        return 1000 * self._forecast.pages(rows) / rows

    @property
    def memory_split(self) -> dict[str, int]:
        """Bytes of each part of a task's memory. For several tables the names begin with the table's."""
        several = len(self.plan.joins) > 1
        found: dict[str, int] = {}
        for join in self._forecast.joins:
            for part, count in join.memory_split().items():
                found[f"{join.plan.asked.table.name}: {part}" if several else part] = count
        return found

    @property
    def keeps_up(self) -> bool | None:
        """Whether rows are joined as fast as they arrive. None: no arrival rate was given."""
        if self.arrivals_per_second is None:
            return None
        return self._forecast.rows_for(self.arrivals_per_second) is not None

    @property
    def headroom(self) -> float | None:
        """How many times the arrival rate the call could serve."""
        arrivals = self.arrivals_per_second
        return self.tuples_per_second / arrivals if arrivals else None

    @property
    def latency_seconds(self) -> float | None:
        """Mean seconds from the arrival of a row to the end of its micro-batch, where micro-batches follow one another. None:
        no arrival rate was given, or the call does not keep up."""
        if self.arrivals_per_second is None or not self.keeps_up:
            return None
        return 1.5 * self._forecast.seconds(self.rows_per_batch)

    @property
    def runner_up(self) -> str | None:
        """The next best join of the first table; None where nothing else can serve it, or a strategy was named."""
        other = self._rankings[0].runner_up
        return None if other is None else other.plan.asked.strategy

    @property
    def notes(self) -> list[str]:
        """What the forecast rests on, and what it leaves out."""
        found = [self._forecast.calibration.note] if self._forecast.calibration.note else []
        if any(join.asked.condition is not None and join.access == "join" for join in self.plan.joins):
            found.append("the time of comparing rows by the condition is not in the forecast, only that of reading")
        if any(join.relation.rows == 0 for join in self._forecast.joins):
            found.append("the table is empty")
        return found

    def enrich(self) -> DataFrame:
        """The joined DataFrame: what `mr.enrich` returns, by this very plan."""
        return enriched(self._call.stream, self.plan)

    # --- for people

    def __str__(self) -> str:
        return "\n".join([str(self.plan), *self._lines()])

    def __repr__(self) -> str:
        return f"<Explanation {self.strategy}, {self.tuples_per_second:,.0f} rows/s>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def _lines(self) -> list[str]:
        rows = [("keys", str(self.skew)), ("rate", self._rate()), ("batches", self._batches())]
        rows.append(("reads", self._reads()))
        rows += [("memory", f"{name}: {format_bytes(size)}") for name, size in self.memory_split.items()]
        if self.arrivals_per_second is not None:
            rows.append(("arrivals", self._arrivals(self.arrivals_per_second)))
        rows += [("runner-up", text) for text in self._runners_up()]
        rows += [("or", text) for text in self.changes]
        rows += [("note", text) for text in self.notes]
        told: list[str] = ["forecast"]
        last = ""
        for name, text in rows:
            told.append(f"  {name if name != last else '':<9} {text}")
            last = name
        return told

    def _rate(self) -> str:
        tasks = self._forecast.tasks
        return (
            f"{self.tuples_per_second:,.0f} rows a second in long micro-batches "
            f"({counted(tasks.count, 'task')}, {counted(tasks.cores, 'core')})"
            + (f"; {_ROUGH}" if self._forecast.calibration.note else "")
        )

    def _batches(self) -> str:
        return "; ".join(f"{rows:,} rows in {format_seconds(self.seconds_per_batch(rows))}" for rows in _SHOWN_ROWS)

    def _reads(self) -> str:
        if all(join.relation.resident for join in self._forecast.joins):
            return "nothing from disk: pages are used in memory"
        return f"{self.pages_per_1000_rows:,.1f} pages for 1,000 rows, of a micro-batch of {self.rows_per_batch:,.0f}"

    def _arrivals(self, arrivals: float) -> str:
        if not self.keeps_up:
            return (
                f"{arrivals:,.0f} rows a second: does not keep up; {self.tuples_per_second:,.0f} is the most with "
                f"{format_bytes(self._call.memory_bytes)}; {self._with_more_memory(arrivals)}"
            )
        latency = self.latency_seconds
        assert latency is not None
        head = "" if self.headroom is None else f", head-room {self.headroom:.1f}x"
        return (
            f"{arrivals:,.0f} rows a second: keeps up{head}; micro-batches of about {self.rows_per_batch:,.0f} rows, "
            f"{format_seconds(latency)} from arrival to result"
        )

    def _with_more_memory(self, arrivals: float) -> str:
        """Which memory would keep up; if none would, the highest rate that more memory gives."""
        rate, memory = self.tuples_per_second, self._call.memory_bytes
        for doubled in range(1, _DOUBLINGS + 1):
            more = self._call.memory_bytes << doubled
            _, rankings = self._call.plan(more)
            forecast = _forecast(self._call, tuple(one.chosen for one in rankings))
            if forecast.rows_for(arrivals) is not None:
                return f"{format_bytes(more)} would keep up"
            if forecast.highest_rate <= _HARDLY * rate:
                break
            rate, memory = forecast.highest_rate, more
        most = "more memory does not help" if memory == self._call.memory_bytes else (
            f"{rate:,.0f} is the most with any memory, from {format_bytes(memory)} on"
        )  # fmt: skip
        return f"{most}; spread the stream over more cores, or add fewer columns"

    def _runners_up(self) -> list[str]:
        found = []
        for ranking in self._rankings:
            other = ranking.runner_up
            if other is None:
                continue
            sent = ranking.chosen.plan.sent is not None  # what Spark takes beside the join is another then
            mine, theirs = (self._seconds(one, ranking.rows, whole=sent) for one in (ranking.chosen, other))
            of_table = f" for {ranking.chosen.plan.asked.table.name}" if len(self._rankings) > 1 else ""
            what = "a micro-batch" if sent else "the join"
            ratio = theirs / max(mine, 1e-12)
            close = ": too little to leave the usual join" if ratio < 1 else ""
            found.append(f"{other.plan.asked.strategy}{of_table}: {ratio:.2f}x the time of {what}{close}")
        return found

    def _seconds(self, join: JoinForecast, rows: float, *, whole: bool) -> float:
        """Of so many rows in each task: the join alone, or a whole micro-batch with this one table."""
        tasks = self._forecast.tasks
        return (
            BatchForecast((join,), tasks, join.calibration).seconds(rows * tasks.count) if whole else join.in_task(rows).seconds
        )

    @cached_property
    def changes(self) -> list[str]:
        """What other memory would change: the choice of the join, or the rate by a tenth."""
        found = []
        for factor in _OTHER_MEMORY:
            memory = int(self._call.memory_bytes * factor)
            try:
                plan, rankings = self._call.plan(memory)
            except BudgetError as small:
                found.append(f"with {format_bytes(memory)}: too little, {format_bytes(small.needed_bytes)} is the least")
                continue
            other = _forecast(self._call, tuple(one.chosen for one in rankings))
            strategy = ", ".join(join.asked.strategy for join in plan.joins)
            ratio = other.highest_rate / self.tuples_per_second
            if strategy != self.strategy or not 1 / _NOTABLE < ratio < _NOTABLE:
                found.append(f"with {format_bytes(memory)}: {strategy}, {ratio:.2f}x the rate")
        return found


def explain(
    stream: DataFrame,
    table: MasterTable | ParquetTable | Sequence[Lookup],
    on: On | None = None,
    how: str = "inner",
    *,
    columns: Sequence[str] | Mapping[str, str] | None = None,
    memory: int | str = "256m",
    strategy: str = "auto",
    read: str = "auto",
    partitions: int | None = None,
    ordered: bool = False,
    cache_share: float | Literal["auto"] = "auto",
    threshold: float | Literal["auto"] = "auto",
    name: str | None = None,
    hot_keys: int | None = None,
    skew: Any = None,
    arrivals_per_second: float | None = None,
    sample: int | DataFrame | None = None,
) -> Explanation:
    """What `enrich` would do with the same arguments, how fast, and whether it keeps up. Nothing runs.

    skew        how unevenly keys come: a Zipf exponent such as 1.0, or what `mr.hot_keys(query, limit=100)` returned for an
                earlier query. Default: all keys count as wanted alike
    arrivals_per_second  rows that arrive in a second: then the result says whether the call keeps up, and with which latency
    sample      look at the stream's keys instead: the number of rows to look at, such as 100_000 (a batch DataFrame only), or
                a batch DataFrame with the same key columns. Runs a Spark job

    All other arguments are those of `enrich`. `print` the result, or ask for `.strategy`, `.tuples_per_second`,
    `.seconds_per_batch(rows)`, `.pages_per_1000_rows`, `.memory_split`, `.keeps_up`, `.latency_seconds`, `.plan`.
    """
    call = Call.checked(
        stream, table, on, how, columns=columns, memory=memory, strategy=strategy, read=read, partitions=partitions,
        ordered=ordered, cache_share=cache_share, threshold=threshold, name=name, hot_keys=hot_keys, skew=skew,
        arrivals_per_second=arrivals_per_second,
    )  # fmt: skip
    use_this_python(stream.sparkSession)
    plan, rankings = call.plan()
    if sample is not None:
        if skew is not None:
            raise ParameterError("skew and sample both tell about the keys: give one of them")
        call = replace(call, skew=_sampled(stream, sample, plan))
        plan, rankings = call.plan()
    return Explanation(call, plan, rankings)


def _forecast(call: Call, joins: tuple[JoinForecast, ...]) -> BatchForecast:
    return BatchForecast(joins, call.hints().tasks, joins[0].calibration)


def _sampled(stream: Any, sample: Any, plan: Plan) -> Skew:
    """The skew of some rows of the stream: of the keys of the first table that has keys."""
    keys = next((join.asked.key_columns for join in plan.joins if join.asked.condition is None), None)
    if keys is None:
        raise ParameterError("a condition has no keys to sample: leave sample out")
    frame, most = stream, sample
    if isinstance(sample, bool) or not isinstance(sample, int):
        check_frame(sample, "sample")
        frame, most = sample, _MOST_SAMPLE
    if not 1 <= most <= _MOST_SAMPLE:
        raise ParameterError(f"sample must be a number of rows from 1 to {_MOST_SAMPLE:,}; got {sample!r}")
    if frame.isStreaming:
        raise ParameterError(
            "a stream can't be sampled before it runs: give sample= a batch DataFrame with the same key columns, or skew= what "
            "mr.hot_keys returned for an earlier query"
        )
    named = [named_column(frame, key).alias(f"k{place}") for place, key in enumerate(keys)]
    counts = frame.select(*named).limit(most).groupBy(*[f"k{place}" for place in range(len(keys))]).count()
    known = " AND ".join(f"k{place} IS NOT NULL" for place in range(len(keys)))
    row = counts.agg(
        F.coalesce(F.sum("count"), F.lit(0)).alias("rows"),
        F.slice(F.sort_array(F.collect_list(F.when(F.expr(known), F.col("count"))), asc=False), 1, _HEAD).alias("head"),
    ).first()
    rows = int(row["rows"]) if row is not None else 0
    if not rows:
        raise ParameterError("the sample has no rows")
    head = [count / rows for count in row["head"] if count >= _CERTAIN]
    if not head:
        alike = f"no key came {_CERTAIN} times in a sample of {rows:,} rows: all count as wanted alike"
        return replace(Skew.zipf(0), source=alike)
    return Skew.counted(head, f"{counted(len(head), 'hot key')} in a sample of {rows:,} rows")
