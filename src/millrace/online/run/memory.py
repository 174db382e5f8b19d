"""How a run divides its memory, and how much would do where it is too small.

M = reports beyond a constant + tables held + batches on their way to the join + moments of heavy keys + PR-Join
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError
from millrace.core.least_memory import fits, least_memory
from millrace.online.joins.prjoin import PRJoin
from millrace.online.pair_functions import Products
from millrace.online.protocol import A, B
from millrace.online.run.mixing import mix_in
from millrace.online.run.prepare import Prepared
from millrace.online.sampling.heavy_keys import HeavyKeys, most_keys
from millrace.online.sampling.samples import take_samples
from millrace.online.storage.memory_plan import Layout
from millrace.online.storage.sizing import Shape
from millrace.online.storage.spill import FileSpill

_WINDOW = 64  # a batch of rows takes that part of the memory, of either side
_STEPS = 128  # batches of a side, at least
_MOST_BATCH_ROWS = 1 << 16
_PARTITION_ROWS = 4096
_HISTORY_BYTES, _HISTORY_SHARE = 4 << 20, 32  # so many bytes of reports, beside the memory, or that part of it
_LOOKS = 4  # at samples, to find out how much memory is needed


@dataclass(frozen=True)
class Division:
    """What a run has beside its join, and what the join is told."""

    batch_rows: tuple[int, int]  # of the left and the right input
    heavy: Products | None  # functions whose moments are kept for heavy keys
    layout: Layout


def history_bytes(memory_bytes: int) -> int:
    """What reports may take."""
    return max(_HISTORY_BYTES, memory_bytes // _HISTORY_SHARE)


def divide(prepared: Prepared, budget: Budget) -> Division:
    """Set aside what a run takes beside its join."""
    budget.reserve("reports", history_bytes(budget.memory_bytes) - _HISTORY_BYTES)
    rows = (_divide_batches(prepared, A, budget), _divide_batches(prepared, B, budget))
    functions, codes = prepared.query.functions, prepared.heavy_codes
    heavy: Products | None = None
    if isinstance(functions, Products) and len(codes) and most_keys(functions, budget.memory_bytes):
        heavy = functions
        HeavyKeys.divide(codes, functions, budget)
    return Division(rows, heavy, _layout(prepared, budget))


def _divide_batches(prepared: Prepared, side: int, budget: Budget) -> int:
    """Set aside a table that is held, and batches on their way to the join: how many rows these have."""
    source, width, name = prepared.sources[side], prepared.query.sides[side].width, ("left", "right")[side]
    budget.reserve(f"{name} table", source.held_bytes)
    each = source.row_bytes(prepared.question.columns(side)) + 3 * 8 * width
    rows = max(64, min(_MOST_BATCH_ROWS, budget.memory_bytes // (_WINDOW * each), -(-source.rows // _STEPS)))
    budget.reserve(f"{name} batches", 2 * rows * each)
    return rows


def _layout(prepared: Prepared, budget: Budget) -> Layout:
    """Tables that fit into memory easily need few partitions: a join of one has its price."""
    needed = sum(8 * rows * side.width for rows, side in zip(prepared.rows, prepared.query.sides, strict=True))
    if needed > budget.memory_bytes // 4:
        return Layout()
    return Layout(partitions=max(8, min(256, sum(prepared.rows) // _PARTITION_ROWS)))


def divide_all(prepared: Prepared, memory_bytes: int) -> Budget:
    """A budget with all that a run takes, its join with it; an error if that is more than so many bytes."""
    budget = Budget(memory_bytes)
    division = divide(prepared, budget)
    a, b = prepared.query.sides
    shape = Shape(prepared.query.functions, (a.width, b.width), prepared.rows, FileSpill(prepared.options.spill).buffer_bytes)
    PRJoin.divide(shape, budget, layout=division.layout, threads=prepared.threads)
    return budget


def too_small(prepared: Prepared) -> BudgetError:
    """Says what would do. A sample in more memory may show more groups and longer texts, which need more."""
    given = needed = prepared.options.memory_bytes
    for _ in range(_LOOKS):
        needed = _least(prepared, needed)
        mix_in(prepared.question, prepared.sources, needed)
        prepared = prepared.with_samples(take_samples(prepared.sources, prepared.question, needed, prepared.options.seed))
        if _fits(prepared, needed):
            break
    return BudgetError(
        f"the memory budget of {format_bytes(given)} is too small for this estimate; give "
        f"memory={needed} ({format_bytes(needed)}) or more",
        needed,
    )


def _least(prepared: Prepared, too_little: int) -> int:
    return least_memory(lambda memory: _fits(prepared, memory), too_little)


def _fits(prepared: Prepared, memory_bytes: int) -> bool:
    return fits(lambda memory: divide_all(prepared, memory), memory_bytes)
