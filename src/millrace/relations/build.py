"""Making a version of a table: choosing the layout, adding codes, and putting finished shards together.

`build_table` does it all in one process; the Spark host writes the shards in its tasks and calls `prepare` and `finish`.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from millrace.core.errors import ParameterError, SchemaError, TableError
from millrace.core.keys import KeyCodec, family
from millrace.relations.folder import (
    BUILDING,
    MANIFEST,
    VERSION_FOLDERS,
    TableVersion,
    code_column,
    next_number,
    publish,
    read_versions,
    stored_schema,
    write_index,
)
from millrace.relations.frequency import count_column, counts_of, frequency_order, keys_path
from millrace.relations.keyindex import write_key_index
from millrace.relations.layout import CODE_COLUMN, RECORD_COLUMN
from millrace.relations.locks import take_lock
from millrace.relations.shard import ALIGNMENT, ShardInfo, check_page_bytes, directory_path, plan_rows_per_page, write_shard

LAYOUTS = ("auto", "key", "hash", "frequency")
PAGE_BYTES = 64 << 10
_KILLED = ".killed-"
_held: dict[Path, int] = {}  # version folders that this process is building, and the locks on them


@dataclass(frozen=True)
class BuildPlan:
    """What a build needs to know before it writes."""

    folder: Path
    number: int
    key: tuple[str, ...]
    layout: str
    schema: pa.Schema
    page_bytes: int
    made: bool = False  # there was no folder before

    @property
    def codec(self) -> KeyCodec:
        return KeyCodec(tuple(self.schema.field(name).type for name in self.key), mixed=self.layout == "hash")

    @property
    def stored_schema(self) -> pa.Schema:
        return stored_schema(self.schema, self.key, self.codec)

    @property
    def code_column(self) -> str:
        return code_column(self.schema, self.key, self.codec)

    @property
    def by_code(self) -> bool:
        """Rows are sorted by code; otherwise by how often their keys are wanted."""
        return self.layout != "frequency"

    @property
    def version_folder(self) -> Path:
        return self.folder / f"v{self.number:06d}"


def prepare(folder: Path, schema: pa.Schema, key: str | Sequence[str], layout: str, page_bytes: int) -> BuildPlan:
    """Check what was asked for and make the version's folder. Nothing is written before all checks have passed."""
    names = (key,) if isinstance(key, str) else tuple(key)
    if not names:
        raise ParameterError("key must name at least one column")
    for name in names:
        if name not in schema.names:
            raise SchemaError(f"the table has no column {name!r} to use as key; it has {', '.join(schema.names)}")
    taken = {name for name in schema.names if schema.names.count(name) > 1 or name in (CODE_COLUMN, RECORD_COLUMN)}
    if taken:
        raise SchemaError(f"column names must be unique and free; rename {', '.join(sorted(taken))}")
    if layout not in LAYOUTS:
        raise ParameterError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout!r}")
    plain = _codec(schema, names)
    if layout == "auto":
        layout = "key" if plain.ordered else "hash"
    if layout == "key" and not plain.ordered:
        kinds = ", ".join(str(kind) for kind in plain.types)
        raise ParameterError(
            f"layout='key' needs one integer, date, timestamp, boolean or short decimal key; got {kinds}: use layout='hash'"
        )
    check_page_bytes(page_bytes)
    if folder.exists() and not folder.is_dir():
        raise TableError(f"{folder} is a file; give a folder for the table")
    try:
        made = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / MANIFEST).exists():
            read_versions(folder)  # a damaged or newer table is not built over
        else:
            _check_free(folder)
        _remove_killed(folder)
        while True:
            plan = BuildPlan(folder, next_number(folder), names, layout, schema, page_bytes, made)
            try:
                plan.version_folder.mkdir(parents=True)  # another build that failed may just have removed the folder
            except FileExistsError:
                continue  # another build has just taken the number
            _hold(plan.version_folder)
            return plan
    except OSError as refused:
        raise TableError(f"{folder} can't be written ({refused}); give another folder for the table") from refused


def discard(plan: BuildPlan) -> None:
    """Remove what an unfinished build has written; published versions stay."""
    _remove(plan.version_folder)
    if plan.made:
        with suppress(OSError):  # another build is at work in it
            plan.folder.rmdir()


def _codec(schema: pa.Schema, key: Sequence[str]) -> KeyCodec:
    for name in key:
        try:
            family(schema.field(name).type)
        except SchemaError as refused:
            raise SchemaError(f"column {name!r} can't be the key: {refused}") from None
    return KeyCodec(tuple(schema.field(name).type for name in key))


def _check_free(folder: Path) -> None:
    """A table shares its folder with nothing else: whoever reads the other files would stumble over those of the table."""
    for path in folder.iterdir():
        if not path.name.startswith(".") and path.name != "lost+found" and not path.match(VERSION_FOLDERS):
            raise TableError(
                f"{folder} holds something else, such as {path.name}; give a folder of its own for the table, new or empty"
            )


def _hold(version_folder: Path) -> None:
    """Show that a build is going on: by a file that is locked until it ends, however it ends."""
    hidden = version_folder / f".{BUILDING}"
    try:
        descriptor = take_lock(hidden, create=True)
        assert descriptor is not None
        _held[version_folder] = descriptor
        hidden.rename(version_folder / BUILDING)  # never seen unlocked
    except OSError:
        _remove(version_folder)
        raise


def _remove(version_folder: Path) -> None:
    _remove_leftovers(version_folder)
    _let_go(version_folder)


def _let_go(version_folder: Path) -> None:
    descriptor = _held.pop(version_folder, None)
    if descriptor is not None:
        os.close(descriptor)


