"""The key codec: equal codes where Spark calls keys equal, and an honest answer about what a code can promise."""

from __future__ import annotations

import decimal
import itertools
import math
from collections.abc import Sequence
from datetime import date, timedelta
from datetime import datetime as at
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from millrace.core.errors import SchemaError
from millrace.core.keys import KeyCodec, family

D = decimal.Decimal
NAN = float("nan")
OTHER_NAN = float(np.array([0x7FF8000000000123], np.uint64).view(np.float64)[0])

# values that all differ, for every type a key may have
SAMPLES: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int16(): [-32768, -1, 0, 300, 32767],
    pa.int32(): [-(2**31), -1, 0, 7, 2**31 - 1],
    pa.int64(): [-(2**63), -1, 0, 7, 2**63 - 1],
    pa.uint8(): [0, 1, 255],
    pa.uint16(): [0, 1, 65535],
    pa.uint32(): [0, 1, 2**32 - 1],
    pa.bool_(): [False, True],
    pa.float32(): [0.0, 1.5, -1.5, math.inf, -math.inf, NAN, 1e-40],
    pa.float64(): [0.0, 1.5, -1.5, math.inf, -math.inf, NAN, 5e-324, 0.1],
    pa.date32(): [date(1, 1, 1), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)],
    pa.timestamp("s"): [at(1, 1, 1), at(1970, 1, 1), at(2024, 2, 29, 1, 2, 3)],
    pa.timestamp("ms"): [at(1969, 12, 31, 23, 59, 59, 999000), at(1970, 1, 1)],
    pa.timestamp("us"): [at(1, 1, 1), at(1970, 1, 1, 0, 0, 0, 1), at(2024, 1, 1)],
    pa.timestamp("ns"): [-1, 0, 1, 2**62],
    pa.timestamp("us", "UTC"): [at(1970, 1, 1), at(2024, 1, 1)],
    pa.duration("us"): [timedelta(0), timedelta(microseconds=-1), timedelta(days=9)],
    pa.string(): ["", "a", "b", "aa", "a" * 7, "a" * 8, "a" * 9, "\0", "\0\0", "é", "\U0001f600"],
    pa.large_string(): ["", "a", "ab", "abcdefgh", "abcdefghi"],
    pa.binary(): [b"", b"\0", b"\0\0", b"\0" * 8, b"\0" * 9, b"\xff"],
    pa.large_binary(): [b"", b"\0", b"x" * 100],
    pa.decimal128(5, 2): [D("0.00"), D("0.01"), D("-0.01"), D("999.99")],
    pa.decimal128(18, 0): [D(0), D(10**18 - 1), D(1 - 10**18)],
    pa.decimal128(19, 0): [D(0), D(10**19 - 1), D(-1), D(2**63)],
    pa.decimal128(38, 10): [D(0), D(1), D(-1), D("1E-10"), D(10**27), D(-(10**27))],
}  # fmt: skip
EXACT = [kind for kind in SAMPLES if family(kind) not in ("string", "binary") and getattr(kind, "precision", 0) <= 18]


def codes(codec: KeyCodec, *columns: pa.Array | pa.ChunkedArray) -> list[int | None]:
    """Code of every row, None where it is not valid."""
    encoded = codec.encode(columns)
    return [int(code) if valid else None for code, valid in zip(encoded.codes, encoded.valid, strict=True)]


def column(kind: pa.DataType, values: Sequence[Any]) -> pa.Array:
    return pa.array(values, pa.int64()).cast(kind) if kind == pa.timestamp("ns") else pa.array(values, kind)


@pytest.mark.parametrize("kind", SAMPLES, ids=str)
def test_different_keys_have_different_codes_and_equal_keys_the_same(kind: pa.DataType) -> None:
    codec = KeyCodec((kind,))
    once = codes(codec, column(kind, SAMPLES[kind]))
    assert len(set(once)) == len(once)
    assert None not in once
    assert codes(codec, column(kind, SAMPLES[kind][::-1])) == once[::-1]


