"""Which files make a Parquet table: the rules are those of Spark.

A name that starts with `.`, or with `_` and has no `=`, is hidden, as is `...._COPYING_`; so is what lies in a folder of such a
name. All else is data, whatever it is called, except empty files. Links are followed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import unquote

from millrace.core.errors import DamagedTableError, SchemaError, TableError
from millrace.relations.folder import is_table
from millrace.relations.lakeformats import refuse_logged_tables
from millrace.relations.paths import local_path

_MAGIC = (b"PAR1", b"PARE")  # plain, and with an encrypted footer
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
_NOT_ASCII = re.compile("(?:%[89A-Fa-f][0-9A-Fa-f])+")

Partition = tuple[tuple[str, str | None], ...]


@dataclass(frozen=True)
class ParquetSource:
    """A file as it was when the table was listed; a file that is another one later is an error, never other rows."""

    path: str
    bytes: int
    modified_ns: int
    changed_ns: int  # when it came under this name, or was touched otherwise
    partition: Partition = ()  # columns that are in its path
    moved_ns: int = 0  # when a folder above it may have come under its name; 0: that is not in doubt
    settled_ns: int = 0  # since when nothing came into the folders above it


@dataclass(frozen=True)
class Listing:
    """What a folder held at one moment."""

    files: tuple[ParquetSource, ...]
    folders: frozenset[str]


def list_files(folder: str | Path) -> tuple[ParquetSource, ...]:
    """The files of a table (or the one file), by name."""
    return list_folder(folder).files


def list_folder(folder: str | Path, known: frozenset[str] = frozenset()) -> Listing:
    """The files of a table (or the one file), by name, and its folders. `known`: folders that were there under their names
    long ago."""
    root = local_path(folder)
    if not root.exists():
        raise TableError(f"there is no Parquet folder at {root}")
    if is_table(root):
        raise TableError(
            f"{root} is a millrace table: open it with mr.MasterTable.open({str(root)!r}) to enrich a stream; "
            "mr.ParquetTable reads Parquet files, and mr.estimate Parquet, Arrow or DuckDB"
        )
    refuse_logged_tables(root)
    folders: set[str] = set()
    if root.is_file():
        found = [(root, _Above())]
    else:
        found = sorted(_walk(root, _Above(), known, folders), key=lambda one: one[0])
    files = tuple(source for path, above in found if (source := _source(path, above, root)) is not None)
    if not files:
        raise TableError(f"{root} holds no Parquet files")
    return Listing(files, frozenset(folders))


def check_parquet(path: str) -> None:
    """An error if a file does not end as Parquet files do: Spark and Arrow would say it at length."""
    try:
        with open(path, "rb") as file:
            first = file.read(4)
            file.seek(-min(4, file.seek(0, os.SEEK_END)), os.SEEK_END)
            last = file.read()
    except FileNotFoundError:
        return  # it went meanwhile, which is noticed when the files are read
    except OSError as refused:
        raise TableError(f"{path} can't be read ({refused.strerror}); check the rights on the file and its disk") from refused
    if last in _MAGIC:
        return
    if first in _MAGIC:
        raise DamagedTableError(f"{path} has no end, as if it was cut off or is still being written; write the file again")
    raise TableError(
        f"{path} is no Parquet file, and a table of Parquet files holds nothing else; files of other formats are read with "
        "Spark, such as spark.read.json, and a MasterTable is built from that DataFrame"
    )


def hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


@dataclass(frozen=True)
class _Above:
    """The folders above a file: when one of them last came under its name, when one last changed, and which they are."""

    moved_ns: int = 0
    settled_ns: int = 0
    inodes: tuple[tuple[int, int], ...] = ()

    def enter(self, folder: Path, known: frozenset[str]) -> _Above:
        stat = folder.stat()
        inode = (stat.st_dev, stat.st_ino)
        if inode in self.inodes:
            raise TableError(f"{folder} is a link to a folder above it, so that the table has no end; remove the link")
        # a file that comes or goes sets both times of its folder; a folder that is renamed has a later st_ctime
        moved = stat.st_ctime_ns if stat.st_ctime_ns > stat.st_mtime_ns else 0
        linked = folder.lstat().st_ctime_ns if folder.is_symlink() else 0
        moved = 0 if str(folder) in known else max(moved, linked)
        changed = max(stat.st_ctime_ns, stat.st_mtime_ns, linked)
        return _Above(max(self.moved_ns, moved), max(self.settled_ns, changed), (*self.inodes, inode))


def _walk(folder: Path, above: _Above, known: frozenset[str], folders: set[str]) -> Iterator[tuple[Path, _Above]]:
    above = above.enter(folder, known)
    folders.add(str(folder))
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if not hidden(entry.name)]
    for name in names:
        path = folder / name
        if path.is_dir():
            yield from _walk(path, above, known, folders)
        else:
            yield path, above


def _source(path: Path, above: _Above, root: Path) -> ParquetSource | None:
    """None for an empty file, and for one that went while the folder was listed."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            raise TableError(f"{path} is a link to a file that is not there; remove the link") from None
        return None
    if stat.st_size == 0:
        return None
    changed = max(stat.st_ctime_ns, path.lstat().st_ctime_ns)
    partition = _partition(path.relative_to(root).parts[:-1])
    return ParquetSource(
        str(path), stat.st_size, stat.st_mtime_ns, changed, partition, above.moved_ns, above.settled_ns
    )  # fmt: skip


