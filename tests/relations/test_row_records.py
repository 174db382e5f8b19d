"""Records: what goes in comes out, in any order, of any slice, with nulls anywhere."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.relations.layout import PageLayout
from millrace.relations.row_records import Unpacker, pack

TYPES = [
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(),
    pa.decimal128(38, 4), pa.date32(), pa.timestamp("us", "UTC"),
]  # fmt: skip


def _value(kind: pa.DataType) -> st.SearchStrategy[object]:
    if pa.types.is_string(kind):
        return st.text(max_size=90)
    if pa.types.is_binary(kind):
        return st.binary(max_size=90)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_floating(kind):
        return st.floats(width=32, allow_nan=False)
    if pa.types.is_decimal(kind):
        return st.decimals(min_value=-(10**20), max_value=10**20, places=4)
    return st.integers(0, 127)


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    kinds = draw(st.lists(st.sampled_from(TYPES), min_size=1, max_size=12))
    rows = draw(st.integers(1, 40))
    columns = [pa.array(range(rows), pa.int64())]
    for kind in kinds:
        values = draw(st.lists(st.none() | _value(kind), min_size=rows, max_size=rows))
        columns.append(pa.array(values, pa.int32()).cast(kind) if pa.types.is_date32(kind) else pa.array(values, kind))
    batch = pa.RecordBatch.from_arrays(columns, ["code", *(f"c{i}" for i in range(len(kinds)))])
    start = draw(st.integers(0, rows - 1))
    return batch.slice(start, draw(st.integers(1, rows - start)))


@given(batches(), st.integers(0, 2**32 - 1))
def test_what_was_packed_is_unpacked(batch: pa.RecordBatch, seed: int) -> None:
    layout = PageLayout(batch.schema, "code")
    records, _ = pack(batch, layout)
    rng = np.random.default_rng(seed)
    starts = np.frombuffer(records.buffers()[1], np.int32)
    names = [name for name in rng.permutation(batch.schema.names) if name != "code"]
    unpacker = Unpacker([layout.by_name[name] for name in names], layout, set(names))
    for _ in range(2):  # the second time with what was learnt of the first
        rows = rng.integers(-1, batch.num_rows, rng.integers(1, 2 * batch.num_rows + 1))
        addresses = np.where(rows < 0, 0, records.buffers()[2].address + starts[rows].astype(np.int64))
        for name, array in unpacker.unpack(addresses)[0].items():
            array.validate(full=True)
            assert array.type == batch.schema.field(name).type
            assert array.to_pylist() == [None if row < 0 else batch.column(name)[row].as_py() for row in rows.tolist()]


def test_null_flags_name_the_columns_with_nulls() -> None:
    batch = pa.record_batch({"code": [1, 2], "a": pa.array([1, None]), "b": ["x", "y"], "c": pa.array([None, "z"])})
    layout = PageLayout(batch.schema, "code")
    _, flags = pack(batch, layout)
    assert {column.name for column in layout.packed if flags & column.null_flag} == {"a", "c"}


@pytest.mark.parametrize("columns", [7, 8, 9, 64, 200])
def test_a_table_of_many_columns_has_a_null_bit_for_each(columns: int) -> None:
    values = {f"c{i}": pa.array([i % 100, None if i % 3 else 1], pa.int8()) for i in range(columns)}
    batch = pa.record_batch({"code": [1, 2], **values})
    layout = PageLayout(batch.schema, "code")
    records, flags = pack(batch, layout)
    address = records.buffers()[2].address
    starts = np.frombuffer(records.buffers()[1], np.int32)[:2]
    maybe = {column.name for column in layout.packed if flags & column.null_flag}
    out = list(Unpacker(layout.packed, layout, maybe).unpack(address + starts.astype(np.int64))[0].values())
    assert [array.to_pylist() for array in out] == [batch.column(column.name).to_pylist() for column in layout.packed]
