"""The byte budget is what a join really takes: the process grows by no more than that, and a constant."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

ALLOWANCE = 12 << 20  # beside the budget: threads, allocator, interpreter
PROGRAM = """
    import json, sys
    import numpy as np
    from tests.online.tables import ALGORITHMS, COUNT_AND_SUM, records, join_of, tables
    from millrace.core.budget import Budget
    from millrace.online.protocol import Batch, finished
    from millrace.online.storage.spill import FileSpill
    from millrace.streams.permutation import Permutation

    class Made:
        '''Rows that are made as they are read, so that they take no memory.'''
        def __init__(self, rows, seed):
            self.rows, self.width, self._keys, self._next = rows, 2, Permutation(rows, seed), 0
        @property
        def ended(self):
            return self._next == self.rows
        def read(self, rows):
            numbers = np.arange(self._next, min(self.rows, self._next + rows), dtype=np.int64)
            self._next += len(numbers)
            words = np.empty((len(numbers), 2), np.int64)
            words[:, 0] = self._keys.apply(numbers)
            words[:, 1] = np.ones(len(numbers)).view(np.int64)
            return Batch(words, len(numbers), words.nbytes)

    def anonymous():
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))

    name, options, memory, rows = json.loads(sys.argv[1])
    small = tables("one to one", rows=20_000)
    finished(join_of(name, small.a, small.b, memory=1 << 18, **options))  # kernels are compiled
    before = peak = anonymous()
    budget = Budget(memory)
    join = ALGORITHMS[name](Made(rows, 1), Made(rows, 2), COUNT_AND_SUM, budget, FileSpill(), **options)
    while True:
        progress = join.step()
        peak = max(peak, anonymous())
        if progress.done:
            break
    join.close()
    print(json.dumps([peak - before, budget.peak_bytes, join.pieces.answer()[0].tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [("prjoin", {}), ("prjoin", {"threads": 2}), ("grace", {}), ("ripple", {}), ("hash_ripple", {}), ("sms", {}), ("dbo", {}),
     ("xjoin", {}), ("hmj", {}), ("rpj", {})],
)  # fmt: skip
def test_the_process_grows_by_the_budget_and_a_constant(name: str, options: dict[str, int]) -> None:
    memory, rows = 24 << 20, 3_000_000
    job = json.dumps([name, options, memory, rows])
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM), job], capture_output=True, text=True, check=True)
    grown, reserved, answer = json.loads(done.stdout.splitlines()[-1])
    assert answer == [rows, rows]
    assert reserved <= memory
    assert grown <= memory + ALLOWANCE, f"{grown >> 20} MiB"
