"""A master table on disk: a folder of versions, each immutable, published by one atomic rename.

products/
  manifest.json           the versions, oldest first: the only file that is ever replaced
  v000001/index.arrow     one row per page of the version: where it is, its codes, its checksum, its buffers
  v000001/shard-*.pages   the pages
  v000001/keys.*          where every key lives, if rows are not sorted by code: see `keyindex`
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from millrace.core.atomic_files import one_at_a_time, write_atomically
from millrace.core.errors import DamagedTableError, ParameterError, TableError, TableVersionError
from millrace.core.keys import CODEC_VERSION, KeyCodec
from millrace.core.wording import counted
from millrace.relations.keyindex import KeyIndexInfo
from millrace.relations.layout import CODE_COLUMN
from millrace.relations.locks import is_locked
from millrace.relations.paths import local_path
from millrace.relations.shard import ShardInfo, directory_path

FORMAT = 2
MANIFEST = "manifest.json"
VERSION_FOLDERS = "v??????"
BUILDING = "building"  # in the folder of a version that is not published yet, locked while its build goes on
PUBLISH_MARGIN_US = 2_000_000  # a new version takes effect this much later: more than clocks may differ


@dataclass(frozen=True)
class TableVersion:
    """One version as the manifest describes it."""

    number: int
    effective_at_us: int  # batches whose timestamp lies at or behind this see the version
    layout: str
    key: tuple[str, ...]
    schema: pa.Schema  # of the table as users see it
    stored_schema: pa.Schema = field(repr=False)  # of the pages
    rows: int
    pages: int
    rows_per_page: int
    page_bytes: int  # of the largest page
    null_keys: int  # rows left out because they can never match
    index_checksum: str = field(repr=False)
    shards: tuple[ShardInfo, ...] = field(repr=False)
    key_index: KeyIndexInfo | None = None  # of rows in the order of counts

    @property
    def folder(self) -> str:
        return f"v{self.number:06d}"

    @property
    def bytes(self) -> int:
        index = self.key_index.bytes if self.key_index is not None else 0
        return sum(shard.bytes for shard in self.shards) + index

    @property
    def longest_run(self) -> int:
        """Most rows with one key code."""
        return max((shard.longest_run for shard in self.shards), default=0)

    @property
    def unique(self) -> bool:
        return self.longest_run <= 1

    @property
    def codec(self) -> KeyCodec:
        return KeyCodec(tuple(self.schema.field(name).type for name in self.key), mixed=self.layout == "hash")

    @property
    def code_column(self) -> str:
        return code_column(self.schema, self.key, self.codec)

    def as_dict(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {
            **plain,
            "key": list(self.key),
            "schema": _schema_text(self.schema),
            "stored_schema": _schema_text(self.stored_schema),
            "columns": {field.name: str(field.type) for field in self.schema},
            "shards": [shard.as_dict() for shard in self.shards],
            "key_index": self.key_index.as_dict() if self.key_index is not None else None,
        }

    @staticmethod
    def from_dict(values: dict[str, Any]) -> TableVersion:
        return TableVersion(
            key=tuple(values["key"]),
            schema=_schema_of(values["schema"]),
            stored_schema=_schema_of(values["stored_schema"]),
            shards=tuple(ShardInfo(**shard) for shard in values["shards"]),
            key_index=KeyIndexInfo(**values["key_index"]) if values.get("key_index") else None,
            **{name: values[name] for name in _PLAIN},
        )


_PLAIN = (
    "number", "effective_at_us", "layout", "rows", "pages", "rows_per_page", "page_bytes", "null_keys", "index_checksum",
)  # fmt: skip


def code_column(schema: pa.Schema, key: Sequence[str], codec: KeyCodec) -> str:
    """The stored column that holds the code: the key itself where it is its own code in 64 bits, an extra column elsewhere."""
    if len(key) == 1 and codec.ordered and schema.field(key[0]).type.bit_width == 64:
        return key[0]
    return CODE_COLUMN


def stored_schema(schema: pa.Schema, key: Sequence[str], codec: KeyCodec) -> pa.Schema:
    """The columns of a page: the table's, and the code where it needs a column of its own."""
    if code_column(schema, key, codec) != CODE_COLUMN:
        return schema
    return pa.schema([pa.field(CODE_COLUMN, pa.int64(), nullable=False), *schema])


def table_folder(path: str | Path) -> Path:
    """The folder of a table as people name it, as an absolute path."""
    if not isinstance(path, (str, os.PathLike)):
        raise ParameterError(f"path must be the folder of a table, such as 'warehouse/products'; got {path!r}")
    if not str(path).strip():
        raise ParameterError("path must be the folder of a table, such as 'warehouse/products'; got an empty text")
    return local_path(path).expanduser().absolute()


def table_exists(folder: Path) -> bool:
    """Whether a build has finished in this folder; the manifest is what a build writes last."""
    return (folder / MANIFEST).is_file()


def is_table(folder: Path) -> bool:
    """Whether millrace wrote this folder. A manifest alone may be that of another program."""
    return table_exists(folder) and any(folder.glob(VERSION_FOLDERS))


def _build_in_python(path: str) -> str:
    return f"MasterTable.build(df, key=..., path={path!r})"


