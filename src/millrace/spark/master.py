"""`MasterTable`: a table in a folder of pages, built by a Spark job and opened anywhere."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, LongType, StringType, StructField, StructType

from millrace.core.budget import format_bytes, parse_bytes
from millrace.core.errors import MillraceError, TableError, interrupted
from millrace.core.keys import KeyCodec, family
from millrace.core.wording import counted
from millrace.relations.build import PAGE_BYTES, BuildPlan, check_counts, discard, finish, prepare
from millrace.relations.files import ReadMode
from millrace.relations.folder import TableVersion, left_out, now_us, read_versions, table_exists, table_folder, version_at
from millrace.relations.frequency import count_column
from millrace.relations.layout import CODE_COLUMN
from millrace.relations.shard import ShardInfo, rows_per_page, write_shard
from millrace.relations.stored import StoredRelation
from millrace.spark.buildchecks import check_batch, check_columns, check_progress, check_shards, key_fields
from millrace.spark.failures import task_error
from millrace.spark.localdir import LocalDir
from millrace.spark.pins import batch_identity, pinned_version
from millrace.spark.planned import PlannedTable, unreachable
from millrace.spark.progress import BuildProgress, note_rows
from millrace.spark.registry import open_relation, read_choice
from millrace.spark.schema import arrow_schema, arrow_type, check_key_types, column_field
from millrace.spark.workers import local_context, use_this_python

_COUNT = "__millrace_count"
_MOST_COUNT = 1e21
_SAMPLE_ROWS = 2_000  # measured to plan pages
_SIZE = StructType([StructField("bytes", DoubleType())])
_REPORT = StructType([StructField("shard", StringType()), StructField("partition", LongType())])


@dataclass(frozen=True, repr=False)
class Description:
    """What is in a table folder, for people; `str()` of it is a short text."""

    path: str
    versions: int
    version: TableVersion

    def __str__(self) -> str:
        version = self.version
        lines = [
            f"table {self.path}, version {version.number} ({counted(self.versions, 'version')} kept)",
            f"{counted(version.rows, 'row')} on {counted(version.pages, 'page')} "
            f"of at most {format_bytes(version.page_bytes)}, {format_bytes(version.bytes)} "
            f"in {counted(len(version.shards), 'shard')}",
            f"key {', '.join(version.key)} ({'unique' if version.unique else 'with duplicates'}), layout {version.layout}; "
            f"{left_out(version.null_keys)}",
            *self._index,
            f"columns {', '.join(f'{field.name} {field.type}' for field in version.schema)}",
        ]
        return "\n  ".join(lines)

    __repr__ = __str__

    @property
    def _index(self) -> list[str]:
        index = self.version.key_index
        if index is None:
            return []
        blocks = counted(index.blocks + index.hot_blocks, "block")
        return [f"index of {counted(index.keys, 'key')} in {blocks}, {format_bytes(index.bytes)}"]


class MasterTable:
    """A table for `enrich`: a folder that is built once, and built again when the data changes.

    Versions are immutable. A build writes beside the version in use and publishes by one atomic rename. A micro-batch that runs
    meanwhile goes on with its version, and a build that fails leaves the table as it was.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(table_folder(path))
        read_versions(Path(self.path))  # an error now where there is no table

    def __repr__(self) -> str:
        return f"MasterTable({self.path!r})"

    @staticmethod
    def exists(path: str | Path) -> bool:
        """Whether there is a table in this folder. A first build that still runs, or was killed, has made no table yet."""
        return table_exists(table_folder(path))

    @classmethod
    def open(cls, path: str | Path) -> MasterTable:
        """Open a table that was built before. Checks that all files are there and have the right sizes."""
        table = cls(path)
        table.relation("buffered").close()
        return table

    @classmethod
    def build(
        cls,
        data: DataFrame,
        key: str | Sequence[str],
        path: str | Path,
        *,
        layout: str = "auto",
        page_bytes: int | str = PAGE_BYTES,
        shards: int | None = None,
        counts: DataFrame | None = None,
        progress: bool | None = None,
    ) -> MasterTable:
        """Write `data` as a new version of the table in folder `path`, as a Spark job.

        `layout="key"` sorts by the key, so that neighbours share pages. `"hash"` spreads keys evenly and serves every key
        type. `"auto"` takes `key` where possible. `"frequency"` puts rows first whose keys are wanted most. It needs `counts`:
        the key columns and a number, such as `sales.groupBy("product_id").count()`. Keys without a count count as 0.
        `path` must be visible under the same name to driver and executors.
        `progress` shows rows, time left and bytes on disk on stderr. Default: only in a terminal or a notebook.
        """
        check_batch(data, "data")
        folder = table_folder(path)
        fields = key_fields(data, key)
        check_columns(data)
        check_shards(shards)
        check_progress(progress)
        use_this_python(data.sparkSession)
        check_counts(layout, counts)
        wanted = _counts_by_key(counts, fields) if counts is not None else None
        schema = arrow_schema(data.schema)
        plan = prepare(folder, schema, [field.name for field in fields], layout, parse_bytes(page_bytes))
        try:
            with BuildProgress(plan.version_folder, data.sparkSession, progress) as shown:
                version = _write(plan, data, shards or _default_shards(data), wanted, shown.on)
                shown.built(version.rows, version.bytes)
        except BaseException as failed:
            discard(plan)
            if isinstance(failed, MillraceError) or not isinstance(failed, Exception):
                raise
            if interrupted(failed):
                raise KeyboardInterrupt from failed
            raise TableError(_explain(failed, folder)) from failed
        while now_us() < version.effective_at_us:  # so that whoever built it sees it from here on
            time.sleep(0.05)
        return cls(folder)

    @property
    def latest(self) -> TableVersion:
        """The version that a batch sees now."""
        return version_at(self.versions, now_us())

    @property
    def versions(self) -> list[TableVersion]:
        """All versions that are there now. Other programs may build new versions while this table is in use."""
        return read_versions(Path(self.path))

    def describe(self) -> Description:
        """Rows, pages, bytes, key, layout, versions."""
        versions = self.versions
        return Description(self.path, len(versions), version_at(versions, now_us()))

    def planned(self, stream: DataFrame, read: str) -> PlannedTable:
        """For `enrich`: the version follows from the time of each batch, or is pinned where this time is not known."""
        versions = self.versions
        version, number = version_at(versions, now_us()), None
        identity = None if stream.isStreaming else batch_identity(stream.sparkSession)
        if identity is not None:
            number = pinned_version(Path(self.path), identity, version.number)
            version = next((one for one in versions if one.number == number), version)
        first, otherwise = read_choice(version, read, workers_here=local_context(stream.sparkSession) is not None)
        local = LocalDir.of(stream.sparkSession)
        opened = partial(open_relation, self.path, read=first, otherwise=otherwise, number=number, local=local)
        name, key = Path(self.path).name, version.key
        return PlannedTable(name, self.path, version.schema, key, version.longest_run, "sweepjoin", opened, version.null_keys)

    def relation(self, mode: ReadMode = "mmap", version: TableVersion | None = None) -> StoredRelation:
        """The table as a relation, for joins in this process."""
        return StoredRelation(Path(self.path), version or self.latest, mode)


