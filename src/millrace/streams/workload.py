"""A whole stream: keys, timing and payload, as Arrow batches."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from millrace.core.arrays import Int64Array
from millrace.core.errors import ParameterError
from millrace.streams.draws import generator
from millrace.streams.keys import KeyDistribution
from millrace.streams.parameters import check_name, check_number, check_seed, check_whole
from millrace.streams.timing import Arrivals

SEQUENCE = "sequence"
QUANTITY = "quantity"
PADDING = "padding"

_KEY_BYTES = 8
_SEQUENCE_BYTES = 8
_QUANTITY_BYTES = 4
_LARGEST_QUANTITY = 10


@dataclass(frozen=True)
class Payload:
    """Columns that fill a stream tuple up to `stream_tuple_bytes`, behind 8 bytes of key and 8 of sequence.

    First `quantity`, int32 from 1 to 10, if there is room for it, then `padding`, zero bytes. The HYBRIDJOIN paper
    (table 2) has tuples of 20 bytes, the weather data of MESHJOIN 32, those of the caching paper 128. Bytes are those
    of the values; Arrow's validity bits come on top where keys are null.

    >>> Payload(32).schema
    quantity: int32
    padding: fixed_size_binary[12]
    """

    stream_tuple_bytes: int = 20

    def __post_init__(self) -> None:
        check_whole("stream_tuple_bytes", self.stream_tuple_bytes, _KEY_BYTES + _SEQUENCE_BYTES, 1 << 20)

    @property
    def has_quantity(self) -> bool:
        return self.stream_tuple_bytes >= _KEY_BYTES + _SEQUENCE_BYTES + _QUANTITY_BYTES

    @property
    def padding_bytes(self) -> int:
        return self.stream_tuple_bytes - _KEY_BYTES - _SEQUENCE_BYTES - _QUANTITY_BYTES * self.has_quantity

    @property
    def schema(self) -> pa.Schema:
        fields = [(QUANTITY, pa.int32())] if self.has_quantity else []
        if self.padding_bytes:
            fields.append((PADDING, pa.binary(self.padding_bytes)))
        return pa.schema(fields)

    def columns(self, rows: int, random: np.random.Generator) -> list[pa.Array]:
        """The next `rows` values of each column."""
        columns = []
        if self.has_quantity:
            # scaled 64-bit draws: one per row, so that the cut into batches does not matter
            columns.append(pa.array((random.random(rows) * _LARGEST_QUANTITY).astype(np.int32) + np.int32(1)))
        if self.padding_bytes:
            zeros = pa.py_buffer(np.zeros(rows * self.padding_bytes, dtype=np.uint8))
            columns.append(pa.Array.from_buffers(pa.binary(self.padding_bytes), rows, [None, zeros]))
        return columns


class _Position:
    """Where a workload stands: its own copies of keys and timing, and the next sequence number."""

    def __init__(self, keys: KeyDistribution, timing: Arrivals, seed: int) -> None:
        self.keys = copy.deepcopy(keys)
        self.timing = copy.deepcopy(timing)
        self.marks = generator("marks", seed)
        self.payload = generator("payload", seed)
        self.sequence = 0


@dataclass(frozen=True)
class Workload:
    """An endless stream of sales: one record batch for every time step, empty when nothing arrives.

    The benchmark of Naeem, Dobbie and Weber, "HYBRIDJOIN for near-real-time data warehousing", section 5: skewed keys
    that arrive in bursts. Columns: the key (int64, named `key_name`), `sequence` (int64, from 0), and the payload's.

    A share `null_share` of the tuples has no key, and a share `absent_share` one that is in no table: the key that was
    drawn plus the domain, so absent keys are as skewed as the others. `seed` decides which tuples these are, and the
    payload.

    Keys and timing are copied, so several workloads may be made from the same objects and each starts where those
    stand. Iterating goes on where the last step ended; `draw` gives rows regardless of timing. The rows depend on the
    parameters only, not on how they are cut into batches.

    >>> from itertools import islice
    >>> from millrace.streams import BurstyArrivals, PausedArrivals, ZipfKeys
    >>> timing = PausedArrivals(BurstyArrivals(seed=2), pauses=[(1, 3)])
    >>> sales = Workload(ZipfKeys(domain=100_000, seed=2), timing, key_name="product_id", absent_share=0.01)
    >>> batches = list(islice(sales, 4))
    >>> [batch.num_rows > 0 for batch in batches]
    [True, False, False, True]
    >>> batches[0].schema.names
    ['product_id', 'sequence', 'quantity']
    """

    keys: KeyDistribution
    timing: Arrivals
    payload: Payload | None = field(default_factory=Payload)
    key_name: str = "key"
    null_share: float = 0.0
    absent_share: float = 0.0
    seed: int = 0
    _position: _Position = field(init=False, repr=False, compare=False)
    _schema: pa.Schema = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_number("null_share", self.null_share, 0.0, 1.0)
        check_number("absent_share", self.absent_share, 0.0, 1.0)
        if self.null_share + self.absent_share > 1.0:
            raise ParameterError(
                f"null_share + absent_share must be at most 1; got {self.null_share!r} + {self.absent_share!r}"
            )
        check_seed(self.seed)
        rest = [pa.field(SEQUENCE, pa.int64()), *(self.payload.schema if self.payload is not None else ())]
        taken = [column.name for column in rest]
        check_name("key_name", self.key_name, taken)
        object.__setattr__(self, "_schema", pa.schema([pa.field(self.key_name, pa.int64()), *rest]))
        object.__setattr__(self, "_position", _Position(self.keys, self.timing, self.seed))

    @property
    def schema(self) -> pa.Schema:
        return self._schema

    @property
    def stream_tuple_bytes(self) -> int:
        """Bytes of values in one tuple."""
        return _KEY_BYTES + _SEQUENCE_BYTES if self.payload is None else self.payload.stream_tuple_bytes

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self.draw(int(self._position.timing.arrivals(1)[0]))

    def draw(self, rows: int) -> pa.RecordBatch:
        """The next `rows` tuples, whenever they would arrive."""
        check_whole("rows", rows, 0)
        position = self._position
        first = position.sequence
        position.sequence += rows
        columns = [self._key_column(position.keys.draw(rows)), pa.array(np.arange(first, first + rows, dtype=np.int64))]
        if self.payload is not None:
            columns += self.payload.columns(rows, position.payload)
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _key_column(self, keys: Int64Array) -> pa.Array:
        if not self.null_share and not self.absent_share:
            return pa.array(keys)
        marks = self._position.marks.random(len(keys))
        null = marks < self.null_share
        absent = ~null & (marks < self.null_share + self.absent_share)
        return pa.array(np.where(absent, keys + self._position.keys.domain, keys), mask=null if null.any() else None)
