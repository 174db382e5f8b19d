"""Hot rows in a file, so that a new process starts with the keys that another one has learned.

    magic | checksum of what follows | bytes of the first part | keys: code, score, rows | rows of these keys

Both parts are Arrow IPC streams. A file is written beside its place and renamed, by one process at a time. What can't be read,
is damaged, belongs to another user or was written for other rows is taken for no file: the process starts cold.
"""

from __future__ import annotations

import os
import struct
import uuid
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from millrace.joins.hot_rows import HotKeys, HotRows
from millrace.relations.locks import take_lock

_MAGIC = b"MRHOT001"
_HEAD = struct.Struct("<8sQQ")
_KEYS = pa.schema([("code", pa.int64()), ("score", pa.float64()), ("rows", pa.int64())])


def save(path: Path, hot: HotRows, name: str, limit_bytes: int) -> bool:
    """Write the keys that are wanted most, in about `limit_bytes`; False if another process is writing, or the disk is full."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = take_lock(path.with_name(path.name + ".lock"), wait=False, create=True)
    except OSError:
        return False
    if lock is None:
        return False
    hidden = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        descriptor = os.open(hidden, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(_written(hot, name, limit_bytes))
        os.replace(hidden, path)
    except OSError:
        return False
    finally:
        hidden.unlink(missing_ok=True)
        os.close(lock)
    return True


def load(path: Path, hot: HotRows, name: str) -> bool:
    """Put the keys of a file into `hot`; False if there is no such file, or none that can be trusted."""
    try:
        status = os.stat(path)
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            return False
        data = path.read_bytes()
        magic, checksum, size = _HEAD.unpack_from(data)
        body = memoryview(data)[_HEAD.size :]
        if magic != _MAGIC or xxhash.xxh3_64_intdigest(body) != checksum:
            return False
        keys = pa.ipc.open_stream(body[:size]).read_all()
        rows = pa.ipc.open_stream(body[size:]).read_all()
    except (OSError, ValueError, struct.error, pa.ArrowException):
        return False
    about = keys.schema.metadata or {}
    if about.get(b"name") != name.encode() or not rows.schema.equals(hot.schema):
        return False
    codes, scores, counts = (keys.column(field).to_numpy() for field in _KEYS.names)
    scores = scores * (hot.period / float(about[b"period"]))
    batch = rows.combine_chunks().to_batches()
    hot.put(HotKeys(codes, scores, counts), batch[0] if batch else None)
    return True


def remove_old(folder: Path, keep: int) -> None:
    """Remove files that were written longest ago, but for so many."""
    with suppress(OSError):
        files = sorted(folder.glob("*.hot"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in files[keep:]:
            path.unlink(missing_ok=True)
            path.with_name(path.name + ".lock").unlink(missing_ok=True)


def _written(hot: HotRows, name: str, limit_bytes: int) -> bytes:
    keys: list[HotKeys] = []
    rows: list[pa.RecordBatch] = []
    taken = 0
    for some, batch in hot.chunks():
        keys.append(some)
        rows += [batch] if batch is not None else []
        taken += sum(part.nbytes for part in some) + (batch.nbytes if batch is not None else 0)
        if taken >= limit_bytes:
            break
    columns = [np.concatenate([part[i] for part in keys] or [np.zeros(0)]) for i in range(3)]
    about = {"name": name, "period": str(hot.period)}
    first = pa.Table.from_arrays([pa.array(c, f.type) for c, f in zip(columns, _KEYS, strict=True)], schema=_KEYS)
    parts = [_stream(first.replace_schema_metadata(about)), _stream(pa.Table.from_batches(rows, hot.schema))]
    body = b"".join(parts)
    return _HEAD.pack(_MAGIC, xxhash.xxh3_64_intdigest(body), len(parts[0])) + body


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
