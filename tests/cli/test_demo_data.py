"""The demo's products and sales."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from millrace.cli.demo_data import burst_sizes, land, sales_bursts, write_products


def test_products_have_the_columns_of_the_paper_and_unique_surrogate_keys(tmp_path: Path) -> None:
    size = write_products(tmp_path / "products", 1_000, seed=3)
    table = pq.read_table(tmp_path / "products")
    assert size > 0
    assert table.schema.names == ["product_id", "surrogate_key", "product_name", "sale_price", "supplier_id"]
    assert table["product_id"].to_pylist() == list(range(1, 1_001))
    assert sorted(table["surrogate_key"].to_pylist()) == list(range(1, 1_001))
    assert table.schema.field("sale_price").type == pa.decimal128(7, 2)
    assert 0.5 <= float(pc.min(table["sale_price"]).as_py()) <= float(pc.max(table["sale_price"]).as_py()) < 1_000
    assert len(set(table["product_name"].to_pylist())) == 1_000


@pytest.mark.parametrize("sales", [1, 7, 100_000, 1_000_000])
def test_bursts_differ_in_size_and_add_up_to_the_sales(sales: int) -> None:
    sizes = burst_sizes(sales, seed=1)
    assert sizes.sum() == sales
    assert (sizes >= 0).all()
    if sales >= 1_000_000:
        assert sizes.max() > 2 * sizes.min()


def test_sales_are_the_same_for_the_same_seed_and_some_match_nothing() -> None:
    first, second = (pa.concat_tables(sales_bursts(1_000, 60_000, 1.0, seed=5)) for _ in range(2))
    assert first.equals(second)
    assert first.num_rows == 60_000
    assert first["sale_id"].to_pylist() == list(range(60_000))
    keys = first["product_id"].drop_null().to_numpy()
    assert 60 < first["product_id"].null_count < 200
    assert 400 < (keys > 1_000).sum() < 800
    assert (np.diff(first["sale_time"].cast(pa.int64()).to_numpy()) >= 0).all()


def test_a_file_has_its_name_only_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(table: pa.Table, path: Path) -> None:
        path.write_bytes(b"PAR1")
        raise OSError("disk full")

    monkeypatch.setattr(pq, "write_table", half)
    with pytest.raises(OSError, match="disk full"):
        land(pa.table({"a": [1]}), tmp_path / "sales.parquet")
    assert all(path.name.startswith(".") for path in tmp_path.iterdir())