@pytest.mark.parametrize("kind", SAMPLES, ids=str)
def test_codes_do_not_depend_on_slices_chunks_or_the_nulls_around(kind: pa.DataType) -> None:
    codec = KeyCodec((kind,))
    values = SAMPLES[kind]
    plain = codes(codec, column(kind, values))
    around = column(kind, [values[0], None, *values, None])
    assert codes(codec, around) == [plain[0], None, *plain, None]
    assert codes(codec, around.slice(2, len(values))) == plain
    assert codes(codec, around.slice(1, 2)) == [None, plain[0]]
    assert codes(codec, pa.chunked_array([around.slice(2, 1), around.slice(3, len(values) - 1)])) == plain
    assert codes(codec, pa.chunked_array([around.slice(2, len(values))])) == plain


@pytest.mark.parametrize("kind", SAMPLES, ids=str)
def test_no_rows_and_nothing_but_nulls_are_keys_too(kind: pa.DataType) -> None:
    codec = KeyCodec((kind,))
    assert codes(codec, pa.nulls(0, kind)) == []
    assert codes(codec, pa.chunked_array([], kind)) == []
    encoded = codec.encode([pa.nulls(3, kind)])
    assert encoded.nulls.all()
    assert not encoded.valid.any()
    assert codes(codec, pa.nulls(3, kind).slice(1)) == [None, None]


@pytest.mark.parametrize("kind", SAMPLES, ids=str)
def test_arrays_in_memory_that_can_not_be_written_are_fine(kind: pa.DataType) -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"key": column(kind, [None, SAMPLES[kind][0]])})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    frozen = pa.ipc.open_stream(sink.getvalue().to_pybytes()).read_all().column("key")
    for rows in (frozen, frozen.slice(0, 1)):
        assert codes(KeyCodec((kind,)), rows)[0] is None


@pytest.mark.parametrize("kind", EXACT, ids=str)
def test_keys_of_up_to_64_bits_have_exact_codes_and_the_hash_layout_keeps_them_so(kind: pa.DataType) -> None:
    assert KeyCodec((kind,)).exact
    mixed = KeyCodec((kind,), mixed=True)
    assert mixed.exact
    assert not mixed.ordered
    spread = codes(mixed, column(kind, SAMPLES[kind]))
    assert len(set(spread)) == len(spread)


@pytest.mark.parametrize("kind", [kind for kind in SAMPLES if KeyCodec((kind,)).ordered], ids=str)
def test_ordered_codes_sort_like_the_keys(kind: pa.DataType) -> None:
    values = column(kind, SAMPLES[kind])
    ordered = values.take(pa.compute.array_sort_indices(values))
    plain = codes(KeyCodec((kind,)), ordered)
    assert plain == sorted(plain)  # type: ignore[type-var]


def test_which_codes_are_exact_and_which_are_ordered() -> None:
    flags = {str(kind): (KeyCodec((kind,)).exact, KeyCodec((kind,)).ordered) for kind in SAMPLES}
    assert flags == {
        "int8": (True, True), "int16": (True, True), "int32": (True, True), "int64": (True, True),
        "uint8": (True, True), "uint16": (True, True), "uint32": (True, True), "bool": (True, True),
        "float": (True, False), "double": (True, False), "date32[day]": (True, True),
        "timestamp[s]": (True, True), "timestamp[ms]": (True, True), "timestamp[us]": (True, True),
        "timestamp[ns]": (True, True), "timestamp[us, tz=UTC]": (True, True), "duration[us]": (True, True),
        "string": (False, False), "large_string": (False, False), "binary": (False, False),
        "large_binary": (False, False), "decimal128(5, 2)": (True, True), "decimal128(18, 0)": (True, True),
        "decimal128(19, 0)": (False, False), "decimal128(38, 10)": (False, False),
    }  # fmt: skip
    two = KeyCodec((pa.int32(), pa.int32()))
    assert (two.exact, two.ordered) == (False, False)


def test_one_integer_is_its_own_code() -> None:
    assert codes(KeyCodec((pa.int64(),)), pa.array([5, -5, None, 2**63 - 1])) == [5, -5, None, 2**63 - 1]


# --- Spark's rules of equality


@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_every_nan_is_the_same_key_and_both_zeros_are(kind: pa.DataType) -> None:
    found = codes(KeyCodec((kind,)), pa.array([NAN, -NAN, OTHER_NAN, 0.0, -0.0, None], kind))
    assert found[0] == found[1] == found[2]
    assert found[3] == found[4] != found[0]
    assert found[5] is None


