"""Tables whose rows lie in some order inside row groups are read in random order inside them, if that fits into memory."""

from __future__ import annotations

from millrace.online.question.query import Question
from millrace.online.run.options import Options
from millrace.online.sampling.rank_tests import columns_in_order
from millrace.online.tables.row_groups import ParquetSource
from millrace.online.tables.sources import Source

_MIXING = 10  # rows of a row group are put into random order in that part of the memory, of either side
_TOO_LARGE = (
    "rows of {table} are in some order inside their row groups ({names}), and these are too large to be mixed, so there is no "
    "interval until the end. Give memory={needed} or more, or write the table in smaller row groups or in random order"
)


def mixed(question: Question, sources: tuple[Source, Source], options: Options) -> str | None:
    """Mix what needs it. If a table can't be mixed: why."""
    for side, source in enumerate(sources):
        if options.order == "random" or not isinstance(source, ParquetSource) or not source.rows:
            continue
        columns = question.columns(side)
        ordered = [columns_in_order(part, neighbours=True) for part in source.inside(columns, options.seed)]
        if (any(ordered) or options.order == "blocks") and not source.mix(columns, options.memory_bytes // _MIXING):
            needed = _MIXING * source.mixing_bytes(columns)
            return _TOO_LARGE.format(table=source.folder, names=", ".join(sorted(set().union(*ordered))), needed=needed)
        source.random = source.blocks == 1
    return None


def mix_in(question: Question, sources: tuple[Source, Source], memory_bytes: int) -> None:
    """Tables that are mixed: as they would be in another memory."""
    for side, source in enumerate(sources):
        if isinstance(source, ParquetSource) and source.mixed:
            source.mix(question.columns(side), memory_bytes // _MIXING)
