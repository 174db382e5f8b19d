"""The budget holds for the process itself: own memory of Python workers, and a hard limit that nothing may pass."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import millrace as mr
from millrace.bench.memory import WORKER_TAG, MemorySampler, status_bytes
from millrace.relations.build import build_table

pytestmark = [pytest.mark.spark, pytest.mark.slow]

MEMORY_BYTES = 8 << 20
CONSTANT_BYTES = 48 << 20  # beside the budget: compiled kernels (25 MiB), Arrow batches on their way in and out
KEYS = 1_600_000
WIDTH = 96
STREAM_ROWS = 600_000

SITE = """
import os, resource
limit = os.environ.get("MILLRACE_TEST_DATA_LIMIT")
if limit:
    resource.setrlimit(resource.RLIMIT_DATA, (int(limit), int(limit)))
"""


def _rows(count: int, copies: int = 1) -> pa.Table:
    """Rows of about 110 bytes that do not compress, made without a Python loop."""
    data = np.random.default_rng(1).integers(32, 127, count * WIDTH, np.uint8)
    offsets = np.arange(count + 1, dtype=np.int32) * WIDTH
    text = pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pa.table({"id": np.arange(count) // copies, "text": text})


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More than twenty times the budget."""
    path = tmp_path_factory.mktemp("big") / "table"
    version = build_table(path, _rows(KEYS), "id", shards=4)
    assert version.bytes > 20 * MEMORY_BYTES
    return path


@pytest.fixture(scope="module")
def big_many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As big, with 25 rows to a key."""
    path = tmp_path_factory.mktemp("many") / "table"
    assert build_table(path, _rows(KEYS, 25), "id", shards=4).bytes > 20 * MEMORY_BYTES
    return path


@pytest.fixture(scope="module")
def little(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("little") / "table"
    build_table(path, _rows(1000), "id")
    return path


@contextmanager
def fresh_workers(spark: SparkSession, **environment: str) -> Iterator[MemorySampler]:
    """Workers that only this block uses, and their peaks."""
    tag = uuid.uuid4().hex
    pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    changed = {WORKER_TAG: tag, **environment}
    before = {name: spark.sparkContext.environment.get(name) for name in changed}
    spark.sparkContext.environment.update(changed)
    try:
        with MemorySampler(pid, tag) as sampler:
            yield sampler
    finally:
        for name, value in before.items():
            if value is None:
                spark.sparkContext.environment.pop(name)
            else:
                spark.sparkContext.environment[name] = value


def _stream(spark: SparkSession, keys: int, rows: int = STREAM_ROWS) -> DataFrame:
    """Random keys over the whole table and a tenth more, so that every page is wanted and some keys are absent."""
    return spark.range(0, rows, 1, 2).select(
        F.pmod(F.xxhash64("id"), F.lit(keys * 11 // 10)).alias("id"), F.col("id").alias("n")
    )


def _run(
    spark: SparkSession, path: Path, keys: int, *, rows: int = STREAM_ROWS, memory: int = MEMORY_BYTES, **options: Any
) -> list[Any]:
    enriched = mr.enrich(_stream(spark, keys, rows), mr.MasterTable.open(path), "id", how="left", memory=memory, **options)
    summed = enriched.agg(F.count("*"), F.count("text"), F.sum(F.xxhash64("n", "id", "text").cast("decimal(38,0)")))
    return list(summed.collect()[0])


def _expected(spark: SparkSession, path: Path, keys: int, folder: Path, rows: int = STREAM_ROWS) -> list[Any]:
    """The same sums by Spark's own join with the same rows from Parquet."""
    import pyarrow.parquet as pq

    relation = mr.MasterTable.open(path).relation("mmap")
    file = folder / "rows.parquet"
    with pq.ParquetWriter(file, relation.schema) as writer:
        for first in range(0, relation.pages, 200):
            run = relation.read(first, min(200, relation.pages - first))
            writer.write_batch(run.take(np.arange(run.rows), relation.schema.names))
    relation.close()
    joined = _stream(spark, keys, rows).join(spark.read.parquet(str(file)), "id", "left")
    summed = joined.agg(F.count("*"), F.count("text"), F.sum(F.xxhash64("n", "id", "text").cast("decimal(38,0)")))
    return list(summed.collect()[0])


