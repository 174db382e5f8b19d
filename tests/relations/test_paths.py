"""Paths and URLs of tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from millrace.core.errors import ParameterError
from millrace.relations.paths import local_path


@pytest.mark.parametrize(
    "url",
    ["s3a://bucket/t", "s3://bucket/t", "hdfs://host:8020/t", "hdfs:///t", "dbfs:/mnt/t", "abfss://c@a.dfs.core.windows.net/t",
     "gs://b/t", "S3A://b/t", "wasbs://b/t", "unheard-of://b/t", Path("s3a://bucket/t"), Path("abfss://c@a/t")],
)  # fmt: skip
def test_what_is_no_folder_of_this_machine_is_refused(url: str | Path) -> None:
    with pytest.raises(ParameterError, match=r"driver and executors see under one path.*give the path of the folder"):
        local_path(url)


@pytest.mark.parametrize("url", ["file:///a/b c%20", "file:/a/b c%20", "file://localhost/a/b c%20", Path("file:///a/b c%20")])
def test_file_urls_are_paths(url: str | Path) -> None:
    assert local_path(url) == Path("/a/b c%20")  # as Spark takes them: nothing is unescaped


@pytest.mark.parametrize("url", ["file://host/a", "file://a"])
def test_file_urls_of_another_host_are_refused(url: str) -> None:
    with pytest.raises(ParameterError, match="three slashes"):
        local_path(url)


@pytest.mark.parametrize(
    "path", ["/a/b", "a/b", "a:b/c", "2024-01-01T10:00/x", "notes:/x", "a/s3://b", Path("/x:/y"), "day=1/a:b"]
)
def test_paths_with_colons_stay_paths(path: str | Path) -> None:
    assert local_path(path) == Path(path)