def _default_shards(data: DataFrame) -> int:
    return max(8, 2 * int(data.sparkSession.conf.get("spark.default.parallelism", "0") or 0))


def _counts_by_key(counts: DataFrame, key: list[StructField]) -> DataFrame:
    """The table of counts, checked: the key columns under their names in the table, and the count. Counts add up to the same
    number in any order, so that a task that is tried again finds the same order of rows."""
    check_batch(counts, "counts")
    fields = [column_field(counts, field.name, "table of counts") for field in key]
    check_key_types(fields)
    column = count_column(arrow_schema(counts.schema), [field.name for field in fields])
    KeyCodec(tuple(arrow_type(field.name, field.dataType) for field in key)).check(
        [(field.name, arrow_type(field.name, field.dataType)) for field in fields]
    )
    number = F.nanvl(F.col(_quoted(column)).cast("double"), F.lit(0.0))
    number = F.greatest(F.least(number, F.lit(_MOST_COUNT)), F.lit(-_MOST_COUNT)).cast("decimal(28,6)")
    mine = [F.col(_quoted(theirs.name)).alias(field.name) for theirs, field in zip(fields, key, strict=True)]
    return counts.select(*mine, number.alias(_COUNT))


def _with_counts(plan: BuildPlan, coded: DataFrame, counts: DataFrame) -> DataFrame:
    """Rows with the count of their code as a last column."""
    code = _code_expression(plan, [F.col(_quoted(name)) for name in plan.key])
    known = counts.where(" AND ".join(f"{_quoted(name)} IS NOT NULL" for name in plan.key))
    by_code = known.select(code.alias(CODE_COLUMN), _COUNT).groupBy(CODE_COLUMN).agg(F.sum(_COUNT).alias(_COUNT))
    joined = coded.join(by_code, CODE_COLUMN, "left")
    return joined.withColumn(_COUNT, F.coalesce(F.col(_COUNT), F.lit(0)))


