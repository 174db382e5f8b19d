"""Key-value stores used as people use them for enrichment: one multi-get per Arrow batch inside `mapInArrow`.

Both get favourable treatment: rows packed into fixed-width structs (no JSON, no pickle), each key asked for once per
batch, values unpacked with NumPy, connections and handles kept by the Python worker between micro-batches.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.bench.data import MASTER_SCHEMA, TEXT_WIDTHS
from millrace.core.arrays import BoolArray, Int64Array
from millrace.core.errors import MillraceError

_NUMPY_TYPES = {pa.int64(): "<i8", pa.int32(): "<i4", pa.float64(): "<f8"}
VALUE_TYPE = np.dtype(
    [
        (field.name, f"V{TEXT_WIDTHS[field.name]}" if field.name in TEXT_WIDTHS else _NUMPY_TYPES[field.type])
        for field in MASTER_SCHEMA
        if field.name != "key"
    ]
)
KEY_BYTES = 8
START_SECONDS = 20.0

Keys = Int64Array
Fetch = Callable[[list[bytes]], Sequence["bytes | None"]]

_HANDLES: dict[str, Any] = {}
"""Open stores of this process, by path: a Python worker serves many micro-batches."""


def pack_keys(keys: Int64Array) -> list[bytes]:
    """Big-endian, so that the order of bytes is the order of keys."""
    packed: list[bytes] = keys.astype(">i8").view(f"V{KEY_BYTES}").tolist()
    return packed


def pack_values(rows: pa.Table) -> npt.NDArray[np.void]:
    packed = np.zeros(len(rows), dtype=VALUE_TYPE)
    for name in VALUE_TYPE.names or ():
        column = rows.column(name).combine_chunks()
        if name in TEXT_WIDTHS:
            width = TEXT_WIDTHS[name]
            fixed = column.cast(pa.binary()).cast(pa.binary(width))
            packed[name] = np.frombuffer(fixed.buffers()[1], dtype=f"V{width}", count=len(rows))
        else:
            packed[name] = column.to_numpy()
    return packed


def unpack_values(values: Sequence[bytes | None], columns: tuple[str, ...]) -> pa.RecordBatch:
    """Packed values as Arrow columns; None becomes a row of nulls."""
    absent = np.fromiter((value is None for value in values), dtype=bool, count=len(values))
    nothing = bytes(VALUE_TYPE.itemsize)
    packed = np.frombuffer(b"".join(nothing if value is None else value for value in values), dtype=VALUE_TYPE)
    mask = absent if absent.any() else None
    arrays = [_column(packed, name, mask) for name in columns]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(packed: npt.NDArray[np.void], name: str, mask: BoolArray | None) -> pa.Array:
    if name not in TEXT_WIDTHS:
        return pa.array(np.ascontiguousarray(packed[name]), mask=mask)
    width, count = TEXT_WIDTHS[name], len(packed)
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    valid = None if mask is None else pa.array(~mask).buffers()[1]
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(packed[name])), valid)


def enrich_batch(batch: pa.RecordBatch, fetch: Fetch, columns: tuple[str, ...], how: str) -> pa.RecordBatch:
    """One Arrow batch of the stream with the master columns appended."""
    keys, rows = np.unique(batch.column("key").to_numpy(), return_inverse=True)
    values = fetch(pack_keys(keys))
    master = unpack_values(values, columns).take(pa.array(rows))
    joined = pa.RecordBatch.from_arrays([*batch.columns, *master.columns], names=[*batch.schema.names, *master.schema.names])
    if how == "left":
        return joined
    found = np.fromiter((value is not None for value in values), dtype=bool, count=len(values))
    return joined.filter(pa.array(found[rows]))


@dataclass(frozen=True)
class RocksLookup:
    """For `mapInArrow`: looks keys up in a RocksDB folder, opened once per worker for reading."""

    path: str
    cache_bytes: int
    columns: tuple[str, ...]
    how: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        store = _HANDLES.get(self.path)
        if store is None:
            store = _HANDLES[self.path] = open_rocksdb(self.path, self.cache_bytes)
        for batch in batches:
            yield enrich_batch(batch, store.get, self.columns, self.how)


@dataclass(frozen=True)
class RedisLookup:
    """For `mapInArrow`: looks keys up with MGET over a Unix socket, connected once per worker."""

    socket_path: str
    columns: tuple[str, ...]
    how: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = _HANDLES.get(self.socket_path)
        if client is None:
            import redis

            client = _HANDLES[self.socket_path] = redis.Redis(unix_socket_path=self.socket_path)
        for batch in batches:
            yield enrich_batch(batch, client.mget, self.columns, self.how)


def open_rocksdb(path: str, cache_bytes: int) -> Any:
    from rocksdict import AccessType, BlockBasedOptions, Cache, Options, Rdict

    options = Options(raw_mode=True)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(cache_bytes))
    options.set_block_based_table_factory(blocks)
    return Rdict(path, options=options, access_type=AccessType.read_only())


def build_rocksdb(master: Path, target: Path) -> None:
    """Sorted table files, one per Parquet file, ingested: how a bulk load is done best."""
    from rocksdict import Options, Rdict, SstFileWriter

    options = Options(raw_mode=True)
    database = Rdict(str(target), options=options)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        tables = []
        for number, path in enumerate(sorted(master.glob("*.parquet"))):
            rows = pq.read_table(path)
            writer = SstFileWriter(options=options)
            writer.open(f"{folder}/{number}.sst")
            values = pack_values(rows).tobytes()
            for at, key in enumerate(pack_keys(rows.column("key").to_numpy())):
                writer[key] = values[at * VALUE_TYPE.itemsize : (at + 1) * VALUE_TYPE.itemsize]
            writer.finish()
            tables.append(f"{folder}/{number}.sst")
        database.ingest_external_file(tables)
    database.close()


@dataclass(frozen=True)
class RedisServer:
    pid: int
    socket_path: str


def redis_missing() -> str | None:
    return None if shutil.which("redis-server") else "not installed: apt-get install redis-server"


@contextmanager
def redis_server() -> Iterator[RedisServer]:
    """A Redis of our own on a Unix socket, without persistence; ended with the block, whatever happens in it."""
    with tempfile.TemporaryDirectory(prefix="millrace-redis-") as folder:
        socket_path = f"{folder}/redis.sock"
        command = ["redis-server", "--port", "0", "--unixsocket", socket_path, "--dir", folder]
        process = subprocess.Popen(
            [*command, "--save", "", "--appendonly", "no"],
            stdout=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C reaches us; we end the server
        )
        try:
            _wait_for_socket(process, socket_path)
            yield RedisServer(process.pid, socket_path)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def load_redis(master: Path, socket_path: str) -> None:
    """Mass insertion: SET commands laid out by NumPy and sent without waiting for replies."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_path)
        connection.sendall(b"CLIENT REPLY OFF\r\n")
        for path in sorted(master.glob("*.parquet")):
            connection.sendall(_set_commands(pq.read_table(path)).tobytes())
        connection.sendall(b"CLIENT REPLY ON\r\n")
        if not connection.recv(64).startswith(b"+OK"):
            raise MillraceError("Redis refused the load; see whether it has the memory for the table.")


def _set_commands(rows: pa.Table) -> npt.NDArray[np.void]:
    head = b"*3\r\n$3\r\nSET\r\n$%d\r\n" % KEY_BYTES
    middle = b"\r\n$%d\r\n" % VALUE_TYPE.itemsize
    layout = [("head", f"V{len(head)}"), ("key", ">i8"), ("middle", f"V{len(middle)}"), ("value", VALUE_TYPE)]
    commands = np.zeros(len(rows), dtype=[*layout, ("end", "V2")])
    commands["head"], commands["middle"], commands["end"] = np.void(head), np.void(middle), np.void(b"\r\n")
    commands["key"] = rows.column("key").to_numpy()
    commands["value"] = pack_values(rows)
    return commands


def _wait_for_socket(process: subprocess.Popen[bytes], socket_path: str) -> None:
    until = time.monotonic() + START_SECONDS
    while not Path(socket_path).exists():
        if process.poll() is not None or time.monotonic() > until:
            raise MillraceError("redis-server did not start; run it by hand to see why.")
        time.sleep(0.05)
