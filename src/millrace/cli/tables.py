"""`millrace build` and `millrace inspect`: table folders from the command line."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from millrace.cli.session import local_session, require_spark
from millrace.core.budget import format_bytes, parse_bytes
from millrace.core.errors import DamagedTableError, ParameterError, TableError
from millrace.core.wording import counted
from millrace.relations.build import check_counts
from millrace.relations.folder import TableVersion, left_out, now_us, read_versions, version_at
from millrace.relations.lakeformats import refuse_logged_tables
from millrace.relations.paths import local_path
from millrace.relations.stored import StoredRelation

_LARGE_BYTES = 256 << 20  # of Parquet: from here on it pays that the JVM compiles well
_RUN_PAGES = 64  # read at once while verifying


def build_from_parquet(
    source: Path,
    path: Path,
    key: Sequence[str],
    layout: str,
    page_bytes: str,
    shards: int | None,
    driver_memory: str,
    console: Console,
    counts: Path | None = None,
) -> None:
    """Build a table, or a new version of it, from Parquet files."""
    source, path, counts = local_path(source), local_path(path), None if counts is None else local_path(counts)
    size = parse_bytes(page_bytes)
    parse_bytes(driver_memory)
    if not key:
        raise ParameterError("--key must name at least one column, such as --key product_id")
    check_counts(layout, counts)
    for files in (source, counts) if counts is not None else (source,):
        if not files.exists():
            raise TableError(f"there is no {files}; give a Parquet file or a folder of them")
        refuse_logged_tables(files, by_spark=True)
    require_spark()
    from millrace.spark.master import MasterTable

    brief = _bytes(source) < _LARGE_BYTES
    with (
        TemporaryDirectory(prefix="millrace-spark-", ignore_cleanup_errors=True) as scratch,
        ExitStack() as session,
    ):
        with Console(stderr=True).status("starting Spark ..."):
            spark = session.enter_context(local_session(Path(scratch), driver_memory=driver_memory, brief=brief))
        data = spark.read.parquet(str(source.absolute()))
        wanted = spark.read.parquet(str(counts.absolute())) if counts is not None else None
        table = MasterTable.build(data, list(key), path, layout=layout, page_bytes=size, shards=shards, counts=wanted)
    built = table.versions[-1]
    console.print(
        f"built version {built.number} of {path}: {counted(built.rows, 'row')} on {counted(built.pages, 'page')}, "
        f"{format_bytes(built.bytes)}; {left_out(built.null_keys)}\n"
        f"next: millrace inspect {shlex.quote(str(path))}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _bytes(source: Path) -> int:
    return sum(path.stat().st_size for path in ([source] if source.is_file() else source.rglob("*")))


def inspect_table(path: Path, *, verify: bool, as_json: bool, console: Console) -> bool:
    """Print what is in a table folder; returns False when pages are damaged."""
    path = local_path(path)
    versions = read_versions(path, _build_by_command)
    current = version_at(versions, now_us())
    check = _verify_all(path, versions, Console(stderr=True)) if verify else None
    if as_json:
        print(json.dumps(_as_json(path, versions, current, check), indent=2))
    else:
        _show(path, versions, current, check, console)
    return check is None or not check.damage


def _build_by_command(path: str) -> str:
    return f"millrace build FILES.parquet {shlex.quote(path)} --key COLUMN"


@dataclass
class _Check:
    """What was found when every page was read."""

    pages: int
    damage: list[str]


def _verify_all(path: Path, versions: Sequence[TableVersion], console: Console) -> _Check:
    """Read every page of every version."""
    columns = (TextColumn("checking pages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    check = _Check(0, [])
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("pages", total=sum(version.pages for version in versions))

        def advance(pages: int) -> None:
            check.pages += pages
            bar.advance(task, pages)

        for version in versions:
            check.damage += verify_version(path, version, advance)
    return check


def verify_version(path: Path, version: TableVersion, advance: Callable[[int], object]) -> list[str]:
    """The damage of one version, as messages. `advance` is called with the number of pages checked."""
    try:
        relation = StoredRelation(path, version, "buffered")
    except TableError as broken:
        return [str(broken)]
    try:
        damage: list[str] = []
        for first in range(0, version.pages, _RUN_PAGES):
            count = min(_RUN_PAGES, version.pages - first)
            damage += _verify_run(relation, first, count)
            advance(count)
        return damage + (relation.disk_index.damage() if relation.disk_index is not None else [])
    finally:
        relation.close()


def _verify_run(relation: StoredRelation, first: int, count: int) -> list[str]:
    """Damaged pages of a run. A run with damage is read again page by page, so that every damaged page is named."""
    try:
        relation.read(first, count)
    except DamagedTableError as damaged:
        if count == 1:
            return [str(damaged)]
        return [message for page in range(first, first + count) for message in _verify_run(relation, page, 1)]
    return []


def _as_json(path: Path, versions: Sequence[TableVersion], current: TableVersion, check: _Check | None) -> dict[str, Any]:
    report: dict[str, Any] = {
        "path": str(path),
        "current_version": current.number,
        "versions": [_version_json(version) for version in versions],
    }
    if check is not None:
        report |= {"pages_checked": check.pages, "damage": check.damage}
    return report


def _version_json(version: TableVersion) -> dict[str, Any]:
    plain = version.as_dict()
    del plain["schema"], plain["stored_schema"]  # encoded; `columns` says the same for people
    return {**plain, "bytes": version.bytes, "unique": version.unique}


def _show(path: Path, versions: Sequence[TableVersion], current: TableVersion, check: _Check | None, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)

    say(f"table {path}", "bold")
    duplicates = "unique" if current.unique else "with duplicates"
    say(f"  key      {', '.join(current.key)} ({duplicates}), layout {current.layout}")
    say(f"  rows     {current.rows:,}; {left_out(current.null_keys)}")
    say(f"  pages    {_pages(current)}")
    say(f"  on disk  {format_bytes(current.bytes)} in {counted(len(current.shards), 'shard')}")
    if current.key_index is not None:
        index = current.key_index
        blocks = counted(index.blocks + index.hot_blocks, "block")
        say(f"  index    {counted(index.keys, 'key')} in {blocks}, {format_bytes(index.bytes)}")
    say("  columns")
    width = max(len(name) for name in current.schema.names)
    for field in current.schema:
        say(f"    {field.name:<{width}}  {field.type}{'' if field.nullable else ', never null'}")
    console.print(_versions_table(versions, current))
    if check is not None:
        for message in check.damage:
            say(message, "red")
        verdict = f"{counted(len(check.damage), 'problem')} found" if check.damage else "all checksums fit"
        say(f"{counted(check.pages, 'page')} checked: {verdict}", "red" if check.damage else "green")


def _pages(version: TableVersion) -> str:
    if not version.pages:
        return "none: the table is empty"
    rows = f"planned for {counted(version.rows_per_page, 'row')} each"
    return f"{version.pages:,} of at most {format_bytes(version.page_bytes)}, {rows}"


def _versions_table(versions: Sequence[TableVersion], current: TableVersion) -> Table:
    table = Table(title="versions", title_justify="left")
    for name in ("version", "in effect from", "rows", "pages", "on disk"):
        table.add_column(name, justify="left" if name == "in effect from" else "right")
    for version in versions:
        number = f"{version.number} (current)" if version is current else str(version.number)
        sizes = (f"{version.rows:,}", f"{version.pages:,}", format_bytes(version.bytes))
        table.add_row(number, _moment(version.effective_at_us), *sizes)
    return table


def _moment(effective_at_us: int) -> str:
    if effective_at_us == 0:
        return "the beginning"
    return datetime.fromtimestamp(effective_at_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