def test_a_float_equals_the_double_of_the_same_value_only() -> None:
    codec = KeyCodec((pa.float64(),))
    stream = codes(codec, pa.array([1.5, 0.1], pa.float32()))
    table = codes(codec, pa.array([1.5, 0.1], pa.float64()))
    assert stream[0] == table[0]
    assert stream[1] != table[1]


INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]


@pytest.mark.parametrize(("table", "stream"), list(itertools.product(INTEGERS, INTEGERS)), ids=str)
def test_integers_are_equal_whatever_their_width(table: pa.DataType, stream: pa.DataType) -> None:
    codec = KeyCodec((table,))
    codec.check([("key", stream)])
    assert codes(codec, pa.array([0, 5, None, 127], stream)) == codes(codec, pa.array([0, 5, None, 127], table))


def test_decimals_are_equal_by_value_whatever_their_scale() -> None:
    for table, stream in itertools.product([(5, 2), (18, 4), (19, 3), (38, 10)], [(6, 2), (10, 5), (20, 2), (38, 6)]):
        codec = KeyCodec((pa.decimal128(*table),))
        codec.check([("key", pa.decimal128(*stream))])
        values = [D("1.25"), D("-1.25"), D(0), None, D("999.5")]
        mine = codes(codec, pa.array(values, pa.decimal128(*table)))
        assert codes(codec, pa.array(values, pa.decimal128(*stream))) == mine
        assert len(set(mine)) == len(mine)


def test_a_decimal_that_the_tables_type_can_not_hold_matches_nothing_and_is_not_null() -> None:
    codec = KeyCodec((pa.decimal128(5, 1),))
    too_fine = codec.encode([pa.array([D("1.25"), D("1.20")], pa.decimal128(10, 2))])
    assert too_fine.valid.tolist() == [False, True]
    assert not too_fine.nulls.any()
    too_large = codec.encode([pa.array([D(10**37), D(7), None], pa.decimal128(38, 0))])
    assert too_large.valid.tolist() == [False, True, False]
    assert too_large.nulls.tolist() == [False, False, True]
    assert codes(codec, pa.array([D(7)], pa.decimal128(38, 0))) == codes(codec, pa.array([D(7)], pa.decimal128(5, 1)))


def test_times_are_equal_by_value_whatever_their_unit() -> None:
    codec = KeyCodec((pa.timestamp("us"),))
    noon = at(2024, 1, 1, 12)
    mine = codes(codec, pa.array([noon], pa.timestamp("us")))
    for unit in ("s", "ms", "us", "ns"):
        assert codes(codec, pa.array([noon], pa.timestamp(unit))) == mine


def test_a_time_that_the_tables_unit_can_not_hold_matches_nothing_and_is_not_null() -> None:
    fine = KeyCodec((pa.timestamp("us"),)).encode([pa.array([1001, 2000, None]).cast(pa.timestamp("ns"))])
    assert fine.valid.tolist() == [False, True, False]
    assert fine.nulls.tolist() == [False, False, True]
    assert fine.codes[1] == 2
    late = KeyCodec((pa.timestamp("ns"),)).encode([pa.array([2**60, 1]).cast(pa.timestamp("s"))])
    assert late.valid.tolist() == [False, True]
    long = KeyCodec((pa.duration("s"),)).encode([pa.array([1500, 2000]).cast(pa.duration("ms"))])
    assert long.valid.tolist() == [False, True]


def test_the_zone_of_a_timestamp_does_not_matter_but_having_one_does() -> None:
    codec = KeyCodec((pa.timestamp("us", "UTC"),))
    codec.check([("key", pa.timestamp("us", "Asia/Tokyo"))])
    moment = pa.array([10**15]).cast(pa.timestamp("us", "Asia/Tokyo"))
    assert codes(codec, moment) == [10**15]
    with pytest.raises(SchemaError):
        codec.check([("key", pa.timestamp("us"))])


def test_strings_and_binary_are_equal_whatever_the_width_of_their_offsets() -> None:
    words = ["", "a", None, "word of more than eight bytes"]
    codec = KeyCodec((pa.string(),))
    codec.check([("key", pa.large_string())])
    assert codes(codec, pa.array(words, pa.large_string())) == codes(codec, pa.array(words))


# --- composite keys