def _remove_killed(folder: Path) -> None:
    """Remove what builds that were killed have left."""
    for leftover in folder.glob(f"{_KILLED}*"):
        shutil.rmtree(leftover, ignore_errors=True)  # whoever was removing it was killed too
    for file in folder.glob(f"{VERSION_FOLDERS}/{BUILDING}"):
        descriptor = take_lock(file, wait=False)
        if descriptor is None:
            continue  # it is going on, or has just finished
        try:
            published = read_versions(folder) if (folder / MANIFEST).exists() else []
            if file.parent.name in {version.folder for version in published}:
                file.unlink(missing_ok=True)  # killed right behind publishing
            else:
                _remove_leftovers(file.parent)
        finally:
            os.close(descriptor)


def _remove_leftovers(version_folder: Path) -> None:
    """Remove a folder into which tasks may still write: once it has another name they can put nothing into it any more."""
    aside = version_folder.with_name(f"{_KILLED}{uuid.uuid4().hex}")
    with suppress(FileNotFoundError):
        version_folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def finish(plan: BuildPlan, shards: Sequence[ShardInfo], rows_per_page: int, null_keys: int) -> TableVersion:
    """Write the index over the shards, drop what failed tasks left, and publish the version."""
    beside = (directory_path, keys_path) if not plan.by_code else (directory_path,)
    files = [plan.version_folder / shard.file for shard in shards]
    named = {file.name for file in files} | {path(file).name for file in files for path in beside} | {BUILDING}
    for path in plan.version_folder.iterdir():
        if path.name not in named:
            path.unlink()
    missing = sorted(name for name in named if not (plan.version_folder / name).exists())
    if missing:
        raise TableError(
            f"{plan.version_folder / missing[0]} was written by a task but is not here: the path must be shared between "
            "driver and executors"
        )
    kept = [shard for shard in shards if shard.pages]
    if not kept:
        kept = list(shards[:1])
    key_index = None
    if not plan.by_code:
        key_index = write_key_index(
            plan.version_folder, [(keys_path(plan.version_folder / shard.file), shard.pages) for shard in kept]
        )
        for file in files:
            keys_path(file).unlink()
    index_checksum = write_index(plan.version_folder, kept)
    for shard, file in zip(shards, files, strict=True):
        if shard not in kept:
            file.unlink()
            directory_path(file).unlink()
    version = TableVersion(
        number=plan.number,
        effective_at_us=0,
        layout=plan.layout,
        key=plan.key,
        schema=plan.schema,
        stored_schema=plan.stored_schema,
        rows=sum(shard.rows for shard in kept),
        pages=sum(shard.pages for shard in kept),
        rows_per_page=rows_per_page,
        page_bytes=max(ALIGNMENT, *(shard.max_page_bytes for shard in kept)),
        null_keys=null_keys,
        index_checksum=index_checksum,
        shards=tuple(kept),
        key_index=key_index,
    )
    published = publish(plan.folder, version)
    (plan.version_folder / BUILDING).unlink()
    _let_go(plan.version_folder)
    return published


def build_table(
    folder: str | Path,
    table: pa.Table,
    key: str | Sequence[str],
    *,
    layout: str = "auto",
    page_bytes: int = PAGE_BYTES,
    shards: int = 1,
    counts: pa.Table | None = None,
) -> TableVersion:
    """Build a version of a table from Arrow data in this process.

    `counts`, for `layout="frequency"`, has the key columns and a number: how often the key is wanted.
    """
    check_counts(layout, counts)
    if counts is not None:
        count_column(counts.schema, (key,) if isinstance(key, str) else key)
    plan = prepare(Path(folder), table.schema, key, layout, page_bytes)
    try:
        encoded = plan.codec.encode([table.column(name) for name in plan.key])
        kept = np.flatnonzero(~encoded.nulls)
        if counts is not None:
            wanted = counts_of(encoded.codes[kept], counts, plan.key, plan.codec)
            order = kept[frequency_order(encoded.codes[kept], wanted)]
        else:
            order = kept[np.argsort(encoded.codes[kept], kind="stable")]
        codes = encoded.codes[order]
        rows = table.take(pa.array(order))
        if plan.code_column == CODE_COLUMN:
            rows = rows.add_column(0, plan.stored_schema.field(0), pa.array(codes))
        sample = rows.slice(0, 10_000).combine_chunks().to_batches()
        rows_per_page = plan_rows_per_page(sample[0], page_bytes) if sample else 1
        infos = []
        for number, (start, end) in enumerate(_cuts(codes, shards)):
            path = plan.version_folder / f"shard-{number:05d}.pages"
            part = rows.slice(start, end - start).to_batches(max_chunksize=10_000)
            infos.append(write_shard(path, plan.stored_schema, plan.code_column, rows_per_page, part, page_bytes, plan.by_code))
        return finish(plan, infos, rows_per_page, len(encoded.nulls) - len(kept))
    except BaseException:
        discard(plan)
        raise


def check_counts(layout: str, counts: object) -> None:
    """Counts are there when they are needed, and only then."""
    if layout == "frequency" and counts is None:
        raise ParameterError("layout='frequency' needs counts=, a table with the key columns and how often each key is wanted")
    if layout != "frequency" and counts is not None:
        raise ParameterError(f"counts= are for layout='frequency'; the layout is {layout!r}")


def _cuts(codes: np.ndarray[tuple[int], np.dtype[np.int64]], shards: int) -> list[tuple[int, int]]:
    """Row ranges of about equal size that keep equal codes, which stand side by side, together."""
    if shards < 1:
        raise ParameterError(f"shards must be at least 1; got {shards}")
    edges = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)
    wanted = np.arange(1, shards) * len(codes) // shards
    places = [0, *edges[np.searchsorted(edges, wanted, "right") - 1].tolist()]
    return list(zip(places, [*places[1:], len(codes)], strict=True))
