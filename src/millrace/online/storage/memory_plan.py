"""How a partitioned join divides its memory: pages, one table to join a partition in, and buffers for the temporary file.

    M = pages (2S for each of P partitions) + table for a partition of the smaller input + buffers (in proportion to S)

Many partitions make short joins and smooth reports, large extents S make good transfers; P and S are chosen together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millrace.core.budget import Budget, format_bytes
from millrace.core.errors import BudgetError, ParameterError
from millrace.online.storage.pages import Pages
from millrace.online.storage.rectangles import rectangle_bytes, rectangle_rows
from millrace.online.storage.sizing import Shape

PAGE_BYTES = 4096
_GOOD_EXTENT = 256 << 10
_LEAST_EXTENT = 48
_TRANSFER = 2048
_MOST_PARTITIONS = 512
_SPARE = 1.25  # partitions are not all alike
_CANDIDATES = tuple(sorted({round(2 ** (k / 4)) for k in range(4, 4 * 13)}))


@dataclass(frozen=True)
class Plan:
    partitions: int
    page_words: int
    extent_pages: int
    pool_pages: int
    table_rows: int
    batch_rows: int
    buckets: int

    @property
    def extent_bytes(self) -> int:
        return self.extent_pages * self.page_words * 8


@dataclass(frozen=True)
class Layout:
    """What a user may fix; the rest is chosen."""

    partitions: int | None = None
    extent_bytes: int | None = None
    page_bytes: int = PAGE_BYTES

    def __post_init__(self) -> None:
        for name in ("partitions", "extent_bytes", "page_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ParameterError(f"{name} must be 1 or more; got {value}")


def make_plan(
    shape: Shape, budget: Budget, layout: Layout, *, tables: int = 1, per_row: int = 0, extents: int = 0, later: int = 0
) -> Plan:
    """`tables`: how many partitions are joined at a time. `per_row`: what the caller keeps beside each row of a table.
    `extents`: how many it holds itself. `later`: bytes that are in use now and will be free before tables are needed. Room is
    left for a `Pieces` of the partitions.

    Of all numbers of partitions whose tables fit, the one with the largest extents up to a good size, and of those the most. If
    the tables of none fit, partitions are joined in parts, each of which reads the partition again.
    """
    functions, widths, rows = shape.functions, shape.widths, shape.rows
    batch_rows = max(16, min(1 << 17, budget.free_bytes // 64 // (8 * max(widths))))
    free = budget.free_bytes - shape.batches_bytes(batch_rows)
    smaller = max(1, min(rows))
    in_parts = rectangle_rows(functions, widths, max(free // 3, later) // tables, per_row=per_row)
    best: tuple[float, int, Plan] | None = None
    for partitions in (layout.partitions,) if layout.partitions else _CANDIDATES:
        if partitions > _MOST_PARTITIONS and best is not None and best[0] >= _LEAST_EXTENT:
            break
        whole = int(smaller / partitions * _SPARE) + 32
        for table_rows in (whole, in_parts):
            tables_bytes = tables * (rectangle_bytes(functions, widths, table_rows) + per_row * table_rows)
            left = free - max(0, tables_bytes - later)
            plan = _with(shape, left, partitions, table_rows, layout, batch_rows, tables + extents)
            if plan is not None:
                extent = plan.extent_bytes
                score = min(extent, _GOOD_EXTENT) if extent >= _LEAST_EXTENT else 1e-6 * extent
                if table_rows < whole:  # all of it is read that many times, and each transfer costs as much as so many bytes
                    score = 1e-6 / (whole / table_rows * (1 + _TRANSFER / extent))
                if best is None or (score, partitions) >= best[:2]:
                    best = (score, partitions, plan)
                break
    if best is None:
        guess = max(2 * budget.memory_bytes, 1 << 16)  # the join that asked finds out (`sizing.divided`)
        raise BudgetError(
            f"the memory budget of {format_bytes(budget.memory_bytes)} is too small to join {rows[0]:,} with {rows[1]:,} rows; "
            f"try memory={guess}",
            guess,
        )
    return best[2]


def _with(
    shape: Shape, free: int, partitions: int, table_rows: int, layout: Layout, batch_rows: int, extents: int
) -> Plan | None:
    """`free`: beside the tables. `extents` are held beside the pages."""
    buckets = 1 << int(np.ceil(np.log2(16 * partitions)))
    left = free - buckets * 12 - partitions * (200 + shape.piece_bytes)
    least_page = 8 * shape.widest
    extent = layout.extent_bytes or min(4 * _GOOD_EXTENT, left // (2 * partitions + 1))
    while extent >= least_page and table_rows >= 8:
        page = max(1, min(layout.page_bytes, extent if layout.extent_bytes else extent // 4) // least_page) * least_page
        pages = max(1, extent // page)
        pool = (left - extents * pages * page - shape.buffer_bytes(pages * page)) // (page + Pages.bytes_per_page)
        if pool >= 2 * partitions * (pages + 1) + 2:
            return Plan(partitions, page // 8, pages, pool, table_rows, batch_rows, buckets)
        if layout.extent_bytes is not None:
            return None
        extent = int(extent * 0.9)
    return None


def divide_partitions(
    shape: Shape, budget: Budget, layout: Layout | None, *, threads: int = 1, per_row: int = 0, extents: int = 0, later: int = 0
) -> Plan:
    """Set aside what `Partitions` take, with a table for each of `threads`. The rest: as for `make_plan`."""
    plan = make_plan(shape, budget, layout or Layout(), tables=threads, per_row=per_row, extents=extents, later=later)
    budget.reserve("spill buffers", shape.buffer_bytes(plan.extent_bytes))
    budget.reserve("input batches", shape.batches_bytes(plan.batch_rows))
    for i in range(threads):
        if not later:
            budget.reserve_all(shape.table_sizes(plan.table_rows, f"join {i}"))
        budget.reserve(f"gathered rows {i}", plan.extent_bytes)
    budget.reserve_all({"bucket map": 4 * plan.buckets, "bucket counts": 8 * plan.buckets})
    budget.reserve_all(Pages.sizes(plan.partitions, plan.page_words, plan.pool_pages))
    return plan


def divide_with_pieces(shape: Shape, budget: Budget, layout: Layout | None, *, threads: int = 1) -> Plan:
    """Set aside what partitions and their pieces take: all that GRACE and PR-Join have."""
    plan = divide_partitions(shape, budget, layout, threads=threads)
    budget.reserve("sums", plan.partitions * shape.piece_bytes)
    return plan
