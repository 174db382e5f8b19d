"""What joins take of the processor: every join of the catalogue is run at several settings, and its counts are fitted to its
time.

    work = tuples_in x (take + add) + removed x expire + matches x output + probes x probe
           + front_lookups x front + pages_read x page + steps x step

Settings differ in memory, in how unevenly keys come, in the size of pages, and in how many keys the table has. Reads are taken
off, see `tuning.timed`. What comes with every tuple (take, add, expire) can't be told apart: the sum is measured. The output of
a row is measured with rows of 44 bytes; wider rows take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from millrace.catalog import ALGORITHMS, Algorithm, make_join
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError
from millrace.core.host import Host
from millrace.core.protocols import JoinSpec
from millrace.core.step import StepCounts
from millrace.core.unitcosts import UnitCosts
from millrace.relations.generated import KEY
from millrace.relations.stored import StoredRelation
from millrace.streams import ZipfKeys
from millrace.tuning.fitting import Fitted, fit
from millrace.tuning.scratch_tables import COLUMNS
from millrace.tuning.timed import Clocked, TimedRelation, WallClock

TERMS = ("take", "add", "expire", "output", "probe", "front", "page", "step")
_GUESS = np.array([1e-8, 2e-8, 1e-8, 4e-8, 2e-8, 2e-8, 1e-6, 1e-4])
_BATCH_ROWS = 16_384
_DRAWN = 1 << 18  # keys of a stream, which then begins anew
_MOST_WARMING = 4.0  # times the time of measuring


@dataclass(frozen=True)
class Setting:
    """How a join is run. `table`: which of the tables. `as_on_spark`: with the parameters of a host that drains the join."""

    memory_bytes: int
    exponent: float
    absent: float
    table: int
    as_on_spark: bool = True


SETTINGS = (
    Setting(8 << 20, 0.0, 0.0, 0),
    Setting(8 << 20, 1.0, 0.0, 0),
    Setting(32 << 20, 0.0, 0.0, 0),
    Setting(32 << 20, 1.0, 0.0, 0),
    Setting(16 << 20, 0.5, 0.5, 0),
    Setting(4 << 20, 0.5, 0.0, 1),
    Setting(16 << 20, 0.5, 0.3, 1),
    Setting(8 << 20, 0.7, 0.0, 0, as_on_spark=False),
)


@dataclass(frozen=True)
class Observation:
    """What a join did, in how many steps, and what it took of the processor beside reading."""

    counts: StepCounts
    steps: int
    seconds: float


def calibrate_work(
    tables: Sequence[StoredRelation], *, seconds: float = 12.0, page_seconds: float = 0.0,
    algorithms: Sequence[Algorithm] = ALGORITHMS, say: Callable[[str], None] = lambda _: None,
) -> tuple[dict[str, UnitCosts], dict[str, float]]:  # fmt: skip
    """Costs by join, and their spread. `tables`: two with the same keys and different pages. `page_seconds`: what the relation
    does with each page read, which counts as work."""
    costs: dict[str, UnitCosts] = {}
    spread: dict[str, float] = {}
    each = seconds / (len(algorithms) * len(SETTINGS))
    for number, row in enumerate(algorithms):
        say(f"measuring the work of {row.name}, join {number + 1} of {len(algorithms)}")
        seen = [one for setting in SETTINGS if (one := observe(row, tables, setting, each)) is not None]
        if len(seen) < 2:
            continue
        found = fit_work(seen)
        costs[row.name] = costs_of(seen, found, page_seconds)
        spread |= {f"{row.name}.{term}": value for term, value in zip(TERMS, found.spread.tolist(), strict=True) if value > 0}
        spread[f"{row.name}.work"] = found.error
    return costs, spread


def fit_work(seen: Sequence[Observation]) -> Fitted:
    """The costs that explain best what was seen. In the order of `TERMS`."""
    counts = np.array([_terms(one.counts, one.steps) for one in seen], np.float64)
    return fit(counts, np.array([one.seconds for one in seen]), _GUESS)


def _terms(counts: StepCounts, steps: int) -> list[float]:
    came = counts.tuples_in
    return [came, came, counts.removed, counts.matches, counts.probes, counts.front_lookups, counts.pages_read, steps]


def costs_of(seen: Sequence[Observation], found: Fitted, page_seconds: float = 0.0) -> UnitCosts:
    """What was fitted, as unit costs. Without look-ups in front they count as probes."""
    values: dict[str, Any] = dict(zip(TERMS, found.costs.tolist(), strict=True))
    values["page"] += page_seconds
    if not any(one.counts.front_lookups for one in seen):
        values["front"] = None
    return UnitCosts(**values)


def observe(row: Algorithm, tables: Sequence[StoredRelation], setting: Setting, seconds: float) -> Observation | None:
    """One join at one setting, once its window is full. None: it needs more memory."""
    relation = TimedRelation(tables[setting.table])
    batches = _stream(relation.rows, setting.exponent, setting.absent)
    spec = JoinSpec(batches[0].schema, ((KEY, KEY),), "inner", (), COLUMNS)
    given = row.parameters(costs=UnitCosts()) if setting.as_on_spark else {}
    clock = WallClock(relation)
    try:
        join = make_join(row.name, relation, spec, Budget(setting.memory_bytes), **given)
    except BudgetError:
        return None
    host = Host(Clocked(join, clock))
    feeding = _fed(host, batches)
    began = clock.now
    while (clock.now - began < seconds / 3 or not host.ledger.totals.removed) and clock.now - began < _MOST_WARMING * seconds:
        next(feeding)
    before, steps, cpu, start = host.ledger.totals, host.ledger.steps, clock.cpu, clock.now
    while clock.now - start < seconds * 2 / 3 or host.ledger.totals.removed == before.removed:
        next(feeding)
    counts = _difference(host.ledger.totals, before)
    return Observation(counts, host.ledger.steps - steps, max(clock.cpu - cpu, 1e-9))


def _fed(host: Host, batches: Sequence[pa.RecordBatch]) -> Iterator[None]:
    """The stream, for ever; comes back after each step and each batch."""
    while True:
        for batch in batches:
            for _ in host.feed(batch):
                yield
            yield


@lru_cache(maxsize=8)
def _stream(rows: int, exponent: float, absent: float) -> list[pa.RecordBatch]:
    """Batches of keys of a table with the keys 1 to `rows`; a share of them the table does not have."""
    keys = ZipfKeys(rows, exponent, scatter=True, seed=1).draw(_DRAWN)
    missing = np.random.default_rng(1).random(len(keys))
    keys = np.where(missing < absent, keys + rows, keys)
    return [pa.record_batch({KEY: keys[at : at + _BATCH_ROWS]}) for at in range(0, len(keys), _BATCH_ROWS)]


def _difference(later: StepCounts, earlier: StepCounts) -> StepCounts:
    before = earlier.as_dict()
    return StepCounts(**{name: value - before[name] for name, value in later.as_dict().items()})
