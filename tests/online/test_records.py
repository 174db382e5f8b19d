"""Rows become records and records become rows again."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from tests.online.tables import join_of

from millrace.core.errors import SchemaError
from millrace.core.keys import KeyCodec
from millrace.online.pair_functions import Pairs
from millrace.online.protocol import finished
from millrace.online.question.expressions import Names
from millrace.online.question.recorder import Recorder
from millrace.online.question.records import Records, same_words
from millrace.online.question.sides import Side, Word
from millrace.online.storage.inputs import BatchInput


def batch() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "k": pa.array([5, None, 7, 5], pa.int32()),
            "d": pa.array([1.5, 2.0, None, -0.0]),
            "i": pa.array([1, 2, -3, None], pa.int16()),
            "s": pa.array(["", "x", "wörter", None]),
            "t": pa.array([datetime.date(2024, 1, d) for d in (1, 2, 3, 4)]),
            "b": pa.array([True, None, False, True]),
            "f": pa.array([0.5, None, -1.25, 3.0], pa.float32()),
        }
    )


def _words() -> list[Word]:
    """d and i, and whether i is there."""
    names = Names((batch().schema, batch().schema), [("k", "k")])
    d, i = (names.parse(f"left.{name}", "test") for name in "di")
    return [Word(d, (d,)), Word(i, (i,)), Word(None, (i,))]


def test_columns_come_back_as_they_were_without_rows_that_have_no_key() -> None:
    rows = batch()
    side = Records(KeyCodec((pa.int32(),)), ["k"], columns=list(rows.schema))
    assert side.decode(side.encode(rows)).equals(rows.take(pa.array([0, 2, 3])))


def test_a_slice_is_encoded_like_a_copy_of_it() -> None:
    rows = batch()
    side = Side(0, KeyCodec((pa.int32(),)), ["k"], words=_words(), columns=list(rows.schema))
    whole, _ = Recorder(side).numbered(rows)
    np.testing.assert_array_equal(Recorder(side).numbered(rows.slice(2, 2))[0], whole[1:])


def test_nulls_are_nought_and_not_present() -> None:
    side = Side(0, KeyCodec((pa.int32(),)), ["k"], words=_words())
    values = Recorder(side).numbered(batch())[0].view(np.float64)[:, 1:]
    assert values.tolist() == [[1.5, 1.0, 1.0], [0.0, -3.0, 1.0], [0.0, 0.0, 0.0]]


def test_a_text_that_is_too_long_says_what_to_give() -> None:
    side = Records(KeyCodec((pa.int32(),)), ["k"], columns=[pa.field("s", pa.string())], text_bytes=3)
    with pytest.raises(SchemaError, match="give text_bytes=7 or more"):
        side.encode(batch())


def test_what_has_no_fixed_width_and_is_no_text_can_not_be_part_of_a_record() -> None:
    with pytest.raises(SchemaError, match="can't be part of a record"):
        Records(KeyCodec((pa.int32(),)), ["k"], columns=[pa.field("l", pa.list_(pa.int8()))])


@pytest.mark.parametrize("name", ["grace", "prjoin", "ripple", "sms"])
def test_keys_of_texts_join_where_the_texts_are_equal(name: str) -> None:
    random = np.random.default_rng(1)
    words = np.array(["", "a", "b", "ab", "ba", "Ω", "aΩ"])
    texts = [words[random.integers(0, 7, rows)] for rows in (3000, 2000)]
    numbers = [random.integers(0, 3, rows) for rows in (3000, 2000)]
    codec = KeyCodec((pa.string(), pa.int64()))
    fields = [pa.field("t", pa.string()), pa.field("n", pa.int64())]
    described = Side(0, codec, ["t", "n"], columns=fields, text_bytes=8)
    side = described.records
    same = same_words(side, side, [("t", "t"), ("n", "n")])

    def evaluate(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, None]:
        rows = side.decode(a)
        lengths = np.array([len(text) for text in rows.column("t").to_pylist()], np.float64)
        return np.stack([np.ones(len(a)), lengths], axis=1), None

    inputs = []
    for text, number in zip(texts, numbers, strict=True):
        table = pa.table({"t": text.tolist(), "n": number})
        inputs.append(
            BatchInput(iter(table.to_batches(max_chunksize=200)), Recorder(described).numbered, table.num_rows, side.width)
        )
    end = finished(join_of(name, *inputs, Pairs(evaluate, 2, 1, *same), memory=1 << 18))
    keys = [np.array([f"{t}|{n}" for t, n in zip(*pair, strict=True)]) for pair in zip(texts, numbers, strict=True)]
    count = {key: int((keys[1] == key).sum()) for key in np.unique(keys[0])}
    expected = sum(count[key] for key in keys[0]), sum(count[key] * len(key.split("|")[0]) for key in keys[0])
    assert tuple(end.pieces.answer()[0]) == expected
