"""`millrace tune`: the best settings of every join for a table, a budget and a stream. Needs no Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
from rich.console import Console

from millrace.catalog import ALGORITHMS, algorithm
from millrace.cli.tune_view import print_page_sizes, print_tuning
from millrace.core.budget import parse_bytes
from millrace.core.calibration import load_calibration
from millrace.core.devices import device
from millrace.core.errors import BudgetError, ParameterError, RateError, StrategyError, TableError
from millrace.core.protocols import JoinSpec, Relation
from millrace.core.unitcosts import UnitCosts
from millrace.cost.expected import StreamShape
from millrace.cost.pages import Order
from millrace.joins.reading import has_index
from millrace.joins.sizing import costs_with_calls
from millrace.relations.files import READ_MODES, ReadMode
from millrace.relations.folder import now_us, read_versions, table_exists, version_at
from millrace.relations.parquet import ParquetRelation
from millrace.relations.parquet_files import list_files
from millrace.relations.paths import local_path
from millrace.relations.stored import StoredRelation
from millrace.tuning.arrivals import checked_arrivals
from millrace.tuning.limits import what_limits
from millrace.tuning.page_size import PageSize, best_page, tune_page_bytes
from millrace.tuning.skew import Skew
from millrace.tuning.tuners import Enough, Tuned, least_memory_for, tune

REAL_DISK = "disk"
SIMULATED = ("hdd2008", "ssd", "object-store")


@dataclass(frozen=True)
class TuneOptions:
    """What the command was asked."""

    table: Path
    memory: str = "256m"
    arrivals: float | None = None
    zipf: float | None = None
    strategies: tuple[str, ...] = ()
    columns: str | None = None
    key: str | None = None
    device: str = REAL_DISK
    read: str = "direct"
    page_bytes: bool = False


@dataclass(frozen=True)
class Line:
    """What one join can do. `enough`: the least memory that keeps up, or why none does."""

    tuned: Tuned
    limited_by: str
    enough: Enough | RateError | None = None


@dataclass(frozen=True)
class Tuning:
    """What was found for a table: the joins that can serve, the fastest first, and why the others can't."""

    options: TuneOptions
    relation: Relation
    memory_bytes: int
    skew: Skew
    order: Order
    lines: tuple[Line, ...]
    refused: tuple[tuple[str, str], ...]
    pages: tuple[PageSize, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Line:
        return self.lines[0]

    @property
    def keeps_up(self) -> bool | None:
        """Whether the fastest join takes all that arrives; None if no arrival rate was given."""
        arrivals = self.options.arrivals
        return None if arrivals is None else self.best.tuned.chosen.tuples_per_second >= arrivals


def run_tune(options: TuneOptions, *, plot: Path | None, as_json: bool, console: Console) -> bool:
    """Print what every join can do; returns False if an arrival rate was given and no join keeps up."""
    if plot is not None:
        from millrace.cli.tune_chart import check_plotting

        check_plotting(plot)
    found = tune_table(options, Console(stderr=True))
    if plot is not None:
        from millrace.cli.tune_chart import draw_tuning

        draw_tuning([line.tuned for line in found.lines], plot, found.options.table.name)
    if as_json:
        print(json.dumps(as_object(found), indent=2))
    else:
        print_tuning(found, console)
        if found.pages:
            print_page_sizes(found, console)
        if plot is not None:
            console.print(f"chart: {plot}", markup=False, highlight=False, soft_wrap=True)
    return found.keeps_up is not False


def tune_table(options: TuneOptions, progress: Console) -> Tuning:
    """Ask every join."""
    memory_bytes = parse_bytes(options.memory)
    skew = Skew.unknown() if options.zipf is None else Skew.zipf(options.zipf)
    if options.arrivals is not None:
        checked_arrivals(options.arrivals, name="--arrivals", none_arrive=False)
    names = [algorithm(name).name for name in options.strategies] or [row.name for row in ALGORITHMS]
    costs = _Costs(options)
    with _opened(options) as (relation, order), progress.status("looking at the table ...") as status:
        if not relation.rows:
            raise TableError(f"the table at {options.table} is empty: there is nothing to tune")
        spec, stream = _spec(relation, options.columns), skew.stream(relation.rows, order)
        lines, refused, needs = [], [], []
        for name in names:
            status.update(f"trying settings of {name} ...")
            try:
                lines.append(_line(name, relation, spec, memory_bytes, stream, costs.of(name), options.arrivals))
            except BudgetError as small:
                needs.append(small)
                refused.append((name, f"needs memory={small.needed_bytes}"))
            except StrategyError as unable:
                refused.append((name, str(unable)))
        if not lines:
            raise min(needs, key=lambda one: one.needed_bytes) if needs else StrategyError(refused[0][1])
        lines.sort(key=lambda line: -line.tuned.chosen.tuples_per_second)
        pages: tuple[PageSize, ...] = ()
        if options.page_bytes:
            first = lines[0].tuned.strategy
            status.update(f"trying sizes of pages for {first} ...")
            pages = tune_page_bytes(first, relation, spec, memory_bytes, stream, costs=costs.of(first))
        return Tuning(
            options, relation, memory_bytes, skew, order, tuple(lines), tuple(refused), pages, (*costs.notes, *_notes(relation))
        )


def _line(
    name: str, relation: Relation, spec: JoinSpec, memory_bytes: int, stream: StreamShape, costs: UnitCosts,
    arrivals: float | None,
) -> Line:  # fmt: skip
    if algorithm(name).needs_index and not has_index(relation):
        raise StrategyError("needs an index on the key: build a table of these files (millrace build)")
    tuned = tune(name, relation, spec, memory_bytes, stream, costs=costs)
    enough: Enough | RateError | None = None
    if arrivals is not None:
        try:
            enough = least_memory_for(name, relation, spec, arrivals, stream, costs=costs)
        except RateError as out_of_reach:
            enough = out_of_reach
        best = tuned.chosen
        if best.tuples_per_second >= arrivals and (isinstance(enough, RateError) or enough.memory_bytes > memory_bytes):
            enough = Enough(memory_bytes, best)  # the search leaves the sizes to the join, and the tuner knows better ones
    return Line(tuned, what_limits(tuned.chosen.expected.iteration, costs), enough)


class _Costs:
    """Unit costs of each join on the device, and what is to be said about them."""

    def __init__(self, options: TuneOptions) -> None:
        self.notes: tuple[str, ...] = ()
        self._calibration = None
        self._mode = options.read
        if options.read not in READ_MODES:
            raise ParameterError(f"--read must be one of {', '.join(READ_MODES)}; got {options.read!r}")
        if options.device == REAL_DISK:
            self._calibration = load_calibration(local_path(options.table))
            self.notes = (self._calibration.note,) if self._calibration.note else ()
        elif options.device not in SIMULATED:
            raise ParameterError(f"--device must be one of {', '.join((REAL_DISK, *SIMULATED))}; got {options.device!r}")
        else:
            model = device(options.device)
            self._simulated = UnitCosts(seek=model.seek, read_byte=1 / model.read_rate)

    def of(self, name: str) -> UnitCosts:
        found = self._simulated if self._calibration is None else self._calibration.costs(name, self._mode)
        return costs_with_calls(found)


@contextmanager
def _opened(options: TuneOptions) -> Iterator[tuple[Relation, Order]]:
    """The table, and where the rows lie that are wanted most. Only footers and indexes are read."""
    path = local_path(options.table)
    if table_exists(path):
        version = version_at(read_versions(path), now_us())
        # what direct reads would cost is known from a calibration; to look at a table no file need be opened like that
        mode: ReadMode = "buffered" if options.read == "direct" else cast(ReadMode, options.read)
        relation = StoredRelation(path, version, mode)
        try:
            yield cast(Relation, relation), "sorted" if version.layout == "frequency" else "scattered"
        finally:
            relation.close()
        return
    if not path.exists():
        raise TableError(f"there is no {path}; give a table, or Parquet files")
    if options.key is None:
        raise ParameterError(f"{path} holds no table; for Parquet files name the key: --key COLUMN")
    files = list_files(path)
    if not files:
        raise TableError(f"there are no Parquet files in {path}")
    schema = pq.read_schema(files[0].path)
    yield ParquetRelation(files, schema, _names(options.key)), "scattered"


def _spec(relation: Relation, columns: str | None) -> JoinSpec:
    """Keys come in and columns of the table go out, as in `mr.enrich`: all other columns of the stream stay in Spark."""
    stream_schema = relation.schema.empty_table().select(list(relation.key)).schema
    wanted = _names(columns) if columns is not None else [name for name in relation.schema.names if name not in relation.key]
    spec = JoinSpec(stream_schema, tuple((name, name) for name in relation.key), "inner", (), tuple(wanted))
    spec.check_against(relation)
    return spec


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _notes(relation: Relation) -> list[str]:
    if getattr(relation, "unique", True):
        return []
    return ["keys repeat in the table: rates are for keys with one row each"]


def as_object(found: Tuning) -> dict[str, Any]:
    """Plain values, ready for JSON."""
    relation = found.relation
    return {
        "table": {
            "path": str(found.options.table),
            "rows": relation.rows,
            "pages": relation.pages,
            "page_bytes": relation.page_bytes,
        },
        "device": found.options.device,
        "memory_bytes": found.memory_bytes,
        "skew": str(found.skew),
        "arrivals_per_second": found.options.arrivals,
        "keeps_up": found.keeps_up,
        "joins": [_line_object(line, found.options.arrivals) for line in found.lines],
        "refused": dict(found.refused),
        "page_sizes": [_page_object(one) for one in found.pages],
        "best_page_bytes": best_page(found.pages).page_bytes if found.pages else None,
        "notes": list(found.notes),
    }


def _line_object(line: Line, arrivals: float | None) -> dict[str, Any]:
    tuned, chosen = line.tuned, line.tuned.chosen
    plain: dict[str, Any] = {
        "strategy": tuned.strategy,
        "tuples_per_second": chosen.tuples_per_second,
        "set": dict(tuned.chosen_parameters),
        "settings": {size: float(value) for size, value in chosen.expected.settings.items()},
        "own_tuples_per_second": tuned.own.tuples_per_second,
        "own_is_best": tuned.own_is_best,
        "memory": {part: int(held) for part, held in chosen.expected.memory.items()},
        "window_tuples": int(chosen.expected.window_tuples),
        "answered_in_front": float(chosen.expected.answered),
        "pages_per_1000_tuples": float(chosen.pages_per_1000_tuples),
        "limited_by": line.limited_by,
        "curves": {name: [list(point) for point in curve] for name, curve in tuned.curves.items()},
    }
    if arrivals is not None:
        plain["keeps_up"] = chosen.tuples_per_second >= arrivals
        plain["headroom"] = chosen.tuples_per_second / arrivals
        if isinstance(line.enough, Enough):
            plain["least_memory_bytes"] = line.enough.memory_bytes
        elif line.enough is not None:
            plain["most_tuples_per_second"] = line.enough.tuples_per_second
    return plain


def _page_object(one: PageSize) -> dict[str, Any]:
    rate = None if one.forecast is None else one.forecast.tuples_per_second
    return {"page_bytes": one.page_bytes, "tuples_per_second": rate, "why_not": one.why_not or None}
