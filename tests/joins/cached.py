"""What is tested of each cached join in the same way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.joins.examples import HOWS, cut, expected, joined, relation_of, rows_of, spec_of, stream_of

from millrace.core.budget import Budget
from millrace.core.drive import total
from millrace.core.errors import BudgetError, ParameterError
from millrace.joins.cached import CachedJoin

SKEWED = np.random.default_rng(5).zipf(1.3, 6_000) % 90


def check_exact_with_hits(join: type[CachedJoin], **parameters: Any) -> None:
    """Skewed keys, some twice in the relation, some absent: rows are exact, and the front stage answers a good part."""
    keys = [key for key in range(80) for _ in range(1 + (key % 4 == 3))]
    tuples = [None if key % 17 == 16 else int(key) for key in SKEWED]
    for how in HOWS:
        made = join(relation_of(keys, 4), spec_of(how), Budget("96k"), **parameters)
        steps = joined(made, cut(stream_of(tuples), 64))
        assert rows_of(steps) == expected(tuples, keys, how)
        counts = total(steps)
        assert counts.front_lookups == len(tuples)
        assert counts.front_hits > 0.3 * len(tuples)
        assert made.pending == 0


def check_bad_input(join: type[CachedJoin]) -> None:
    relation, spec = relation_of([*range(40)]), spec_of()
    for share in (-0.1, 1, 1.5, "much", True, float("nan")):
        with pytest.raises(ParameterError, match="cache_share must be"):
            join(relation, spec, Budget("1m"), cache_share=share)  # type: ignore[arg-type]
    for threshold in (0, -1, "often", float("inf"), float("nan")):
        with pytest.raises(ParameterError, match="threshold must be"):
            join(relation, spec, Budget("1m"), threshold=threshold)  # type: ignore[arg-type]
    for share in ("auto", 0.3):
        with pytest.raises(BudgetError, match="back stage and one page of cache; give memory=") as small:
            join(relation, spec, Budget(2_000), cache_share=share)  # type: ignore[arg-type]
        memory = small.value.needed_bytes
        for _ in range(8):
            try:
                assert join(relation, spec, Budget(memory), cache_share=share).front is not None  # type: ignore[arg-type]
                break
            except BudgetError as still:
                memory = still.needed_bytes
        else:
            raise AssertionError("the error asks for more and more")
    with pytest.raises(TypeError, match="colour"):
        join(relation, spec, Budget("1m"), colour="red")


def check_share(join: type[CachedJoin]) -> None:
    """A fixed share is kept; 0 means no front stage; uneven keys are answered less by a smaller one."""
    keys = [*range(400)]
    tuples = (np.random.default_rng(2).zipf(1.2, 8_000) % 400).tolist()
    hits = []
    for share in (0, 0.15, 0.5):
        made = join(relation_of(keys, 4), spec_of(), Budget("128k"), cache_share=share)
        counts = total(joined(made, cut(stream_of(tuples), 500)))
        assert made.cache_share == pytest.approx(share, abs=0.2)
        hits.append(counts.front_hits)
    assert hits[0] == 0 < hits[1] <= hits[2]