def read_versions(folder: Path, build: Callable[[str], str] = _build_in_python) -> list[TableVersion]:
    """The versions of a table, oldest first; an error that says what is wrong where there are none to read. `build`: how a
    table is built at a path, for that error."""
    path = folder / MANIFEST
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise _missing(folder, build) from None
    except NotADirectoryError:
        raise TableError(f"{folder} is a file, not a table folder; give the folder of a table that was built") from None
    except OSError as refused:
        raise TableError(f"{path} can't be read ({refused}); check the rights on the folder and its disk") from refused
    try:
        manifest = json.loads(text)
        number = manifest["format"]
        if number > FORMAT or manifest["codec"] > CODEC_VERSION:
            raise TableVersionError(
                f"{path} was written by a newer millrace (table format {number}, this library reads up to {FORMAT}); "
                "upgrade millrace to read it"
            )
        if number < FORMAT:
            raise TableVersionError(
                f"{path} was written by an older millrace (table format {number}, this library reads {FORMAT}); "
                "remove the folder and build the table again"
            )
        if not manifest["versions"] or manifest["checksum"] != _checksum(manifest):
            raise ValueError("its checksum does not fit")
        return [TableVersion.from_dict(version) for version in manifest["versions"]]
    except (KeyError, TypeError, ValueError, OSError, pa.ArrowException) as broken:
        why = f"it has no {broken}" if isinstance(broken, KeyError) else broken
        raise DamagedTableError(f"{path} is damaged ({why}); restore it or build the table in a new folder") from broken


def _checksum(manifest: dict[str, Any]) -> str:
    """Of everything in the manifest but the checksum itself."""
    rest = {name: manifest[name] for name in ("format", "codec", "versions")}
    return str(xxhash.xxh3_64_hexdigest(json.dumps(rest, sort_keys=True).encode()))


def version_at(versions: Sequence[TableVersion], timestamp_us: int) -> TableVersion:
    """The newest version that a batch of this time may see."""
    visible = [version for version in versions if version.effective_at_us <= timestamp_us]
    if not visible:
        raise TableVersionError(
            f"no version of the table was there at {timestamp_us} us: the version that this batch saw has been removed; "
            "start the query with a new checkpoint, or restore the version"
        )
    return visible[-1]


def next_number(folder: Path) -> int:
    """A number no version has, published or half-written."""
    taken = [int(path.name[1:]) for path in folder.glob(VERSION_FOLDERS) if path.name[1:].isdigit()]
    return max(taken, default=0) + 1


def publish(folder: Path, version: TableVersion) -> TableVersion:
    """Add a version to the manifest; readers see the old manifest or the new one, nothing between.

    The first version of a table is there for every batch. A later one takes effect a moment ahead, so that no batch which has
    already looked can be one that should have seen it; if writing takes longer than that moment, it is stamped again before
    anybody sees it.
    """
    with one_at_a_time(folder):
        versions = read_versions(folder) if (folder / MANIFEST).exists() else []
        while True:
            if versions:
                ahead = max(now_us() + PUBLISH_MARGIN_US, versions[-1].effective_at_us + 1)
                version = replace(version, effective_at_us=ahead)
            listed = [one.as_dict() for one in [*versions, version]]
            manifest: dict[str, Any] = {"format": FORMAT, "codec": CODEC_VERSION, "versions": listed}
            manifest["checksum"] = _checksum(manifest)
            in_time = partial(_not_yet, version.effective_at_us if versions else None)
            if write_atomically(folder / MANIFEST, json.dumps(manifest, indent=1).encode(), in_time) and in_time():
                return version


def _not_yet(time_us: int | None) -> bool:
    return time_us is None or now_us() < time_us


def write_index(folder: Path, shards: Sequence[ShardInfo]) -> str:
    """Put the directories of all shards together as the version's index; returns its checksum."""
    tables = []
    for number, shard in enumerate(shards):
        path = directory_path(folder / shard.file)
        with pa.OSFile(str(path)) as source:
            table = pa.ipc.open_file(source).read_all()
        tables.append(table.set_column(0, "shard", pa.array([number] * table.num_rows, pa.int32())))
    index = pa.concat_tables(tables).combine_chunks()
    batches = index.to_batches() or [pa.RecordBatch.from_pylist([], schema=index.schema)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, index.schema) as writer:
        writer.write_batch(batches[0])
    data = sink.getvalue()
    write_atomically(folder / "index.arrow", data.to_pybytes())
    for shard in shards:
        directory_path(folder / shard.file).unlink()
    return str(xxhash.xxh3_64_hexdigest(data))


def left_out(null_keys: int) -> str:
    """What a build did with rows that can never match."""
    if not null_keys:
        return "no row was left out"
    return f"{counted(null_keys, 'row')} without a key {'was' if null_keys == 1 else 'were'} left out"


def now_us() -> int:
    return time.time_ns() // 1000


def _missing(folder: Path, build: Callable[[str], str]) -> TableError:
    if not folder.exists():
        return TableError(f"there is no table at {folder}; build one with {build(str(folder))}")
    if any(folder.glob(VERSION_FOLDERS)):
        if any(is_locked(file) for file in folder.glob(f"{VERSION_FOLDERS}/{BUILDING}")):
            return TableError(f"{folder} is being built for the first time; open it when the build has finished")
        return TableError(
            f"{folder} holds a table whose build never finished: it was killed, or its machine went down; build it again with "
            f"{build(str(folder))}, which removes what is left of it"
        )
    return TableError(f"{folder} is not a millrace table (no {MANIFEST}){_what_else(folder, build)}")


def _what_else(folder: Path, build_at: Callable[[str], str]) -> str:
    """What the folder is instead, and what to do."""
    build = f"build a table in a folder of its own with {build_at('NEW_FOLDER')}"
    if (folder / "_delta_log").exists():
        return f" but a Delta table; read it with Spark and {build}"
    if any(next(folder.glob(pattern), None) for pattern in ("*.parquet", "*=*/**/*.parquet")):
        return f" but a folder of Parquet files; use the files as they are with mr.ParquetTable({str(folder)!r}), or {build}"
    empty = " but an empty folder" if not any(folder.iterdir()) else ""
    return f"{empty}; give the folder of a table that was built, or {build}"


def _schema_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
