"""Which files make a table, and which folders are none. What Spark reads: tests/spark/test_parquet_lakes.py."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from millrace.core.errors import DamagedTableError, SchemaError, TableError
from millrace.relations.build import build_table
from millrace.relations.folder import read_versions
from millrace.relations.parquet_files import ParquetSource, as_spark_reads, check_parquet, list_files


def put(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    return root


def found(root: Path) -> list[str]:
    return [str(Path(source.path).relative_to(root)) for source in list_files(root)]


def test_every_file_counts_unless_its_name_or_that_of_a_folder_hides_it(tmp_path: Path) -> None:
    put(tmp_path, "000001_0", "a.parquet", "_k=1/b", "_k=_x/_c=d", "e.txt", "f=g")
    put(tmp_path, "_SUCCESS", "_metadata", "_temporary/0/a.parquet", ".a.crc", ".x=1/a", "a.parquet._COPYING_", "_k=1/_b")
    (tmp_path / "empty").write_bytes(b"")
    assert found(tmp_path) == ["000001_0", "_k=1/b", "_k=_x/_c=d", "a.parquet", "e.txt", "f=g"]


def test_links_are_followed_unless_they_lead_nowhere_or_in_a_circle(tmp_path: Path) -> None:
    put(tmp_path, "out/a", "lake/k=1/b")
    os.symlink(tmp_path / "out", tmp_path / "lake" / "k=2")
    os.symlink(tmp_path / "out" / "a", tmp_path / "lake" / "k=1" / "c")
    assert found(tmp_path / "lake") == ["k=1/b", "k=1/c", "k=2/a"]
    os.symlink(tmp_path / "lake", tmp_path / "lake" / "k=3")
    with pytest.raises(TableError, match=r"k=3 is a link to a folder above it"):
        list_files(tmp_path / "lake")
    (tmp_path / "lake" / "k=3").unlink()
    os.symlink(tmp_path / "gone", tmp_path / "lake" / "k=1" / "d")
    with pytest.raises(TableError, match=r"k=1/d is a link to a file that is not there"):
        list_files(tmp_path / "lake")


@pytest.mark.parametrize("inside", ["", "data", "data/day=1", "day=1/hour=2"])
@pytest.mark.parametrize(
    ("log", "kind"),
    [
        ("_delta_log/00000000000000000000.json", "Delta"),
        (".hoodie/hoodie.properties", "Hudi"),
        ("metadata/v1.metadata.json", "Iceberg"),
        ("metadata/00000-6f.metadata.json", "Iceberg"),
    ],
)
def test_a_table_whose_log_says_which_rows_count_is_refused(tmp_path: Path, log: str, kind: str, inside: str) -> None:
    put(tmp_path / "t", log, f"{inside}/a.parquet".lstrip("/"))
    with pytest.raises(TableError, match=rf"/t is a table in the format {kind}.*{kind.lower()}.*build a MasterTable"):
        list_files(tmp_path / "t" / inside)


def test_the_output_of_a_streaming_query_is_refused_and_folders_that_look_alike_are_not(tmp_path: Path) -> None:
    put(tmp_path, "sink/_spark_metadata/0", "sink/a.parquet", "plain/metadata/notes.json", "plain/a.parquet")
    with pytest.raises(TableError, match=r"_spark_metadata says which of the files count.*build a MasterTable"):
        list_files(tmp_path / "sink")
    assert found(tmp_path / "plain" / "metadata") == ["notes.json"]


def test_a_folder_that_millrace_built_is_told_from_one_with_some_manifest(tmp_path: Path) -> None:
    build_table(tmp_path / "built", pa.table({"id": [1]}), "id")
    with pytest.raises(TableError, match=r"built is a millrace table: open it with mr\.MasterTable\.open\('.*/built'\)"):
        list_files(tmp_path / "built")
    assert found(put(tmp_path / "other", "manifest.json")) == ["manifest.json"]


def test_a_file_is_parquet_by_its_end(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "good")
    check_parquet(str(tmp_path / "good"))
    check_parquet(str(tmp_path / "gone"))
    (tmp_path / "cut").write_bytes((tmp_path / "good").read_bytes()[:-1])
    with pytest.raises(DamagedTableError, match="cut has no end, as if it was cut off"):
        check_parquet(str(tmp_path / "cut"))
    for text in ("x", '{"id": 1}\n'):
        (tmp_path / "text").write_text(text)
        with pytest.raises(TableError, match=r"text is no Parquet file.*spark\.read\.json.*MasterTable"):
            check_parquet(str(tmp_path / "text"))


def test_a_folder_of_parquet_files_is_no_table_and_the_error_says_how_to_use_it(tmp_path: Path) -> None:
    for name in ("plain/a.parquet", "parted/day=1/hour=2/a.parquet"):
        put(tmp_path, name)
        folder = tmp_path / name.split("/")[0]
        with pytest.raises(
            TableError, match=r"but a folder of Parquet files; .*mr\.ParquetTable\('.*MasterTable\.build\("
        ) as said:
            read_versions(folder)
        assert str(said.value).count(str(folder)) == 2


def spelled(root: Path, *names: str, sensitive: bool = False) -> list[object]:
    sources: tuple[ParquetSource, ...] = list_files(root)
    return [source.partition for source in as_spark_reads(sources, str(root), names, sensitive)]


def test_partition_columns_have_the_names_that_the_query_knows(tmp_path: Path) -> None:
    put(tmp_path, "Day=1/sub/a", "day=2/a", "DAY=__HIVE_DEFAULT_PARTITION__/a")
    assert spelled(tmp_path, "id", "Day") == [(("Day", None),), (("Day", "1"),), (("Day", "2"),)]
    with pytest.raises(SchemaError, match=r"in partitions of DAY.*planned with, id, Day"):
        spelled(tmp_path, "id", "Day", sensitive=True)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (["k=1/a", "b"], "b lies beside partition folders"),
        (["a", "sub/b"], "sub/b lies in a folder inside"),
        (["s1/k=1/a", "s2/k=2/a"], "must all start in one folder"),
        (["k=1/sub/m=2/a"], "with no other folder between them"),
        (["k=1/a", "k=2/m=2/a"], "in partitions of k, m, and"),
        (["k=/a"], "k= in its path is no column with a value"),
        (["k=M%C3%BCnchen/a"], "letters beyond ASCII are escaped"),
    ],
)
def test_what_spark_would_leave_out_or_read_otherwise_is_refused(tmp_path: Path, names: list[str], why: str) -> None:
    put(tmp_path, *names)
    with pytest.raises((TableError, SchemaError), match=why):
        spelled(tmp_path, "id", "k", "m")
