"""Runs the Python blocks of README, guide and production page as a reader would type them, in this folder, which is empty.

    python run_pages.py ROOT

Prints what the README prints, and writes the rows that the pages make to `rows.json`. Blocks below a comment
`<!-- not run: ... -->` are left out, and so is `mr.estimate`, which has a test of its own and needs no Spark.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

BLOCK = re.compile(r"(<!-- not run: [^\n]*-->\n)?```python\n(.*?)```", re.DOTALL)
DAY = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
PRODUCTS = {"product_id": [1, 3], "sku": ["A-17", "C-88"], "price": [2.5, 0.75]}
SALES = {"sale_id": [10, 11, 12], "product_id": [1, 3, 9], "customer": [7, 8, 7], "sold_at": [DAY] * 3, "ip": [5, 150, 900]}
TABLES: dict[str, dict[str, Any]] = {
    "products": PRODUCTS,
    "customers": {"id": [7, 8], "name": ["Ada", "Carl"]},
    "landing/sales": SALES,
    "lake/products": PRODUCTS,
    "lake/ranges": {"ip_from": [0, 100], "ip_to": [99, 199], "country": ["NZ", "DE"]},
    "lake/prices": {
        "product_id": [1],
        "price": [2.0],
        "valid_from": [DAY],
        "valid_to": pa.array([None], pa.timestamp("us", "UTC")),
    },
    "lake/stations": {"x": [1.0], "station": ["north"]},
    "lake/people": {"name": ["Jane Smith"], "person": [5]},
    "lake/rates": {"up_to": [5.0], "zone": ["A"], "fee": [3.5]},
}
FRAMES = {
    "clicks": ([(5,), (150,), (900,)], "ip long"),
    "readings": ([(1.25,), (9.0,)], "x double"),
    "orders": ([("Jane Smyth",), ("Bob",)], "name string"),
    "parcels": ([(4.0, "A"), (4.0, "B")], "weight double, zone string"),
}
KAFKA = ["cast(null AS binary) AS key", "encode(to_json(struct(*)), 'UTF-8') AS value", "sold_at AS timestamp"]


def blocks(page: Path) -> list[tuple[bool, str]]:
    """(is run, code) of every Python block."""
    return [(not left_out and "mr.estimate(" not in code, code) for left_out, code in BLOCK.findall(page.read_text())]


def run(page: Path, names: dict[str, Any]) -> dict[str, Any]:
    """The names that the blocks leave behind."""
    for number, (is_run, code) in enumerate(blocks(page), 1):
        if is_run:
            exec(compile(code, f"{page}, block {number}", "exec"), names)
            for query in names["spark"].streams.active:
                query.processAllAvailable()
                query.stop()
    return names


def rows(frame: Any) -> list[list[str]]:
    """The rows of a DataFrame; those of a stream when it has been read to its end."""
    if frame.isStreaming:
        frame.writeStream.format("memory").queryName("rows").trigger(availableNow=True).start().awaitTermination()
        frame = frame.sparkSession.table("rows")
    return sorted([str(value) for value in row] for row in frame.collect())


def main(root: Path) -> None:
    (_, first), *_ = blocks(root / "README.md")
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(first, "README.md, block 1", "exec"), names)
    mr, spark = names["mr"], names["spark"]
    for path, columns in TABLES.items():
        Path(path).mkdir(parents=True)
        pq.write_table(pa.table(columns), Path(path, "part-0.parquet"))
    sales = spark.readStream.schema(spark.read.parquet("landing/sales").schema).parquet("landing/sales")
    given = {name: spark.createDataFrame(data, schema) for name, (data, schema) in FRAMES.items()} | {"sales": sales}
    regions = mr.MasterTable.build(spark.read.parquet("lake/ranges"), key="ip_from", path="warehouse/regions")

    made: dict[str, Any] = {}
    (_, second), *_ = [block for block in blocks(root / "README.md") if "mr.Lookup(" in block[1]]
    exec(compile(second, "README.md", "exec"), looked_up := names | given | {"regions": regions})
    made["README"] = {"enriched": rows(looked_up["enriched"])}
    guide = run(root / "docs" / "guide.md", given | {"spark": spark, "__name__": "__main__"})
    shown = ("enriched", "clicked", "priced", "placed", "known", "rated")
    made["guide"] = {name: rows(guide[name]) for name in shown} | {"report": [[str(guide["report"].rows_in)]]}
    raw = {"raw": sales.selectExpr(*KAFKA), "spark": spark, "__name__": "__main__"}
    made["production"] = {"messages": rows(run(root / "docs" / "production.md", raw)["messages"])}
    spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()  # until the listener of the page has heard of the batch
    Path("rows.json").write_text(json.dumps(made))
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
