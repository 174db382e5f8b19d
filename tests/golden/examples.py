"""The ten-row example that every algorithm is traced on, and how a trace is written."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.properties.trace import Moment, traced

from millrace.catalog import make_join
from millrace.checks.samples import cut
from millrace.core.protocols import JoinSpec
from millrace.core.unitcosts import UnitCosts
from millrace.relations.memory import MemoryRelation

FOLDER = Path(__file__).parent
KEYS = (10, 20, 30, 30, 40, 50, 60, 70, 80, 90)  # two rows a page: 10 20 | 30 30 | 40 50 | 60 70 | 80 90
STREAM = (90, 10, 30, 90, None, 35, 70, 30, 99, 20)
BATCHES = (3, 1, 0, 4)  # sizes in turn; 0 is a pause

# One row per algorithm: the parameters of its example.
PARAMETERS: dict[str, dict[str, Any]] = {
    "inlj": {"tuples_per_step": 2},
    "meshjoin": {"buffer_pages": 2, "tuples_per_step": 3},
    "rmeshjoin": {"buffer_pages": 2},
    "hybridjoin": {"buffer_pages": 1},
    "xhybridjoin": {"buffer_pages": 1, "pinned_pages": 2},
    "sweepjoin": {"buffer_pages": 2, "costs": UnitCosts(seek=0.0)},
    "cinlj": {"tuples_per_step": 2, "threshold": 1},
    "cmeshjoin": {"buffer_pages": 2, "tuples_per_step": 3, "threshold": 1},
    "chybridjoin": {"buffer_pages": 1, "threshold": 1},
    "csweepjoin": {"buffer_pages": 2, "threshold": 1, "costs": UnitCosts(seek=0.0)},
    "ssij": {"buffer_pages": 1, "cache_share": 0.0, "pending_tuples": 2, "waiting_tuples": 3},
    "partitionjoin": {"buffer_pages": 2, "cache_share": 0.0, "worth_tuples": 2, "age_limit": 4},
}


def trace(algorithm: str) -> str:
    """The trace of the algorithm as text."""
    relation = MemoryRelation(pa.table({"id": KEYS, "row": [f"r{i}" for i in range(len(KEYS))]}), "id", rows_per_page=2)
    stream = pa.table({"key": pa.array(STREAM, pa.int64())})
    spec = JoinSpec(stream.schema, (("key", "id"),), "left", ("key",), ("row",))
    make = partial(make_join, algorithm, **PARAMETERS[algorithm])
    moments = traced(make, relation, spec, cut(stream, BATCHES), memory=1 << 20)
    return "".join(line.rstrip() + "\n" for line in [*_header(algorithm, relation), *map(_line, moments)])


def _header(algorithm: str, relation: MemoryRelation) -> list[str]:
    pages = [relation.read(page, 1).codes.tolist() for page in range(relation.pages)]
    relation.reads.clear()
    return [
        f"# {algorithm}: a left join of ten stream tuples with ten rows on five pages, step by step.",
        "# Written by `python -m tests.golden.update`; read the difference before you commit it.",
        "#",
        f"# pages      {' | '.join(f'{number}: {keys}' for number, keys in enumerate(pages))}",
        f"# stream     {', '.join(f'{number}: {key}' for number, key in enumerate(STREAM))}",
        f"# batches    {', '.join(map(str, BATCHES))} in turn, one step after each; 0 is a pause",
        f"# parameters {', '.join(map(_parameter, PARAMETERS[algorithm].items()))}",
        "# output     tuple:key>row, or tuple:key>- where nothing matched",
        "",
        "step  pages read  in  matches  removed  pending  output",
    ]


def _parameter(item: tuple[str, Any]) -> str:
    name, value = item
    return f"a seek costs {value.seek} s" if isinstance(value, UnitCosts) else f"{name}={value}"


def _line(moment: Moment) -> str:
    counts, output = moment.step.counts, moment.step.output
    pages = ",".join(map(str, moment.pages)) or "-"
    rows = [
        f"{number}:{row['key']}>{row['row'] or '-'}"
        for number, row in zip(moment.step.sequence.tolist(), output.to_pylist(), strict=True)
    ]
    return (
        f"{moment.number:4}  {pages:<10}  {counts.tuples_in:2}  {counts.matches:7}  {counts.removed:7}  "
        f"{moment.pending:7}  {' '.join(rows)}"
    )
