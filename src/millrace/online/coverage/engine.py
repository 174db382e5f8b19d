"""Do the intervals of PR-Join itself hold? The real join, on reshuffled tables, in a memory that makes it spill.

`coverage` models which rows a report rests on; here the join says so itself: partitions, pages, the temporary file, the third
phase. An estimate is made at every report. Reports are put into classes, by the share of the input that had been read, and in
the third phase by the share of the partitions that were done.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.budget import Budget
from millrace.core.errors import ParameterError
from millrace.online.coverage.populations import Population
from millrace.online.joins.invocation import Expanding
from millrace.online.joins.prjoin import PRJoin
from millrace.online.pair_functions import Factor, Products
from millrace.online.protocol import A, B, Progress, run
from millrace.online.sampling.heavy_keys import HeavyKeys, heaviest, in_turn
from millrace.online.statistics.aggregates import aggregate, functions_needed
from millrace.online.statistics.answers import totals_of
from millrace.online.statistics.estimators import exactly
from millrace.online.statistics.intervals import IntervalRule, intervals
from millrace.online.storage.inputs import ArrayInput
from millrace.online.storage.memory_plan import Layout
from millrace.online.storage.spill import FileSpill

READ_UP_TO = (0.05, 0.1, 0.2, 0.4, 0.7, 1.0)
DONE_UP_TO = (0.25, 0.5, 0.75, 1.0)
CLASSES = tuple(f"to {share:.0%} read" for share in READ_UP_TO) + tuple(f"to {share:.0%} done" for share in DONE_UP_TO)
PARTITIONS = 16
_FIRST = 1 / 4  # of the memory, when the first report comes
_COMMON = 0.9  # of the runs have a report at a moment; then its own coverage counts


@dataclass(frozen=True)
class Class:
    """Reports of one class, over all reshuffles."""

    what: str
    reports: float  # in a run, mean
    matches: float  # mean
    coverage: float  # share of intervals that hold the answer
    bias: float  # relative, signed
    bias_error: float  # its standard error, over runs
    variance_ratio: float  # mean V^ over the mean square of the error
    half_width: float  # mean, relative to the answer


@dataclass(frozen=True)
class EngineCoverage:
    population: str
    aggregate: str
    threads: int
    reshuffles: int
    spilled: float  # bytes written to the temporary file over bytes of the records, mean
    rows: tuple[Class, ...]
    moments: int  # at which nearly every run has a report
    lowest: float  # coverage of the moment at which it is lowest; NaN: there are none
    together: float  # share of runs of which all intervals hold


@dataclass
class _Seen:
    """Of one report."""

    kind: int
    moment: tuple[int, int]  # rows read, partitions done
    value: float
    variance: float
    low: float
    high: float
    pairs: int


def measure_engine(
    population: Population, *, name: str = "SUM", rule: IntervalRule | None = None, reshuffles: int = 500,
    memory_bytes: int = 1 << 16, threads: int = 1, stop: bool = False, wide: bool = False, seed: int = 0,
) -> EngineCoverage:  # fmt: skip
    """Reshuffle, join, and look at every report. `wide`: with the moments of heavy keys, as `mr.estimate` has them."""
    if reshuffles < 2:
        raise ParameterError(f"give at least two reshuffles; got {reshuffles}")
    population = population.first_functions(functions_needed(name))
    rule = replace(rule or IntervalRule(), positive=population.positive)
    answer = population.answer()
    truth = float(aggregate(name, exactly(answer)).value[0])
    (records_a, left), (records_b, right) = (
        _records(keys, values) for keys, values in ((population.keys_a, population.u), (population.keys_b, population.v))
    )
    words = (records_a, records_b)
    random = np.random.default_rng(seed)
    runs: list[list[_Seen]] = []
    spilled = 0.0
    for _ in range(reshuffles):
        a, b = (ArrayInput(side[random.permutation(len(side))]) for side in words)
        budget = Budget(memory_bytes)
        functions = Products(left, right)
        heavy = HeavyKeys(_heaviest(words, functions), functions, budget) if wide else None
        one, other = (a, b) if heavy is None else (heavy.watched(A, a), heavy.watched(B, b))
        join = PRJoin(
            one, other, functions, budget, FileSpill(), seed=int(random.integers(1 << 30)), threads=threads,
            invocation=Expanding(stop=stop, first_share=_FIRST), layout=Layout(partitions=PARTITIONS),
        )  # fmt: skip
        runs.append([_look(progress, population, name, rule, heavy, join) for progress in _reported(join)])
        spilled += join.counters.temp_written_bytes / sum(side.nbytes for side in words) / reshuffles
    return _summary(population.name, name, threads, spilled, runs, truth)


def _records(keys: Int64Array, values: FloatArray) -> tuple[Int64Array, tuple[Factor, ...]]:
    """Records, and which of their words make each function; a function that is always 1 needs none."""
    columns = [keys.astype(np.int64)]
    factors: list[Factor] = []
    for value in values.T:
        constant = bool((value == 1.0).all())
        factors.append(() if constant else (len(columns),))
        if not constant:
            columns.append(np.ascontiguousarray(value).view(np.int64))
    return np.stack(columns, axis=1), tuple(factors)


def _heaviest(words: tuple[Int64Array, Int64Array], functions: Products) -> Int64Array:
    return in_turn([heaviest(*each) for each in zip(words, (functions.left, functions.right), strict=True)])


def _reported(join: PRJoin) -> Iterator[Progress]:
    return (progress for progress in run(join) if progress.reported and not progress.done)


def _look(
    progress: Progress, population: Population, name: str, rule: IntervalRule, heavy: HeavyKeys | None, join: PRJoin
) -> _Seen:
    pieces = progress.pieces.snapshot()
    done = int(pieces.exact.sum())
    ended = progress.input_ended and done > 0
    totals = totals_of(pieces, population.of_a, population.of_b, input_ended=ended)
    assert totals is not None
    if heavy is not None:
        heavy.joined(pieces.rows_a, pieces.rows_b, join.partition_of)
        one_group = np.zeros(1, np.int64)
        pieces, _ = heavy.applied(pieces, one_group, population.of_a, population.of_b, ended=ended)
        wide = totals_of(pieces, population.of_a, population.of_b, input_ended=ended)
        assert wide is not None
        totals = replace(wide, parts=totals.parts)
    point = aggregate(name, totals)
    made = intervals(point, rule)
    read = progress.counters.rows_a + progress.counters.rows_b
    if ended:
        kind = len(READ_UP_TO) + int(np.searchsorted(DONE_UP_TO, done / len(pieces.exact)))
    else:
        kind = int(np.searchsorted(READ_UP_TO, read / (population.of_a + population.of_b)))
    return _Seen(
        kind, (read, done), float(point.value[0]), float(point.variance[0]), float(made.low[0]), float(made.high[0]),
        int(totals.pairs[0]),
    )  # fmt: skip


def _summary(population: str, name: str, threads: int, spilled: float, runs: list[list[_Seen]], truth: float) -> EngineCoverage:
    held: dict[tuple[int, int], list[bool]] = defaultdict(list)
    for reports in runs:
        for report in reports:
            if math.isfinite(report.high):
                held[report.moment].append(report.low <= truth <= report.high)
    common = [np.mean(each) for each in held.values() if len(each) >= _COMMON * len(runs)]
    together = [all(r.low <= truth <= r.high for r in reports if math.isfinite(r.high)) for reports in runs]
    classes = [_class(kind, runs, truth) for kind in range(len(CLASSES))]
    return EngineCoverage(
        population, name, threads, len(runs), spilled, tuple(each for each in classes if each is not None),
        len(common), float(min(common)) if common else math.nan, float(np.mean(together)),
    )  # fmt: skip


def _class(kind: int, runs: list[list[_Seen]], truth: float) -> Class | None:
    """Each run counts once: the mean over its reports of this class."""
    chosen = [[report for report in reports if report.kind == kind] for reports in runs]
    made = [[report for report in reports if math.isfinite(report.high)] for reports in chosen]
    off = np.array([np.mean([report.value / truth - 1 for report in reports]) for reports in made if reports])
    if len(off) < 2:
        return None
    every = [report for reports in made for report in reports]
    return Class(
        CLASSES[kind],
        float(np.mean([len(reports) for reports in chosen])),
        float(np.mean([report.pairs for report in every])),
        float(np.mean([np.mean([r.low <= truth <= r.high for r in reports]) for reports in made if reports])),
        float(off.mean()),
        float(off.std(ddof=1) / math.sqrt(len(off))),
        float(np.mean([report.variance for report in every]) / np.mean([(report.value - truth) ** 2 for report in every])),
        float(np.mean([report.high - report.low for report in every]) / 2 / abs(truth)),
    )