def _write(plan: BuildPlan, data: DataFrame, shards: int, counts: DataFrame | None, noted: bool) -> TableVersion:
    """The job: codes, sort, one shard per partition; then the driver puts the collected shards together."""
    key = [F.col(_quoted(name)) for name in plan.key]
    null_free = data.where(" AND ".join(f"{_quoted(name)} IS NOT NULL" for name in plan.key))  # dropna would take NaN too
    plain = [F.col(_quoted(name)).alias(f"c{i}") for i, name in enumerate(data.columns)]  # mapInArrow takes no odd names
    coded = null_free.select(_code_expression(plan, key).alias(CODE_COLUMN), *plain)
    page_rows = _rows_per_page(plan, data)
    write = _shard_writer(plan, page_rows, noted)
    order = [F.col(CODE_COLUMN)]
    if counts is not None:
        coded, order = _with_counts(plan, coded, counts), [F.col(_COUNT).desc(), F.col(CODE_COLUMN)]
    laid = coded.repartitionByRange(shards, *order).sortWithinPartitions(*order)
    job = (laid.drop(_COUNT) if counts is not None else laid).mapInArrow(write, _REPORT)
    reports = sorted(job.collect(), key=lambda row: row["partition"])
    infos = [ShardInfo(**json.loads(row["shard"])) for row in reports]
    if not infos:
        empty = plan.version_folder / "shard-empty.pages"
        infos = [write_shard(empty, plan.stored_schema, plan.code_column, page_rows, [], by_code=plan.by_code)]
    if plan.by_code:
        infos.sort(key=lambda info: (info.pages > 0, info.first))
    return finish(plan, infos, page_rows, _null_keys(plan, data))


def _null_keys(plan: BuildPlan, data: DataFrame) -> int:
    """Rows that were left out because a part of their key is null."""
    if not any(plan.schema.field(name).nullable for name in plan.key):
        return 0
    return data.where(" OR ".join(f"{_quoted(name)} IS NULL" for name in plan.key)).count()


def _code_expression(plan: BuildPlan, key: list[Any]) -> Any:
    """The code as a column: by Spark itself where the key is its own code, by a Python function elsewhere."""
    codec = plan.codec
    if codec.ordered:
        kind = family(codec.types[0])
        if kind == "integer":
            return key[0].cast("long")
        if kind == "date":
            return F.unix_date(key[0]).cast("long")
        if kind == "timestamp":
            return F.unix_micros(key[0])

    def encode(*columns: pa.Array) -> pa.Array:
        return pa.array(codec.encode(columns).codes)

    return F.arrow_udf(encode, LongType())(*key)


def _rows_per_page(plan: BuildPlan, data: DataFrame) -> int:
    """How many rows make a page, from a few rows of the data. Tasks measure the rows; only sizes come to the driver."""
    plain = data.select(*[F.col(_quoted(name)).alias(f"c{i}") for i, name in enumerate(data.columns)])
    sizes = [row["bytes"] for row in plain.mapInArrow(_measured, _SIZE).limit(_SAMPLE_ROWS).collect()]
    own_code = plan.code_column == CODE_COLUMN
    return rows_per_page(plan.schema, sum(sizes) / len(sizes) + 8 * own_code, plan.page_bytes) if sizes else 1024


def _measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """For each of the first rows of a partition, how many bytes it takes: the mean of its batch."""
    wanted = _SAMPLE_ROWS
    for batch in batches:
        some = batch.slice(0, wanted)
        if some.num_rows:
            yield pa.RecordBatch.from_arrays([pa.array([some.nbytes / some.num_rows] * some.num_rows)], ["bytes"])
        wanted -= some.num_rows
        if not wanted:
            return


def _shard_writer(plan: BuildPlan, page_rows: int, noted: bool) -> Any:
    """The function that writes one partition as one shard and reports the shard. The file name carries the attempt."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        partition = context.partitionId() if context else 0
        path = plan.version_folder / f"shard-{partition:05d}-{uuid.uuid4().hex[:12]}.pages"
        if not path.parent.is_dir():
            raise TableError(unreachable(str(path.parent), what="folder"))
        schema, own_code = plan.stored_schema, plan.code_column == CODE_COLUMN
        rows = (_stored(batch, schema, own_code) for batch in batches)
        counted = note_rows(path, rows) if noted else rows
        info = write_shard(path, schema, plan.code_column, page_rows, counted, plan.page_bytes, plan.by_code)
        report = [pa.array([json.dumps(info.as_dict())]), pa.array([partition], pa.int64())]
        yield pa.RecordBatch.from_arrays(report, ["shard", "partition"])

    return write


def _stored(batch: pa.RecordBatch, schema: pa.Schema, own_code: bool) -> pa.RecordBatch:
    columns = batch.columns if own_code else batch.columns[1:]
    cast = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=schema)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _explain(failed: Exception, folder: Path) -> str:
    text = str(failed)
    if "No space left on device" in text:
        return f"the disk is full: {folder} could not be built and stays as it was; free some space and build again"
    if "No module named 'millrace'" in text:
        return (
            "the Python that Spark's workers use has no millrace: set PYSPARK_PYTHON to the Python that has it before the "
            "session starts (see `millrace doctor`)"
        )
    said = task_error(failed)
    lines = [str(said)] if said is not None else [line.strip() for line in text.splitlines() if "Error:" in line]
    return f"{folder} could not be built and stays as it was: {lines[-1] if lines else text.strip()[:500]}"
