"""The memory of an estimate holds for the process itself: its own memory, under a hard limit that nothing may pass."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.slow

MEMORY = 16 << 20
ROWS = 2_500_000
CONSTANT = 48 << 20  # beside the budget: Parquet pages and Arrow batches of two readers, threads, reports

PROGRAM = """
import json, resource, sys, threading
import millrace as mr
from millrace.bench.memory import status_bytes

folder, memory, constant, question = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
threading.stack_size(1 << 20)

def ask(left, right):
    tables = f"{folder}/{left}", f"{folder}/{right}"
    with mr.estimate(*tables, on="key", memory=memory, threads=2, every=0.05, **question) as run:
        return run.exact(), run

ask("little", "little")  # loads libraries and compiles
idle, peak, done = status_bytes("self", "RssAnon"), 0, threading.Event()

def watch():
    global peak
    while not done.wait(0.002):
        peak = max(peak, status_bytes("self", "RssAnon"))

watcher = threading.Thread(target=watch)
watcher.start()
limit = status_bytes("self", "VmData") + memory + constant
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    end, run = ask("left", "right")
finally:
    done.set()
    watcher.join()
total = sum(each.value for each in end["total"].values()) if end.groups else end["total"].value
print(json.dumps([total, peak - idle, end.temporary_bytes, run.budget.peak_bytes]))
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Whole numbers as values: sums are exact in any order."""
    folder = tmp_path_factory.mktemp("tables")
    random = np.random.default_rng(1)
    for name, rows in (("left", ROWS), ("right", ROWS), ("little", 5000)):
        keys = random.permutation(rows) if name == "left" else random.integers(0, rows, rows)
        columns = {"key": keys, "value": random.integers(0, 100, rows), "bucket": random.integers(0, 100, rows)}
        pq.write_table(pa.table(columns), folder / name, row_group_size=200_000)
    return folder


@pytest.mark.parametrize(
    "question",
    [
        {"total": "sum(left.value * right.value)"},
        {"total": "sum(right.value)", "group_by": ["left.bucket"]},
        {"total": "sum(right.value)", "where": "left.value < right.value"},  # makes pairs
    ],
    ids=["products", "groups", "pairs"],
)
def test_an_estimate_lives_in_its_memory_and_a_constant(tables: Path, question: dict[str, object]) -> None:
    arguments = [str(tables), str(MEMORY), str(CONSTANT), json.dumps(question)]
    found = subprocess.run([sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    total, own, temporary, budget = json.loads(found.stdout)
    sql = f"""SELECT {str(question["total"]).replace("left.", "l.").replace("right.", "r.")}
        FROM read_parquet('{tables}/left') l JOIN read_parquet('{tables}/right') r ON l.key = r.key
        WHERE {str(question.get("where", "true")).replace("left.", "l.").replace("right.", "r.")}"""
    assert total == duckdb.sql(sql).fetchall()[0][0]
    assert temporary > 2 * MEMORY
    assert budget <= MEMORY
    assert own <= MEMORY + CONSTANT, f"{own:,} bytes of its own"