def test_a_composite_key_is_null_when_any_part_is() -> None:
    codec = KeyCodec((pa.int32(), pa.string()))
    encoded = codec.encode([pa.array([1, None, 1, None]), pa.array(["a", "a", None, None])])
    assert encoded.nulls.tolist() == [False, True, True, True]
    assert encoded.valid.tolist() == [True, False, False, False]


def test_a_composite_key_depends_on_the_order_of_its_parts() -> None:
    codec = KeyCodec((pa.int64(), pa.int64()))
    found = codes(codec, pa.array([1, 2, 0, 0]), pa.array([2, 1, 0, 1]))
    assert len(set(found)) == 4


def test_a_composite_key_takes_the_other_widths_of_its_parts() -> None:
    codec = KeyCodec((pa.int64(), pa.decimal128(20, 4), pa.float64()))
    codec.check([("a", pa.int8()), ("b", pa.decimal128(5, 1)), ("c", pa.float32())])
    wide = codes(codec, pa.array([3]), pa.array([D("1.5")], pa.decimal128(20, 4)), pa.array([-0.0]))
    assert wide == codes(
        codec, pa.array([3], pa.int8()), pa.array([D("1.5")], pa.decimal128(5, 1)), pa.array([0.0], pa.float32())
    )


def test_a_million_composite_keys_do_not_share_codes() -> None:
    side = np.repeat(np.arange(1000), 1000), np.tile(np.arange(1000), 1000)
    encoded = KeyCodec((pa.int64(), pa.int64())).encode([pa.array(side[0]), pa.array(side[1])])
    assert len(np.unique(encoded.codes)) == 1_000_000


# --- comparing the real columns


def test_equal_compares_row_by_row_by_the_same_rules() -> None:
    cases: list[tuple[pa.Array, pa.Array, list[bool]]] = [
        (
            pa.array(["a", "b", None, None]),
            pa.array(["a", "x", None, ""], pa.large_string()),
            [True, False, False, False],
        ),
        (pa.array([b"a", None]), pa.array([b"a", b""]), [True, False]),
        (pa.array([0, 1, None], pa.int8()), pa.array([None, 1, None], pa.int64()), [False, True, False]),
        (pa.array([NAN, -0.0, 0.1], pa.float32()), pa.array([NAN, 0.0, 0.1]), [True, True, False]),
        (pa.array([True, None]), pa.array([True, False]), [True, False]),
        (
            pa.array([D(10**20), D("1.5"), None], pa.decimal128(38, 1)),
            pa.array([D(1), D("1.5"), None], pa.decimal128(38, 30)),
            [False, True, False],
        ),
        (
            pa.array([1001, 2000, None]).cast(pa.timestamp("ns")),
            pa.array([1, 2, 0]).cast(pa.timestamp("us")),
            [False, True, False],
        ),
    ]
    for left, right, wanted in cases:
        assert KeyCodec((right.type,)).equal([left], [right]).tolist() == wanted, (left.type, right.type)


def test_equal_of_composite_keys_needs_all_parts() -> None:
    codec = KeyCodec((pa.string(), pa.int64()))
    left = [pa.array(["a", "a", "b", None]), pa.array([1, 2, 1, 1])]
    right = [pa.array(["a", "a", "a", None]), pa.array([1, 1, 1, 1])]
    assert codec.equal(left, right).tolist() == [True, False, False, False]


# --- errors


@pytest.mark.parametrize(
    "kind",
    [pa.uint64(), pa.float16(), pa.list_(pa.int8()), pa.struct([("a", pa.int8())]), pa.null(), pa.decimal256(50, 2),
     pa.time64("us"), pa.dictionary(pa.int8(), pa.string()), pa.date64()],
    ids=str,
)  # fmt: skip
def test_a_type_that_can_not_be_a_key_is_an_error_that_says_what_to_do(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"can't be a key; keys are integers, .*: cast the column first"):
        KeyCodec((kind,))


def test_types_that_can_not_be_compared_are_an_error_that_names_the_column() -> None:
    kinds = [pa.int64(), pa.bool_(), pa.float64(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
             pa.duration("us"), pa.decimal128(9, 2), pa.string(), pa.binary()]  # fmt: skip
    for table, stream in itertools.permutations(kinds, 2):
        with pytest.raises(SchemaError, match=r"column 'product' is .* give both the same type"):
            KeyCodec((table,)).check([("product", stream)])