def _base(spark: SparkSession) -> int:
    """Own memory of a worker that has the libraries loaded and passes the same rows through, without a join."""

    def identity(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        import millrace.spark.task  # noqa: F401

        for ids, _ in batches:
            text = pa.array([b"x" * WIDTH], pa.binary()).take(pa.array(np.zeros(len(ids), np.int64))).cast(pa.string())
            yield pa.StructArray.from_arrays([ids, text], ["id", "text"])

    with fresh_workers(spark) as sampler:
        passed = F.arrow_udf(identity, "id long, text string")("id", "n")
        _stream(spark, KEYS).select(passed.alias("p")).agg(F.count("p.text")).collect()
    assert sampler.worker_anon_bytes is not None
    return sampler.worker_anon_bytes


def _check(
    spark: SparkSession, path: Path, keys: int, folder: Path, memory_bytes: int, rows: int = STREAM_ROWS, **options: Any
) -> None:
    expected, base = _expected(spark, path, keys, folder, rows), _base(spark)
    _run(spark, path, keys, rows=rows, memory=memory_bytes, **options)  # compiles kernels, which then stay in files
    with fresh_workers(spark) as used:
        assert _run(spark, path, keys, rows=rows, memory=memory_bytes, **options) == expected
    assert used.worker_anon_bytes is not None
    print(f"base {base >> 20} MiB, used {used.worker_anon_bytes >> 20} MiB, budget {memory_bytes >> 20} MiB")
    assert used.worker_anon_bytes <= base + memory_bytes + CONSTANT_BYTES


@pytest.mark.parametrize("read", ["mmap", "direct", "buffered"])
@pytest.mark.parametrize("memory_bytes", [MEMORY_BYTES, 64 << 20])
def test_own_memory_of_workers_stays_inside_the_budget_and_a_constant(
    spark: SparkSession, big: Path, tmp_path: Path, read: str, memory_bytes: int
) -> None:
    _check(spark, big, KEYS, tmp_path, memory_bytes, read=read)


@pytest.mark.parametrize(
    "strategy",
    ["inlj", "meshjoin", "rmeshjoin", "hybridjoin", "xhybridjoin", "cinlj", "cmeshjoin", "chybridjoin", "csweepjoin"],
)
def test_own_memory_stays_inside_the_budget_with_every_strategy(
    spark: SparkSession, big: Path, tmp_path: Path, strategy: str
) -> None:
    _check(spark, big, KEYS, tmp_path, 32 << 20, rows=80_000, strategy=strategy, read="buffered")


def test_own_memory_stays_inside_the_budget_with_many_matches_to_a_row(
    spark: SparkSession, big_many: Path, tmp_path: Path
) -> None:
    _check(spark, big_many, KEYS // 25, tmp_path, MEMORY_BYTES)


def test_own_memory_stays_inside_the_budget_with_one_hot_key(spark: SparkSession, tmp_path: Path) -> None:
    rows = _rows(400_000)
    keys = np.where(np.arange(400_000) < 100_000, 0, np.arange(400_000))
    path = tmp_path / "hot"
    assert build_table(path, rows.set_column(0, "id", pa.array(keys)), "id").longest_run == 100_000
    base = _base(spark)
    stream = spark.range(0, 5000, 1, 1).select(F.when(F.col("id") % 200 == 0, 0).otherwise(F.col("id") + 200_000).alias("id"))
    with fresh_workers(spark) as used:
        found = mr.enrich(stream, mr.MasterTable.open(path), "id", memory=MEMORY_BYTES).agg(F.count("text")).collect()
    assert found[0][0] == 25 * 100_000 + 4975
    assert used.worker_anon_bytes is not None
    print(f"base {base >> 20} MiB, used {used.worker_anon_bytes >> 20} MiB")
    assert used.worker_anon_bytes <= base + MEMORY_BYTES + CONSTANT_BYTES


LONG = 400_000  # bytes of the one row that is long, or of several together
TAIL_BYTES = 96 << 20  # beside the budget: what goes back to Spark at a time, and Spark's own copies of it


def _with_a_long_row(rows: int, copies: int = 1) -> pa.Table:
    """Short rows, and key 7 with a long one, or several."""
    texts = pa.array(["x" * 20]).take(pa.array(np.zeros(rows, np.int64)))
    long = pa.table({"id": np.full(copies, 7), "text": ["y" * (LONG // copies)] * copies})
    short = pa.table({"id": np.arange(rows) + 8, "text": texts})
    return pa.concat_tables([long, short]).combine_chunks()


def _asked_often(spark: SparkSession, rows: int) -> DataFrame:
    """A stream that wants key 7 every other time."""
    return spark.range(0, rows, 1, 2).select(F.when(F.col("id") % 2 == 0, 7).otherwise(F.col("id") + 8).alias("id"))


def _check_long(spark: SparkSession, path: Path, memory: int, matches: int, **options: Any) -> None:
    base = _base(spark)
    rows = 2000
    with fresh_workers(spark) as used:
        found = mr.enrich(_asked_often(spark, rows), mr.MasterTable.open(path), "id", memory=memory, **options)
        counted = found.agg(F.count("*"), F.sum(F.length("text")), F.count_distinct(F.md5("text"))).collect()[0]
    assert tuple(counted) == (rows // 2 * (matches + 1), rows // 2 * (LONG + 20), 2)
    assert used.worker_anon_bytes is not None
    print(f"base {base >> 20} MiB, used {used.worker_anon_bytes >> 20} MiB, budget {memory >> 20} MiB")
    assert used.worker_anon_bytes <= base + memory + TAIL_BYTES


@pytest.mark.parametrize(
    ("read", "strategy"),
    [("mmap", "auto"), ("direct", "auto"), ("buffered", "inlj"), ("mmap", "meshjoin"), ("direct", "hybridjoin")],
)
def test_a_long_row_that_many_ask_for_stays_inside_the_budget(
    spark: SparkSession, tmp_path: Path, read: str, strategy: str
) -> None:
    build_table(tmp_path / "long", _with_a_long_row(100_000), "id")
    _check_long(spark, tmp_path / "long", 64 << 20, 1, read=read, strategy=strategy)


@pytest.mark.parametrize("ordered", [False, True])
def test_long_rows_of_one_key_stay_inside_the_budget(spark: SparkSession, tmp_path: Path, ordered: bool) -> None:
    build_table(tmp_path / "long", _with_a_long_row(100_000, 10), "id")
    _check_long(spark, tmp_path / "long", 64 << 20, 10, ordered=ordered)
    build_table(tmp_path / "rows", _with_a_long_row(100_000, 20), "id")
    _check_long(spark, tmp_path / "rows", 64 << 20, 20, ordered=ordered)


def test_rows_of_a_parquet_file_that_grow_stay_inside_the_budget(spark: SparkSession, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    rows = 30_000
    texts = pa.array(["z" * (i // 2) for i in range(rows)])
    (tmp_path / "lake").mkdir()
    pq.write_table(pa.table({"id": np.arange(rows), "text": texts}), tmp_path / "lake" / "rows.parquet", row_group_size=20_000)
    base = _base(spark)
    stream = spark.range(0, 3000, 1, 2).select((F.col("id") * 10).alias("id"))
    with fresh_workers(spark) as used:
        found = mr.enrich(stream, mr.ParquetTable(tmp_path / "lake"), "id", memory=64 << 20)
        assert found.agg(F.count("*"), F.sum(F.length("text"))).collect()[0][1] == sum(i * 5 for i in range(3000))
    assert used.worker_anon_bytes is not None
    print(f"base {base >> 20} MiB, used {used.worker_anon_bytes >> 20} MiB")
    assert used.worker_anon_bytes <= base + (64 << 20) + TAIL_BYTES


def test_rows_in_order_need_no_more_memory_however_many_a_key_has(spark: SparkSession, tmp_path: Path) -> None:
    copies = 100_000
    keys = np.where(np.arange(300_000) < copies, 0, np.arange(300_000))
    build_table(tmp_path / "hot", _rows(300_000).set_column(0, "id", pa.array(keys)), "id")
    stream = spark.range(0, 2000, 1, 1).select(
        F.when(F.col("id") % 100 == 0, 0).otherwise(F.col("id") + 150_000).alias("id"), F.col("id").alias("n")
    )
    base = _base(spark)
    with fresh_workers(spark) as used:
        found = mr.enrich(stream, mr.MasterTable.open(tmp_path / "hot"), "id", memory=32 << 20, ordered=True)
        numbered = found.select("n", F.monotonically_increasing_id().alias("place")).selectExpr(
            "n < lag(n) over (order by place) as back", "n"
        )
        assert numbered.agg(F.count("*"), F.count_if("back")).collect()[0] == (20 * copies + 1980, 0)
    assert used.worker_anon_bytes is not None
    print(f"base {base >> 20} MiB, used {used.worker_anon_bytes >> 20} MiB")
    assert used.worker_anon_bytes <= base + (32 << 20) + CONSTANT_BYTES


@pytest.mark.parametrize("read", ["auto", "direct", "buffered"])
def test_everything_works_under_a_hard_limit(spark: SparkSession, big: Path, little: Path, tmp_path: Path, read: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    needs = _data_bytes(spark, little, read)
    limit = needs + MEMORY_BYTES + CONSTANT_BYTES  # the table is far bigger than what that leaves
    with fresh_workers(spark, PYTHONPATH=str(tmp_path), MILLRACE_TEST_DATA_LIMIT=str(limit)):
        assert _limit(spark) == limit
        found = _run(spark, big, KEYS, read=read)
    assert found == _expected(spark, big, KEYS, tmp_path)


def test_long_rows_work_under_a_hard_limit(spark: SparkSession, little: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(SITE)
    build_table(tmp_path / "long", _with_a_long_row(100_000, 10), "id")
    memory, rows = 32 << 20, 2000
    limit = _data_bytes(spark, little, "auto") + memory + TAIL_BYTES  # what is put out is four times that
    with fresh_workers(spark, PYTHONPATH=str(tmp_path), MILLRACE_TEST_DATA_LIMIT=str(limit)):
        for options in ({}, {"strategy": "hybridjoin", "read": "buffered"}):
            found = mr.enrich(_asked_often(spark, rows), mr.MasterTable.open(tmp_path / "long"), "id", memory=memory, **options)
            assert found.agg(F.sum(F.length("text"))).collect()[0][0] == rows // 2 * (LONG + 20)


def _data_bytes(spark: SparkSession, path: Path, read: str) -> int:
    """Private memory that a worker reserves when the table is small: libraries, kernels, Spark's own buffers."""
    with fresh_workers(spark) as sampler:
        _run(spark, path, 1000, read=read)
        return max(status_bytes(pid, "VmData") or 0 for pid in sampler.workers)


def _limit(spark: SparkSession) -> int:
    """What the workers of this block are held to."""

    def ask(batches: Any) -> Any:
        import resource

        for _ in batches:
            yield pa.RecordBatch.from_arrays([pa.array([resource.getrlimit(resource.RLIMIT_DATA)[0]])], ["limit"])

    return int(spark.range(1).mapInArrow(ask, "limit long").collect()[0][0])
