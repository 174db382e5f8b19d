"""The engine that answers in this process: opens both tables, prepares, and begins a run.

sources --> Recorder --> BatchInput --> PR-Join --> pieces --> totals --> aggregates --> intervals --> Report
"""

from __future__ import annotations

import time

from millrace.online.protocol import A, B
from millrace.online.question.query import Question
from millrace.online.run.options import Asked, Options
from millrace.online.run.prepare import prepare
from millrace.online.run.run import Run
from millrace.online.storage.spill import FileSpill
from millrace.online.tables.sources import Source, loaded, open_source

_LOADED = 16  # a table that takes less than this part of the memory is read at once


def open_run(asked: Asked, options: Options) -> Run:
    """Begin a run; after an error all tables are closed."""
    FileSpill(options.spill)  # an error if there is no such folder
    started = time.monotonic()
    sources: list[Source] = []
    try:
        for given, which in ((asked.left, "left"), (asked.right, "right")):
            sources.append(open_source(given, which, options.spill))
        question = Question((sources[A], sources[B]), asked.on, asked.aggregations, asked.group_by, asked.where)
        for side in (A, B):
            sources[side] = loaded(sources[side], question.columns(side), options.memory_bytes // _LOADED)
        return Run(prepare(question, (sources[A], sources[B]), options), started)
    except BaseException:
        for source in sources:
            source.close()
        raise
