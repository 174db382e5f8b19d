"""`millrace tune --calibrate`: measures this machine and a table's disk, keeps what it found, and prints it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

from millrace.bench.interrupts import treat_sigterm_as_interrupt
from millrace.cli.session import local_session, require_spark
from millrace.core.calibration import Calibration, as_object, check_calibration_folder, load_calibration, save_calibration
from millrace.core.errors import TableError
from millrace.core.unitcosts import UnitCosts
from millrace.relations.paths import local_path
from millrace.tuning.calibrate import Effort, calibrate_machine
from millrace.tuning.calibrate_work import TERMS

_PER = {  # what a cost is the cost of, where its name does not say
    "seek": "seek",
    "read_byte": "byte",
    "found_byte": "byte",
    "request": "read",
    "front": "look-up",
    "whole_row": "row",
    "index_read": "block",
    "take": "tuple",
    "add": "tuple",
    "expire": "tuple",
    "output": "row",
    "batch": "micro-batch",
}
Row = tuple[str, float, str, float | None]  # cost, seconds, of what, spread


def run_calibrate(table: Path | None, *, spark: bool, as_json: bool, console: Console, effort: Effort | None = None) -> None:
    """Measure for about half a minute, and for as long again with `spark`. `effort`: less of it, to try the command."""
    place = (local_path(table) if table is not None else Path()).absolute()
    if not place.exists():
        raise TableError(f"there is no {place}; give a table, or a folder on the disk where tables will lie")
    if spark:
        require_spark()
    check_calibration_folder()  # before anything is measured
    treat_sigterm_as_interrupt()
    remarks: list[str] = []
    with Console(stderr=True).status("measuring ...") as status:
        found, remarks = calibrate_machine(place, say=status.update, effort=effort)
        if spark:
            found = found.with_parts(_of_spark(status.update))
        written = save_calibration(found, place)
    known = load_calibration(place)
    if as_json:
        kept = {"parts": as_object(known), "files": [str(path) for path in written], "note": known.note, "remarks": remarks}
        print(json.dumps(kept, indent=2))
        return
    _print(known, console)
    for remark in [*remarks, *([known.note] if known.note else [])]:
        console.print(f"note: {remark}", markup=False, highlight=False, soft_wrap=True)
    for path in written:
        console.print(f"kept in {path}", markup=False, highlight=False, soft_wrap=True)


def _of_spark(say: Callable[[str], None]) -> Calibration:
    say("starting Spark ...")
    with ExitStack() as stack:
        scratch = stack.enter_context(TemporaryDirectory(prefix="millrace-spark-", ignore_cleanup_errors=True))
        session = stack.enter_context(local_session(Path(scratch)))
        from millrace.spark.calibrate import calibrate_spark

        return calibrate_spark(session, say=say)


def _print(calibration: Calibration, console: Console) -> None:
    shown = Table(box=None, pad_edge=False)
    shown.add_column("cost", no_wrap=True)
    for heading in ("value", "spread"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for name, seconds, unit, spread in cost_rows(calibration):
        shown.add_row(name, f"{format_cost(seconds)}/{unit}", "" if spread is None else f"{spread:.0%}")
    console.print(shown, highlight=False)
    errors = [value for name, value in calibration.spread.items() if name.startswith("work.") and name.endswith(".work")]
    if errors:
        console.print(
            f"the measured work of joins is explained within {min(errors):.0%} to {max(errors):.0%}",
            markup=False,
            highlight=False,
        )
    for mode, costs in calibration.reads.items():
        if costs.together > 1:
            text = f"{mode} reads take {costs.together:.1f} times as long while all cores read: they share the disk"
            console.print(text, markup=False, highlight=False)
    for part, measured in calibration.measured.items():
        when = datetime.fromtimestamp(measured.at).astimezone().strftime("%Y-%m-%d %H:%M")
        where = f" of {measured.device}" if measured.device else ""
        console.print(f"{part}{where}: measured {when} on {measured.host}", markup=False, highlight=False)


def cost_rows(calibration: Calibration) -> Iterator[Row]:
    """Every cost that was measured. What a tuple takes on its way is one cost: its parts can't be told apart."""
    spread = calibration.spread
    for mode, costs in calibration.reads.items():
        for cost in ("seek", "read_byte", "request"):
            name = f"reads.{mode}.{cost}"
            yield name, getattr(costs, cost), _PER[cost], spread.get(name)
    if calibration.has("look_up"):
        look_up = calibration.look_up
        yield "look_up.call", look_up.call, "call", spread.get("look_up.call")
        for rows, seconds in look_up.row_by_rows or ((0.0, look_up.row),):
            of = f" ({rows:,.0f} rows)" if rows else ""
            yield f"look_up.row{of}", seconds, "row", spread.get("look_up.row")
        yield "look_up.found_byte", look_up.found_byte, "byte", spread.get("look_up.found_byte")
    for join, work in calibration.work.items():
        yield from _work_rows(join, work, calibration)
    if calibration.has("spark"):
        for field in fields(calibration.spark):
            name = f"spark.{field.name}"
            yield name, getattr(calibration.spark, field.name), _PER.get(field.name, field.name), spread.get(name)


def _work_rows(join: str, work: UnitCosts, calibration: Calibration) -> Iterator[Row]:
    yield f"work.{join}.tuple", work.take + work.add + work.expire, "tuple", calibration.spread.get(f"work.{join}.take")
    for term in TERMS[TERMS.index("output") :]:
        value = getattr(work, term)
        if value is not None:
            yield f"work.{join}.{term}", value, _PER.get(term, term), calibration.spread.get(f"work.{join}.{term}")


def format_cost(seconds: float) -> str:
    """A small time with its unit.

    >>> format_cost(0.0123), format_cost(4.2e-5), format_cost(3.1e-8), format_cost(2.5e-11), format_cost(0)
    ('12.3 ms', '42.0 us', '31.0 ns', '0.025 ns', '0')
    """
    if seconds == 0:
        return "0"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    nanoseconds = seconds * 1e9
    return f"{nanoseconds:.1f} ns" if nanoseconds >= 1 else f"{nanoseconds:.3f} ns"
