"""Rows in the order of how often their keys are wanted, and where each key then lives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import SchemaError
from millrace.core.keys import KeyCodec


class KeyEntries(NamedTuple):
    """Key code i is on pages `firsts[i]` to `lasts[i]`; codes ascend, each once."""

    codes: Int64Array
    firsts: Int64Array
    lasts: Int64Array


def frequency_order(codes: Int64Array, counts: FloatArray) -> Int64Array:
    """The order in which rows with these codes are stored: high counts first, equal codes together.

    Rows of one code may come with different counts (two keys whose hashes agree): the highest is that of all of them.
    """
    if len(codes) == 0:
        return np.zeros(0, np.int64)
    by_code = np.argsort(codes, kind="stable")
    sorted_codes = codes[by_code]
    starts = np.append(0, np.flatnonzero(sorted_codes[1:] != sorted_codes[:-1]) + 1)
    highest = np.repeat(np.maximum.reduceat(counts[by_code], starts), np.diff(starts, append=len(codes)))
    return by_code[np.argsort(-highest, kind="stable")]


def count_column(schema: pa.Schema, key: Sequence[str]) -> str:
    """The column of a table of counts that has them: the only one beside the key, or the one named `count`."""
    names = ", ".join(schema.names)
    for name in key:
        if name not in schema.names:
            raise SchemaError(f"the table of counts has no column {name!r}; it has {names}")
    others = [name for name in schema.names if name not in key]
    if len(others) > 1 and "count" in others:
        others = ["count"]
    if len(others) != 1:
        raise SchemaError(f"the table of counts must have one column beside the key, or one named 'count'; it has {names}")
    kind = schema.field(others[0]).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise SchemaError(f"column {others[0]!r} of the table of counts must be a number; it is {kind}")
    return others[0]


def counts_of(codes: Int64Array, counts: pa.Table, key: Sequence[str], codec: KeyCodec) -> FloatArray:
    """The count of each code, 0 where there is none: the sum of all counts that it was given."""
    column = count_column(counts.schema, key)
    codec.check([(name, counts.schema.field(name).type) for name in key])
    encoded = codec.encode([counts.column(name) for name in key])
    numbers = counts.column(column).cast(pa.float64(), safe=False).fill_null(0.0).to_numpy()
    known, at = np.unique(encoded.codes[encoded.valid], return_inverse=True)
    sums = np.bincount(at, np.nan_to_num(numbers[encoded.valid], nan=0.0), len(known))
    if len(known) == 0:
        return np.zeros(len(codes))
    place = np.minimum(np.searchsorted(known, codes), len(known) - 1)
    return np.where(known[place] == codes, sums[place], 0.0)


def key_entries(codes: Int64Array, pages: Int64Array) -> KeyEntries:
    """From the code and the page of every row: the pages of every code."""
    order = np.lexsort((pages, codes))
    codes, pages = codes[order], pages[order]
    starts = np.append(0, np.flatnonzero(codes[1:] != codes[:-1]) + 1)[: len(codes)]
    ends = np.append(starts[1:], len(codes))[: len(starts)]
    return KeyEntries(codes[starts], pages[starts], pages[ends - 1])


def keys_path(shard: Path) -> Path:
    """Where a shard leaves the keys on its pages for the index."""
    return shard.with_name(shard.name + ".keys")


def write_keys(path: Path, entries: KeyEntries) -> None:
    """Keep the keys of a shard, with page numbers of its own, until the index is written."""
    with open(path, "wb") as file:
        file.write(entries.codes.tobytes())
        file.write(entries.firsts.astype(np.int32).tobytes())
        file.write(entries.lasts.astype(np.int32).tobytes())


def read_keys(path: Path) -> KeyEntries:
    """What `write_keys` kept, as it is on disk."""
    size = path.stat().st_size // 16
    data: Any = np.memmap(path, np.uint8, "r") if size else np.zeros(0, np.uint8)
    codes, firsts, lasts = np.split(data, [8 * size, 12 * size])
    return KeyEntries(codes.view(np.int64), firsts.view(np.int32), lasts.view(np.int32))