def _partition(folders: Sequence[str]) -> Partition:
    named = [part.split("=", 1) for part in folders if "=" in part]
    return tuple((unquote(name), None if value == NULL_PARTITION else unquote(value)) for name, value in named)


# --- as Spark reads them ----------------------------------------------------------------------------------------------


def as_spark_reads(
    files: Sequence[ParquetSource], folder: str, names: Sequence[str], sensitive: bool
) -> tuple[ParquetSource, ...]:
    """The same files, with partition columns under the names that the query knows. Where Spark would leave a file out, or read
    another partition from its path, the folder is refused."""
    root = Path(folder)
    if root.is_file():
        return tuple(files)
    parted = any(source.partition for source in files)
    first = next((source for source in files if source.partition), files[0])
    start = _start(_folders(first, root))
    spelled = []
    for source in files:
        folders = _folders(source, root)
        if bool(source.partition) != parted or (folders and not parted):
            raise TableError(_left_out(source, root, parted))
        if start is None or _start(folders) != start:
            raise TableError(
                f"{source.path} and {first.path}: partition folders (name=value) must all start in one folder, with no other "
                "folder between them"
            )
        _check_names(source, folders)
        spelled.append(replace(source, partition=_spelled(source, first, names, sensitive)))
    return tuple(spelled)


def _folders(source: ParquetSource, root: Path) -> tuple[str, ...]:
    return Path(source.path).relative_to(root).parts[:-1]


def _left_out(source: ParquetSource, root: Path, parted: bool) -> str:
    if parted:
        return (
            f"{source.path} lies beside partition folders (name=value), where Spark leaves it out silently; move it into a "
            "partition, or away"
        )
    return (
        f"{source.path} lies in a folder inside {root} that is no partition (name=value), where Spark leaves it out silently; "
        f"move it to {root}, or give its own folder as the table"
    )


def _start(folders: Sequence[str]) -> tuple[str, ...] | None:
    """The folder that partition folders start in; None where another folder lies between them."""
    named = ["=" in folder for folder in folders]
    if True not in named:
        return ()
    first, last = named.index(True), len(named) - named[::-1].index(True)
    return tuple(folders[:first]) if all(named[first:last]) else None


def _check_names(source: ParquetSource, folders: Sequence[str]) -> None:
    for name, text in source.partition:
        if not name or text == "":
            raise SchemaError(f"{source.path}: {name}={text} in its path is no column with a value")
    if any("=" in folder and _NOT_ASCII.search(folder) for folder in folders):
        raise SchemaError(
            f"{source.path}: letters beyond ASCII are escaped in its path (%C3%BC for ü), and Spark reads every byte of them "
            "as a letter of its own; write the folder names without escapes, as Spark does"
        )


def _spelled(source: ParquetSource, first: ParquetSource, names: Sequence[str], sensitive: bool) -> Partition:
    def plain(name: str) -> str:
        return name if sensitive else name.lower()

    mine, theirs = ([plain(name) for name, _ in one.partition] for one in (source, first))
    known = {plain(name): name for name in names}
    if mine != theirs or not known.keys() >= set(mine):  # the first file may be a new one too
        raise SchemaError(
            f"{source.path} is in partitions of {', '.join(mine)}, and {first.path} in partitions of {', '.join(theirs)}: "
            f"every file must have the columns that the query was planned with, {', '.join(names)}"
        )
    return tuple((known[plain(name)], text) for name, text in source.partition)
