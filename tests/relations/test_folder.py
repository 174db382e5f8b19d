"""Table folders: versions published at once or not at all, and clear words for everything that is wrong with one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from millrace.core.atomic_files import write_atomically
from millrace.core.errors import (
    DamagedTableError,
    MillraceError,
    ParameterError,
    SchemaError,
    TableError,
    TableVersionError,
)
from millrace.relations import build, folder
from millrace.relations.build import build_table, discard, finish, prepare
from millrace.relations.folder import now_us, read_versions, version_at
from millrace.relations.shard import write_shard
from millrace.relations.stored import StoredRelation

ROWS = pa.table({"id": [3, 1, 2, None], "name": ["c", "a", "b", "-"]})


def _files(path: Path) -> set[str]:
    return {str(one.relative_to(path)) for one in path.rglob("*") if one.is_file()}


def test_a_version_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    built = build_table(tmp_path / "t", ROWS, "id")
    assert read_versions(tmp_path / "t") == [built]
    assert (built.rows, built.null_keys, built.unique, built.key, built.layout) == (3, 1, True, ("id",), "key")
    assert built.schema.equals(ROWS.schema)


def test_the_first_version_is_there_for_every_batch_and_later_ones_from_a_moment_ahead(tmp_path: Path) -> None:
    before = now_us()
    versions = [build_table(tmp_path, ROWS.slice(0, n), "id") for n in (1, 2, 3)]
    times = [version.effective_at_us for version in versions]
    assert times[0] == 0
    assert before < times[1] < times[2]
    assert times[1] > now_us() - 1
    found = read_versions(tmp_path)
    assert [version_at(found, at).number for at in (0, times[1] - 1, times[1], times[2] - 1, times[2])] == [1, 1, 2, 2, 3]


def test_a_batch_older_than_every_version_is_told_so(tmp_path: Path) -> None:
    build_table(tmp_path, ROWS, "id")
    build_table(tmp_path, ROWS, "id")
    with pytest.raises(TableVersionError, match="has been removed"):
        version_at(read_versions(tmp_path)[1:], 5)


def test_a_folder_that_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(TableError, match=r"there is no table at .*nowhere; build one with MasterTable\.build"):
        read_versions(tmp_path / "nowhere")
    with pytest.raises(TableError, match="is not a millrace table"):
        read_versions(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(TableError, match="is a file"):
        read_versions(tmp_path / "file")
    (tmp_path / "half" / "v000001").mkdir(parents=True)
    with pytest.raises(TableError, match="build never finished"):
        read_versions(tmp_path / "half")


@pytest.mark.parametrize(
    "text", [b"", b"{", b"\xff\xfe\x00\x80", b"null", b"[]", b'"x"', b"7", b"{}", b'{"format": 2, "codec": 1, "versions": 3}',
             b'{"format": 2, "codec": 1, "versions": []}', b'{"format": 2, "codec": 1, "versions": [{}]}', b'{"format": null}',
             b'{"format": "1", "codec": 1, "versions": []}'],
)  # fmt: skip
def test_a_manifest_that_makes_no_sense_is_called_damaged_and_is_not_built_over(tmp_path: Path, text: bytes) -> None:
    build_table(tmp_path, ROWS, "id")
    (tmp_path / "manifest.json").write_bytes(text)
    before = _files(tmp_path)
    with pytest.raises(DamagedTableError, match=r"manifest\.json"):
        read_versions(tmp_path)
    with pytest.raises(DamagedTableError, match=r"manifest\.json"):
        build_table(tmp_path, ROWS, "id")
    assert _files(tmp_path) == before


def test_no_damaged_byte_of_the_manifest_goes_unnoticed(tmp_path: Path) -> None:
    built = build_table(tmp_path, ROWS, "id")
    path = tmp_path / "manifest.json"
    whole = path.read_bytes()
    unnoticed = []
    for place in range(0, len(whole), 3):
        for bit in (0x01, 0x10):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            try:
                if read_versions(tmp_path) != [built]:
                    unnoticed.append((place, whole[max(0, place - 20) : place + 20]))
            except MillraceError:
                pass
    assert unnoticed == []


@pytest.mark.parametrize("cut", [1, 2, 10, 100])
def test_a_manifest_that_was_cut_is_damaged(tmp_path: Path, cut: int) -> None:
    build_table(tmp_path, ROWS, "id")
    path = tmp_path / "manifest.json"
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(DamagedTableError, match=r"manifest\.json"):
        read_versions(tmp_path)


@pytest.mark.parametrize("field", ["format", "codec"])
def test_a_table_of_a_newer_library_is_refused_and_left_alone(tmp_path: Path, field: str) -> None:
    build_table(tmp_path, ROWS, "id")
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest[field] += 1
    path.write_text(json.dumps(manifest))
    before = path.read_bytes()
    for attempt in (lambda: read_versions(tmp_path), lambda: build_table(tmp_path, ROWS, "id")):
        with pytest.raises(TableVersionError, match=r"newer millrace.*upgrade"):
            attempt()
    assert path.read_bytes() == before


def test_a_newer_format_may_look_quite_different(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 3, "tables": {}}')
    with pytest.raises(TableVersionError, match="upgrade millrace"):
        read_versions(tmp_path)


def test_an_older_format_is_to_be_built_again(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"format": 1, "codec": 1, "versions": []}')
    with pytest.raises(TableVersionError, match=r"written by an older millrace .*build the table again"):
        read_versions(tmp_path)


def test_a_build_that_fails_leaves_the_table_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = build_table(tmp_path, ROWS, "id")
    before = _files(tmp_path)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    for place, name in ((build, "write_index"), (build, "write_shard"), (build, "publish"), (folder.os, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(place, name, full)
            with pytest.raises(OSError, match="No space left"):
                build_table(tmp_path, ROWS, "id", shards=2)
        assert _files(tmp_path) == before
        assert read_versions(tmp_path) == [old]
    assert StoredRelation(tmp_path, old, "buffered").rows == 3


def test_an_interrupted_build_leaves_the_table_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = build_table(tmp_path, ROWS, "id")
    before = _files(tmp_path)

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "write_index", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_table(tmp_path, ROWS, "id")
    assert (_files(tmp_path), read_versions(tmp_path)) == (before, [old])


def test_a_folder_of_unknown_origin_is_not_taken_for_a_version_and_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "v000001").mkdir()
    (tmp_path / "v000001" / "shard-00000.pages.partial").write_bytes(b"half")
    built = build_table(tmp_path, ROWS, "id")
    assert built.number == 2
    assert [version.number for version in read_versions(tmp_path)] == [2]


_KILLED = """
import os, signal, sys
from millrace.relations import build
import pyarrow as pa
stop = sys.argv[2]
real = getattr(build, stop)
def killed(*args, **options):
    if stop == "publish":
        real(*args, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(build, stop, killed)
build.build_table(sys.argv[1], pa.table({"id": [7]}), "id")
"""


@pytest.mark.parametrize(("stop", "published"), [("write_shard", 1), ("write_index", 1), ("publish", 2)])
def test_the_next_build_removes_what_a_killed_one_left(tmp_path: Path, stop: str, published: int) -> None:
    build_table(tmp_path, ROWS, "id")
    died = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path), stop], check=False)
    assert died.returncode == -signal.SIGKILL
    assert (tmp_path / "v000002").exists()
    assert len(read_versions(tmp_path)) == published
    build_table(tmp_path, ROWS, "id")
    versions = read_versions(tmp_path)
    assert len(versions) == published + 1
    assert sorted(path.name for path in tmp_path.glob("v*")) == [version.folder for version in versions]
    assert not list(tmp_path.glob("v*/*building"))
    for version in versions:
        StoredRelation(tmp_path, version, "buffered").close()


def test_a_build_that_is_going_on_is_left_alone(tmp_path: Path) -> None:
    first = prepare(tmp_path, ROWS.schema, "id", "auto", 4096)
    second = build_table(tmp_path, ROWS, "id")
    assert first.version_folder.exists()
    assert (first.number, second.number) == (1, 2)
    discard(first)
    assert not first.version_folder.exists()


def test_a_version_that_took_long_to_publish_is_stamped_again_before_anybody_sees_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_table(tmp_path, ROWS, "id")
    clock = [now_us()]
    seen: list[int] = []
    monkeypatch.setattr(folder, "now_us", lambda: clock[0])
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        seen.append(len(read_versions(tmp_path)))
        clock[0] += 3_000_000 if len(seen) < 3 else 0
        fsync(descriptor)

    plan = prepare(tmp_path, ROWS.schema, "id", "auto", 4096)
    info = write_shard(
        plan.version_folder / "shard-00000.pages",
        plan.stored_schema,
        plan.code_column,
        10,
        ROWS.drop_null().sort_by("id").to_batches(),
    )
    monkeypatch.setattr(os, "fsync", slow)
    version = finish(plan, [info], 10, 0)
    assert set(seen[:-1]) == {1}
    assert version.effective_at_us > clock[0]
    assert read_versions(tmp_path)[-1] == version


def test_wrong_parameters_write_nothing(tmp_path: Path) -> None:
    target = tmp_path / "t"
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"key": "nope"}, SchemaError, "no column 'nope' to use as key; it has id, name"),
        ({"key": []}, ParameterError, "at least one column"),
        ({"key": "id", "layout": "btree"}, ParameterError, "layout must be one of auto, key, hash, frequency; got 'btree'"),
        ({"key": "name", "layout": "key"}, ParameterError, "use layout='hash'"),
        ({"key": "id", "page_bytes": 100}, ParameterError, "page_bytes must be at least 4096"),
    ]
    for options, error, words in cases:
        with pytest.raises(error, match=words):
            build_table(target, ROWS, **options)
        assert not target.exists()
    with pytest.raises(ParameterError, match="shards must be at least 1"):
        build_table(target, ROWS, "id", shards=0)
    assert not target.exists() or _files(target) == set()
    with pytest.raises(SchemaError, match="unique"):
        build_table(target, pa.table([pa.array([1]), pa.array([2])], names=["id", "id"]), "id")
    (tmp_path / "file").write_text("x")
    with pytest.raises(TableError, match="is a file"):
        build_table(tmp_path / "file", ROWS, "id")


def test_builds_at_the_same_time_all_become_versions_or_say_that_they_did_not(tmp_path: Path) -> None:
    build_table(tmp_path, ROWS, "id")
    start = threading.Barrier(6)
    built, failed = [], []

    def work() -> None:
        start.wait()
        try:
            built.append(build_table(tmp_path, ROWS, "id").number)
        except MillraceError as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) + len(failed) == 6  # anything else that was raised is in neither
    versions = read_versions(tmp_path)
    assert sorted(version.number for version in versions) == sorted([1, *built])
    assert len({version.effective_at_us for version in versions}) == len(versions)
    for version in versions:
        assert StoredRelation(tmp_path, version, "buffered").rows == 3


def test_readers_never_see_half_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomically(path, b"x" * 100_000)
    stop = threading.Event()
    seen: set[tuple[int, int]] = set()

    def read() -> None:
        while not stop.is_set():
            data = path.read_bytes()
            seen.add((len(data), len(set(data))))

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(30):
        write_atomically(path, bytes([n]) * 100_000)
    stop.set()
    reader.join()
    assert seen == {(100_000, 1)}
    assert os.listdir(tmp_path) == ["f"]


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(TableError, match="file"):
        build_table(tmp_path / "file" / "below", ROWS, "id")


@pytest.mark.parametrize("name", ["__millrace_code", "__millrace_record"])
def test_names_that_a_page_needs_itself_are_refused(tmp_path: Path, name: str) -> None:
    rows = pa.table({"id": [1, 2], name: pa.array([[1], [2]])})
    with pytest.raises(SchemaError, match=f"rename {name}"):
        build_table(tmp_path / "t", rows, "id")
    assert not (tmp_path / "t").exists()
