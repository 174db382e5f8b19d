"""Look-ups in mapped pages: the rows a dictionary would give, and counts that balance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.relations.stored_tables import newest, stored

from millrace.core.errors import DamagedTableError
from millrace.core.ledger import Ledger
from millrace.relations.build import build_table
from millrace.relations.key_lookup import InPlace
from millrace.relations.stored import StoredRelation

ROWS = 5000


def relation(folder: Path, keys: pa.Array, key: str | list[str] = "id", **options: object) -> StoredRelation:
    numbers = range(len(keys))
    names = pa.array([None if n % 11 == 0 else f"name {n}" * (n % 4) for n in numbers])
    table = pa.table(
        {"id": keys, "n": pa.array(numbers, pa.int32()), "name": names, "shop": pa.array([n % 3 for n in numbers])}
    )
    return stored(folder, table, key, shards=2, **options)


@pytest.mark.parametrize("layout", ["key", "hash"])
@pytest.mark.parametrize("columns", [["n", "name"], ["name", "id"], ["id"]])
def test_it_finds_what_a_dictionary_finds(tmp_path: Path, layout: str, columns: list[str]) -> None:
    keys = np.random.default_rng(3).permutation(3 * ROWS)[:ROWS]
    table = relation(tmp_path / "t", pa.array(keys), layout=layout)
    rows = {int(key): n for n, key in enumerate(keys)}
    wanted = [None if n % 17 == 0 else int(n * 7919 % (4 * ROWS)) - ROWS // 2 for n in range(9000)]
    answer = InPlace(table, columns).look_up([pa.array(wanted, pa.int64())])
    expected = [rows.get(key) if key is not None else None for key in wanted]
    met = sum(row is not None for row in expected)
    counts = answer.counts
    assert (counts.tuples_in, counts.matched, counts.matches, counts.removed) == (9000, met, met, 9000)
    assert counts.null_keys == sum(key is None for key in wanted)
    assert 0 < counts.pages_read <= table.pages
    Ledger().post(counts, waiting=0)
    batch = pa.RecordBatch.from_arrays(answer.columns, columns)
    batch.validate(full=True)
    assert answer.found.tolist() == [row is not None for row in expected]
    answers = {
        "n": expected,
        "id": [None if row is None else key for key, row in zip(wanted, expected, strict=True)],
        "name": [None if row is None or row % 11 == 0 else f"name {row}" * (row % 4) for row in expected],
    }
    assert batch.to_pydict() == {name: answers[name] for name in columns}


def test_texts_and_composite_keys_are_compared_after_their_codes(tmp_path: Path) -> None:
    keys = pa.array([f"key {n}" for n in range(ROWS)])
    table = relation(tmp_path / "t", keys, ["id", "shop"])
    assert not table.codec.exact
    wanted = pa.array([f"key {n}" for n in range(0, 2 * ROWS, 2)])
    shops = pa.array([n % 3 if n % 4 else 9 for n in range(0, 2 * ROWS, 2)])
    answer = InPlace(table, ["n"]).look_up([wanted, shops])
    expected = [n if n < ROWS and n % 4 else None for n in range(0, 2 * ROWS, 2)]
    assert answer.columns[0].to_pylist() == expected
    assert answer.counts.matched == sum(n is not None for n in expected)


def test_codes_that_collide_do_not_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = relation(tmp_path / "t", pa.array([f"key {n}" for n in range(ROWS)]))
    stranger, known = pa.array(["stranger"]), pa.array(["key 7"])
    encode = type(table.codec).encode
    monkeypatch.setattr(type(table.codec), "encode", lambda self, columns: encode(self, [known]))
    assert InPlace(table, []).look_up([known]).counts.matched == 1
    assert InPlace(table, []).look_up([stranger]).counts.matched == 0


def test_an_empty_table_matches_nothing(tmp_path: Path) -> None:
    table = relation(tmp_path / "t", pa.array([], pa.int64()))
    answer = InPlace(table, ["name", "n"]).look_up([pa.array([1, None, 3])])
    assert (answer.counts.matched, answer.counts.absent_keys, answer.counts.null_keys) == (0, 2, 1)
    assert [column.to_pylist() for column in answer.columns] == [[None] * 3] * 2


def test_a_damaged_page_is_never_a_miss(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    relation(folder, pa.array(range(ROWS))).close()
    (shard, *_) = sorted(folder.glob("v*/*.pages"))
    data = bytearray(shard.read_bytes())
    data[9000] ^= 1
    shard.write_bytes(data)
    table = newest(folder, "mmap")
    with pytest.raises(DamagedTableError, match=r"page 2 of .* is damaged"):
        InPlace(table, []).look_up([pa.array(range(ROWS))])


def test_a_table_of_keys_only_is_found_too(tmp_path: Path) -> None:
    table = stored(tmp_path / "t", pa.table({"id": pa.array(range(ROWS), pa.int64())}))
    answer = InPlace(table, ["id"]).look_up([pa.array([3, -1, ROWS - 1, ROWS])])
    assert answer.counts.matched == 2
    assert answer.columns[0].to_pylist() == [3, None, ROWS - 1, None]


def test_texts_of_any_length_find_room(tmp_path: Path) -> None:
    texts = pa.array(["x" * (n * 37 % 5000) for n in range(ROWS)])
    nested = pa.array([[n] * (n % 3) for n in range(ROWS)])
    build = pa.table({"id": pa.array(range(ROWS)), "text": texts, "list": nested})
    table = StoredRelation(tmp_path / "t", build_table(tmp_path / "t", build, "id", page_bytes=16384), "mmap")
    place = InPlace(table, ["list", "text", "id"])
    for wanted in (list(range(40)), list(range(-5, ROWS, 3)), [4999, None, 4999]):
        keys = [key if key is not None and key >= 0 else None for key in wanted]
        lists, found, ids = place.look_up([pa.array(wanted, pa.int64())]).columns
        assert found.to_pylist() == [None if key is None else texts[key].as_py() for key in keys]
        assert lists.to_pylist() == [None if key is None else nested[key].as_py() for key in keys]
        assert ids.to_pylist() == keys


def test_pages_are_counted_once_a_look_up(tmp_path: Path) -> None:
    table = relation(tmp_path / "t", pa.array(range(ROWS)))
    place = InPlace(table, ["n"])
    assert place.look_up([pa.array([0, ROWS - 1, 0, 1])]).counts.pages_read == 2
    assert place.look_up([pa.array([0, 0, -7])]).counts.pages_read == 1
    assert place.look_up([pa.array(range(ROWS))]).counts.pages_read == table.pages


def test_keys_that_lie_unevenly_are_found_all_the_same(tmp_path: Path) -> None:
    clumps = np.concatenate(
        [start + np.arange(ROWS // 4) * step for start, step in ((0, 1), (10**6, 7), (10**12, 1), (2**62, 9))]
    )
    table = relation(tmp_path / "t", pa.array(clumps))
    wanted = np.concatenate([clumps, clumps + 1, [-5, 2**61, 2**63 - 1]])
    expected = {int(key): n for n, key in enumerate(clumps)}
    (numbers,) = InPlace(table, ["n"]).look_up([pa.array(wanted)]).columns
    assert numbers.to_pylist() == [expected.get(int(key)) for key in wanted]
