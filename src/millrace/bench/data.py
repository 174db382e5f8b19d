"""The data of the benchmarks: product master data and a stream of sales with Zipf keys, as Parquet files.

A row of master data is 120 bytes: three numbers of 8 bytes, one of 4 and 92 bytes of text. The text is random letters,
so that neither Parquet nor a page cache makes it smaller than it says.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from millrace.bench.options import EnrichOptions
from millrace.streams import ZipfKeys

FILES_PER_BATCH = 2
"""A micro-batch is this many equal files, hence as many partitions."""

WIDE_COLUMNS = tuple(f"measure_{i:02d}" for i in range(20))
MASTER_FILE_ROWS = 1_000_000
ROW_GROUP_ROWS = 250_000
TEXT_WIDTHS = {"product_name": 40, "category": 12, "description": 40}
ROW_BYTES = 120

MASTER_SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("surrogate_key", pa.int64()),
        ("product_name", pa.string()),
        ("price", pa.float64()),
        ("supplier_id", pa.int32()),
        ("category", pa.string()),
        ("description", pa.string()),
    ]
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class StreamFiles:
    """One generated stream: `batches` micro-batches of `batch_rows` rows, in the order the files are read."""

    folder: Path
    batch_rows: int
    batches: int
    wide: bool

    @property
    def schema(self) -> pa.Schema:
        return stream_schema(self.wide)

    def batch_files(self, batch: int) -> list[str]:
        return [str(self.folder / _file_name(batch, part)) for part in range(FILES_PER_BATCH)]


def stream_schema(wide: bool) -> pa.Schema:
    fields = [("key", pa.int64()), ("quantity", pa.int32()), ("event_time", pa.timestamp("us", tz="UTC"))]
    return pa.schema(fields + [(name, pa.float64()) for name in WIDE_COLUMNS if wide])


def master_files(options: EnrichOptions, folder: Path, say: Say) -> Path:
    """Parquet files of the master data, made unless they are there."""
    target = folder / f"master-{options.rows}-{options.seed}"
    parameters = {
        "rows": options.rows,
        "seed": options.seed,
        "file_rows": MASTER_FILE_ROWS,
        "group_rows": ROW_GROUP_ROWS,
    }

    def make() -> None:
        say(f"writing {options.rows:,} rows of master data")
        target.mkdir(parents=True)
        for number, first in enumerate(range(1, options.rows + 1, MASTER_FILE_ROWS)):
            count = min(MASTER_FILE_ROWS, options.rows + 1 - first)
            pq.write_table(master_rows(first, count, options.seed), target / f"part-{number:05d}.parquet", ROW_GROUP_ROWS)

    made_once(target, parameters, make)
    return target


def stream_files(options: EnrichOptions, batch_rows: int, folder: Path, say: Say) -> StreamFiles:
    """Parquet files of the stream, two to a micro-batch, made unless they are there."""
    kind = "wide" if options.wide else "narrow"
    name = f"stream-{kind}-{options.rows}-{options.zipf:g}-{options.seed}-{batch_rows}x{options.batches}"
    files = StreamFiles(folder / name, batch_rows, options.batches, options.wide)
    parameters = {"rows": options.rows, "zipf": options.zipf, "seed": options.seed, "files": FILES_PER_BATCH}

    def make() -> None:
        say(f"writing {options.batches} micro-batches of {batch_rows:,} stream rows")
        files.folder.mkdir(parents=True)
        for number, table in enumerate(_stream_tables(options, batch_rows)):
            path = files.folder / _file_name(*divmod(number, FILES_PER_BATCH))
            pq.write_table(table, path, compression="none", use_dictionary=False)
            # The file source reads the oldest file first: a second apart, the order is ours.
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))

    made_once(files.folder, parameters, make)
    return files


def made_once(target: Path, parameters: dict[str, Any], make: Callable[[], None]) -> bool:
    """Make the folder `target`, or keep it if it was made with the same parameters. True if it was made now.

    The note beside the folder is written last, so what an interrupted run leaves is made again.
    """
    note = target.parent / f"{target.name}.json"
    if note.is_file() and target.is_dir() and json.loads(note.read_text()) == parameters:
        return False
    note.unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    make()
    note.write_text(json.dumps(parameters))
    return True


def master_rows(first_key: int, count: int, seed: int) -> pa.Table:
    """Master data with the keys `first_key`, `first_key` + 1, ...; the same for the same arguments."""
    rng = np.random.default_rng([seed, first_key])
    keys = np.arange(first_key, first_key + count, dtype=np.int64)
    columns = {
        "key": pa.array(keys),
        "surrogate_key": pa.array(keys + 500_000_000_000),
        "product_name": _text(_letters(rng, count, TEXT_WIDTHS["product_name"], b"product ")),
        "price": pa.array(np.round(rng.uniform(0.5, 500.0, count), 2)),
        "supplier_id": pa.array(rng.integers(1, 10_000, count, dtype=np.int32)),
        "category": _text(_categories(rng, count)),
        "description": _text(_letters(rng, count, TEXT_WIDTHS["description"], b"")),
    }
    return pa.Table.from_pydict(columns, schema=MASTER_SCHEMA)


def warm_page_cache(folder: Path) -> int:
    """Read every file of a folder once; returns the bytes."""
    total = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                while block := file.read(8 << 20):
                    total += len(block)
    return total


def _stream_tables(options: EnrichOptions, batch_rows: int) -> Iterator[pa.Table]:
    rng = np.random.default_rng([options.seed, 1])
    keys = ZipfKeys(options.rows, options.zipf, scatter=True, seed=options.seed)
    rows = batch_rows // FILES_PER_BATCH
    for number in range(options.batches * FILES_PER_BATCH):
        microseconds = 1_700_000_000_000_000 + 10 * np.arange(number * rows, (number + 1) * rows)
        columns = [
            pa.array(keys.draw(rows)),
            pa.array(rng.integers(1, 10, rows, dtype=np.int32)),
            pa.array(microseconds).cast(pa.timestamp("us", tz="UTC")),
        ]
        columns += [pa.array(rng.random(rows)) for _ in WIDE_COLUMNS if options.wide]
        yield pa.Table.from_arrays(columns, schema=stream_schema(options.wide))


def _letters(rng: np.random.Generator, count: int, width: int, prefix: bytes) -> npt.NDArray[np.uint8]:
    random = np.frombuffer(rng.bytes(count * width), dtype=np.uint8).reshape(count, width)
    text: npt.NDArray[np.uint8] = random % np.uint8(26) + np.uint8(ord("a"))
    text[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    return text


def _categories(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint8]:
    names = np.array([f"category-{i:03d}" for i in range(500)], dtype=f"S{TEXT_WIDTHS['category']}")
    return names[rng.integers(0, 500, count)].view(np.uint8).reshape(count, -1)


def _text(characters: npt.NDArray[np.uint8]) -> pa.Array:
    """Rows of a byte matrix as strings, without a copy per row."""
    count, width = characters.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    data = np.ascontiguousarray(characters)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))


def _file_name(batch: int, part: int) -> str:
    return f"batch-{batch:04d}-{part}.parquet"
