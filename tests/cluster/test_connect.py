"""Through Spark Connect, on the executors of a cluster: what a client can do, and what it is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.cluster.data import FILES, ROWS_PER_FILE, SALES, batches, truth
from tests.cluster.standalone import Cluster, Program

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.cluster]

ALL = FILES * ROWS_PER_FILE


def test_a_connect_client_builds_and_enriches_as_any_other(cluster: Cluster, programs: list[Program], tmp_path: Path) -> None:
    client = Program("connect_job", cluster.connect_server(), tmp_path / "client")
    programs.append(client)
    found = client.result()

    assert found["unique left"] == {"same": True, "report": truth(0, ALL)}
    assert found["parquet left"] == {"same": True, "report": truth(0, ALL)}
    assert found["unique anti"]["same"]
    for shape, copies in [("unique", 1), ("few", 3), ("many", 20)]:
        assert found[f"{shape} streamed"] == {"same": True, "reports": batches(copies), "names": ["sales"] * len(batches())}
        if copies > 1:
            assert found[f"{shape} inner"] == {"same": True, "report": truth(0, ALL, copies)}
    assert found["lookups"]
    explained = found["explained"]
    assert explained.pop("rate") > 0
    assert explained.pop("strategy") != "auto"
    assert explained == {"keeps_up": True, "rows": ALL, "sampled": True, "broadcast": ALL}
    digits = Counter(one % 10 for one in SALES["id"].to_pylist() if one is not None)
    hot = [ALL, ALL - digits.total(), sorted([digit, rows, rows] for digit, rows in digits.items())]
    for shape in ("unique", "many"):
        assert found["hot keys"][f"{shape} observed"] == hot
        assert found["hot keys"][f"{shape} streamed"] == hot
    assert found["foreach"] == truth(0, ALL)[1]

    said = found["errors"]
    assert said["missing column"][0] == "SchemaError"
    assert said["small budget"][0] == "BudgetError"
    assert "has seen no action yet" in said["no action"][1]
    assert said["damaged"][0] == "DamagedTableError"
    assert "page 0 of " in said["damaged"][1]
