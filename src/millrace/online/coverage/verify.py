"""Do intervals hold on a user's own tables? Both are reshuffled many times, and estimated from each time (`coverage`)."""

from __future__ import annotations

import numpy as np

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.core.keys import mix
from millrace.online.coverage.coverage import Coverage, measure
from millrace.online.coverage.populations import Population
from millrace.online.pair_functions import Products
from millrace.online.protocol import A, B
from millrace.online.question.query import Output, Query
from millrace.online.question.recorder import Recorder
from millrace.online.statistics.aggregates import functions_needed
from millrace.online.statistics.intervals import IntervalRule
from millrace.online.tables.sources import Source

_BATCH_ROWS = 1 << 16


def verify_coverage(
    query: Query, sources: tuple[Source, Source], rule: IntervalRule, name: str | None, reshuffles: int, rows: int, seed: int
) -> Coverage:
    """Of one aggregate, over all groups together. Of tables with more than `rows` rows the rows of some keys are taken."""
    output = _output(query, name)
    functions = query.functions
    if not isinstance(functions, Products) or any(len(part) > 1 or any(w != 1.0 for _, w in part) for part in output.parts):
        raise ParameterError(
            f"{output.label!r} can't be verified: that needs an expression u(a) v(b) on keys that are numbers, dates or times"
        )
    if rows < 100:
        raise ParameterError(f"rows must be 100 or more; got {rows}")
    part = max(1, -(-(sources[A].rows + sources[B].rows) // rows))
    sides = [_rows_of(query, sources[side], side, output, part, seed) for side in (A, B)]
    (codes_a, u, dropped_a), (codes_b, v, dropped_b) = sides
    if not len(codes_a) + dropped_a or not len(codes_b) + dropped_b:
        raise ParameterError(f"{rows} rows leave nothing of one of the tables; give more rows to verify with")
    keys, numbers = np.unique(np.concatenate((codes_a, codes_b)), return_inverse=True)
    # rows that join nothing still count: they get keys of their own
    keys_a = np.concatenate((numbers[: len(codes_a)], np.full(dropped_a, len(keys))))
    keys_b = np.concatenate((numbers[len(codes_a) :], np.full(dropped_b, len(keys) + 1)))
    population = Population(output.label, keys_a, keys_b, _padded(u, dropped_a), _padded(v, dropped_b))
    return measure(population, "staggered", name=output.aggregate, rule=rule, reshuffles=reshuffles, seed=seed)


def _output(query: Query, name: str | None) -> Output:
    found = [output for output in query.outputs if name in (None, output.label)]
    if not found:
        raise ParameterError(f"there is no aggregate {name!r}; there are {', '.join(output.label for output in query.outputs)}")
    return found[0]


def _rows_of(
    query: Query, source: Source, number: int, output: Output, part: int, seed: int
) -> tuple[Int64Array, FloatArray, int]:
    """Codes and values of the rows whose key is in one of `part` parts, and how many rows of the part join nothing."""
    recorder, functions = Recorder(query.sides[number]), query.functions
    assert isinstance(functions, Products)
    factors = functions.left if number == A else functions.right
    codes: list[Int64Array] = []
    values: list[FloatArray] = []
    read = kept = 0
    for batch in source.batches(query.question.columns(number), _BATCH_ROWS, seed):
        words, _ = recorder.numbered(batch)
        read, kept = read + batch.num_rows, kept + len(words)
        chosen = words[mix(words[:, 0].copy()).view(np.uint64) % np.uint64(part) == 0]
        codes.append(chosen[:, 0])
        values.append(_values(chosen, factors, output))
    if not codes:
        return np.zeros(0, np.int64), np.zeros((0, functions_needed(output.aggregate))), 0
    return np.concatenate(codes), np.concatenate(values), (read - kept) // part


def _values(words: Int64Array, factors: tuple[tuple[int, ...], ...], output: Output) -> FloatArray:
    """1, v and v^2, as many as there are; what an aggregate does not use is 1."""
    found = np.ones((len(words), functions_needed(output.aggregate)))
    for place, functions in enumerate(output.parts):
        for function, _ in functions:
            for word in factors[function]:
                found[:, place] *= words[:, word].copy().view(np.float64)
    return found


def _padded(values: FloatArray, rows: int) -> FloatArray:
    return np.concatenate((values, np.zeros((rows, values.shape[1]))))
