"""The laws: what every semi-stream join must do, whatever its algorithm.

A law is a function. It gets the way to build the join, and `how`. If the join breaks the law, the function raises `BrokenLaw`
and says what it saw. `LAWS` lists all laws, each with its sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from millrace.checks.held import held_bytes
from millrace.checks.reference import comparable_keys, reference_pairs, same_rows
from millrace.checks.relations import DiskIndexed, Expiring, FailingRelation, IndexFree, InPlace, ReadFailed, colliding
from millrace.checks.run import (
    ROOMY,
    BrokenLaw,
    Make,
    Run,
    Watched,
    expected,
    require,
    run_join,
    tightest,
    watched,
)  # fmt: skip
from millrace.checks.samples import KEY_TYPES, PAUSE, KeyType, Sample, composite, cut, sample, spec_of, written
from millrace.checks.waiting import check_waits
from millrace.checks.withdrawing import run_withdrawing
from millrace.core.budget import Budget
from millrace.core.errors import BudgetError, MillraceError, SchemaError
from millrace.core.protocols import How, JoinSpec, Relation, SemiStreamJoin
from millrace.core.step import StepCounts
from millrace.joins.emit import OUTPUT_ROWS
from millrace.joins.several import Several
from millrace.joins.stream_order import Ordered
from millrace.relations.memory import MemoryRelation


class Law(NamedTuple):
    name: str
    check: Callable[[Make, How], None]
    sentence: str


def exact(make: Make, how: How) -> None:
    data = _sample(make, how)
    for rows_per_page in (1, 4, 64):
        for memory in _budgets(make, data, _paged(data, rows_per_page)):
            _exact(make, data, _paged(data, rows_per_page), [16], memory=memory)


def duplicates(make: Make, how: How) -> None:
    data = _repeated(make, how)
    for rows_per_page in (2, 5):
        for memory in _budgets(make, data, _paged(data, rows_per_page)):
            _exact(make, data, _paged(data, rows_per_page), [20], memory=memory)


def frequency_order(make: Make, how: How) -> None:
    text = next(kind for kind in KEY_TYPES if kind.name == "string")
    for kind, rows_per_page in ((KEY_TYPES[0], 2), (text, 4)):
        data = sample(how, kind=kind)
        counts = [(17 * row) % 23 for row in range(data.relation.num_rows)]
        relation = MemoryRelation(data.relation, "id", rows_per_page, counts=counts)
        for memory in _budgets(make, data, relation):
            _exact(make, data, relation, [16], memory=memory)


def null_keys(make: Make, how: How) -> None:
    data = _sample(make, how, stream_rows=30)
    stream = data.stream.set_column(1, "product", pa.nulls(30, _kind(make).stream))
    run = _exact(make, data._replace(stream=stream), _paged(data), [7])
    nulls = _counted(make, run.totals, absent=0)[1]
    require(nulls == 30, f"30 tuples have a null key, counted were {nulls}")


def absent_keys(make: Make, how: How) -> None:
    data = _sample(make, how, stream_rows=30)
    keys = [key for key in range(-15, 60) if not 0 <= key < 30][:30]
    stream = data.stream.set_column(1, "product", written(_kind(make).stream, keys, _kind(make).value))
    run = _exact(make, data._replace(stream=stream), _paged(data), [7])
    absent = _counted(make, run.totals, absent=30)[0]
    require(absent == 30, f"30 tuples have an absent key, counted were {absent}")


def empty_stream(make: Make, how: How) -> None:
    data = _sample(make, how)
    relation = _paged(data)
    _exact(make, data._replace(stream=data.stream.slice(0, 0)), relation, [1])
    nothing = next(cut(data.stream, [1])).slice(0, 0)
    join = make(relation, data.spec, Budget(ROOMY))
    for _ in range(3):
        require(join.offer(nothing) == 0 and join.pending == 0, "it took rows from a batch that has none")
        require(join.step().output.num_rows == 0, "rows came out, and none had gone in")
    require(not relation.reads, f"nothing arrived, but pages were read: {relation.reads}")


def empty_relation(make: Make, how: How) -> None:
    data = _sample(make, how, stream_rows=40)
    data = data._replace(relation=data.relation.slice(0, 0))
    run = _exact(make, data, _paged(data), [9])
    require(run.totals.pages_read == 0, f"a relation without pages had {run.totals.pages_read} read")


def one_row_relation(make: Make, how: How) -> None:
    data = _sample(make, how, stream_rows=40)
    seven = pa.scalar(_kind(make).value(7), _kind(make).relation)
    relation = data.relation.filter(pa.compute.equal(data.relation.column("id"), seven))
    _exact(make, data._replace(relation=relation), _paged(data._replace(relation=relation)), [9])


def paused_stream(make: Make, how: How) -> None:
    data = _sample(make, how)
    for steps_per_batch in (0, 1, 3, None):
        for sizes in ([PAUSE, 10, PAUSE, PAUSE], [40, *[PAUSE] * 30], [1, PAUSE]):
            _exact(make, data, _paged(data), sizes, steps_per_batch=steps_per_batch)


def early_end(make: Make, how: How) -> None:
    data = _sample(make, how)
    for rows in (1, 2, 13, 50):
        _exact(make, data._replace(stream=data.stream.slice(0, rows)), _paged(data), [6], steps_per_batch=0)


def any_cut(make: Make, how: How) -> None:
    data = _sample(make, how)
    wanted = expected(data.stream, data.relation, data.spec)
    smallest = tightest(make, _paged(data), data.spec)
    for sizes in ([1], [2, 3, 5, 8, 13], [64, 1], [119, 1], [1000]):
        for memory in (smallest, ROOMY):
            _compare(run_join(make, _paged(data), data.spec, cut(data.stream, sizes), memory=memory), wanted)


def key_types(make: Make, how: How) -> None:
    for kind in KEY_TYPES:
        data = sample(how, kind=kind, stream_rows=60)
        try:
            _exact(make, data, _paged(data), [25])
        except BrokenLaw as broken:
            raise BrokenLaw(f"key type {kind.name}: {broken}") from broken


def composite_keys(make: Make, how: How) -> None:
    data = composite(how)
    _exact(make, data, MemoryRelation(data.relation, ("shop", "id"), 4), [25])


def colliding_codes(make: Make, how: How) -> None:
    for kind in (KEY_TYPES[0], next(kind for kind in KEY_TYPES if kind.name == "string")):
        data = sample(how, kind=kind)
        for bits in (0, 2):
            _exact(make, data, colliding(data.relation, "id", 4, bits=bits), [25])


def index_free(make: Make, how: How) -> None:
    data = _sample(make, how)
    relation = IndexFree(MemoryRelation(data.relation, "id", 4, indexed=False))
    try:
        make(relation, data.spec, Budget(ROOMY))
    except MillraceError as error:
        require("index" in str(error), f"it refuses a relation without an index and does not say so: {error}")
        return
    _exact(make, data, relation, [25])


def used_in_place(make: Make, how: How) -> None:
    for kind in (KEY_TYPES[0], next(kind for kind in KEY_TYPES if kind.name == "string")):
        data = sample(how, kind=kind)
        _exact(make, data, InPlace(data.relation, "id", 4), [25])
    distinct = pa.TableGroupBy(data.relation, "id").aggregate([("price", "min"), ("name", "min")])
    unique = distinct.rename_columns({"price_min": "price", "name_min": "name"}).select(["id", "price", "name"])
    _exact(make, data._replace(relation=unique), InPlace(unique, "id", 4), [25])


def stale_pages(make: Make, how: How) -> None:
    data = _sample(make, how)
    _exact(make, data, Expiring(_paged(data)), [25])


def nothing_carried(make: Make, how: How) -> None:
    data = _sample(make, how)
    wanted = reference_pairs(data.stream, data.relation, data.spec)
    spec = JoinSpec(data.stream.schema, data.spec.on, how)
    run = run_join(make, _paged(data), spec, cut(data.stream, [25]))
    missing = Counter(pair[0] for pair in wanted) - Counter(run.sequence.tolist())
    extra = Counter(run.sequence.tolist()) - Counter(pair[0] for pair in wanted)
    require(not missing and not extra, f"without columns, sequence numbers {missing} are missing, {extra} too many")


def output_schema(make: Make, how: How) -> None:
    data = _sample(make, how)
    schema = data.spec.output_schema(_paged(data))
    for stream in (data.stream, data.stream.slice(0, 0)):
        for join in watched(make, _paged(data), data.spec, cut(stream, [25])):
            step = join.run.steps[-1] if join.run.steps else join.step()
            require(step.output.schema.equals(schema), f"it puts out {step.output.schema}, not {schema}")


def sequence_numbers(make: Make, how: How) -> None:
    data = _sample(make, how)
    run = _exact(make, data, _paged(data), [25])
    for number, step in enumerate(run.steps):
        events = step.output.column("event").to_pylist()
        require(events == step.sequence.tolist(), f"step {number} put out {events} with numbers {step.sequence.tolist()}")


def entry_steps(make: Make, how: How) -> None:
    data = _sample(make, how)
    run = _exact(make, data, _paged(data), [25, PAUSE, 3])
    for number, step in enumerate(run.steps):
        count = len(step.entered)
        require(count == step.counts.removed, f"step {number}: {step.counts.removed} tuples left, {count} entry steps")
        late = step.entered[(step.entered > number) | (step.entered < 0)]
        require(len(late) == 0, f"step {number}: tuples left that entered in steps {late.tolist()}")
    entered = np.concatenate([step.entered for step in run.steps])
    require(len(entered) == data.stream.num_rows, f"{len(entered)} entry steps for {data.stream.num_rows} tuples")
    for number, offered in enumerate(run.offered_before):
        before = int(np.count_nonzero(entered <= number))
        require(before <= offered, f"{before} tuples claim to have entered by step {number}; only {offered} were offered")


def ledger(make: Make, how: How) -> None:
    data = _sample(make, how)
    run = _exact(make, data, _paged(data), [25])  # the driver checks the balance of every step
    inner = reference_pairs(data.stream, data.relation, spec_of(data.stream, "inner"))
    keys = comparable_keys(data.stream, ["product"])
    rows, matched, nulls = len(keys), len({pair[0] for pair in inner}), keys.count(None)
    seen = run.totals
    pairs = len(inner) if how in ("inner", "left") else seen.matches
    wanted = {"tuples_in": rows, "removed": rows, "matched": matched, "matches": pairs, "deferred": 0}
    absent = rows - matched - nulls
    counted = _counted(make, seen, absent)
    require(counted == (absent, nulls), f"{absent} keys are absent and {nulls} null; counted were {counted}")
    wrong = {name: (getattr(seen, name), count) for name, count in wanted.items() if getattr(seen, name) != count}
    require(not wrong, f"counts that are wrong, as name: (counted, right): {wrong}")
    require(seen.matched <= seen.matches <= len(inner), f"{seen.matches} matches for {matched} matched tuples")


def honest_reads(make: Make, how: How) -> None:
    data = _sample(make, how)
    relation = _paged(data)
    memory = _snug(make, relation, data.spec)
    for join in watched(make, relation, data.spec, cut(data.stream, [25, PAUSE]), memory=memory):
        pages, reads = join.run.totals.pages_read, relation.reads
        require(pages == sum(count for _, count in reads), f"it counts {pages} pages read; the relation saw {reads}")
        seeks = join.run.totals.seeks
        require(seeks <= len(reads), f"it counts {seeks} seeks in {len(reads)} reads")


def idle(make: Make, how: How) -> None:
    data = _sample(make, how)
    relation = _paged(data)
    join = make(relation, data.spec, Budget(ROOMY))
    for _ in range(3):
        step = join.step()
        require(not any(step.counts.as_dict().values()), f"with nothing offered a step counts {step.counts}")
    require(not relation.reads, f"with nothing waiting it reads {relation.reads}")
    for watch in watched(make, relation, data.spec, cut(data.stream, [25])):
        last = watch
    before = len(relation.reads)
    for _ in range(3):
        require(last.step().output.num_rows == 0, "after the last tuple has left it still puts out rows")
    require(len(relation.reads) == before, f"after the last tuple has left it reads {relation.reads[before:]}")


def failed_read(make: Make, how: How) -> None:
    data = _sample(make, how, stream_rows=60)
    wanted = expected(data.stream, data.relation, data.spec)
    for failing in ({1}, {2}, {5}, {1, 2, 3}, {4, 9}):
        relation = FailingRelation(_paged(data), failing)
        run, errors, done = _retried(make, relation, data)
        require(errors >= relation.failures, f"{relation.failures} reads failed, and {errors} errors came out")
        if done:
            _compare(run, wanted)
        _no_false_miss(make, run, wanted, data)


def failing_for_good(make: Make, how: How) -> None:
    data = _sample(make, how, stream_rows=60)
    relation = FailingRelation(_paged(data), None)
    run = Run(data.spec.output_schema(relation))
    join = Watched(make(relation, data.spec, Budget(_snug(make, relation, data.spec))), run, 100)
    join.offer(next(cut(data.stream, [60])))
    errors = 0
    while join.pending and errors < 5:
        try:
            step = join.step()
        except (ReadFailed, MillraceError) as error:
            require(not isinstance(error, BrokenLaw), error)
            errors += 1
        else:
            run.ledger.post(step.counts, join.pending)
    require(errors == 5, "no page could be read, and all tuples left all the same")
    require(run.totals.matched == 0, f"no page could be read, and {run.totals.matched} tuples matched")
    _no_false_miss(make, run, expected(data.stream, data.relation, data.spec), data)


def bounded_memory(make: Make, how: How) -> None:
    data = _sample(make, how, stream_rows=500)
    smallest = tightest(make, _paged(data), data.spec)
    for memory in (smallest, smallest * 2, 32_768 + smallest):
        relation = _paged(data)
        for join in watched(make, relation, data.spec, cut(data.stream, [300]), memory=memory):
            used, held = join.bytes_used, held_bytes(join.join, without=(relation, data.spec))
            require(used <= memory, f"it says it uses {used} bytes; the budget is {memory}")
            require(held <= memory, f"it says it uses {used} bytes and holds {held}; the budget is {memory}")
        longest = max(count for _, count in relation.reads) * relation.page_bytes
        require(longest <= memory, f"it read {longest} bytes at once; the budget is {memory}")


def small_budget(make: Make, how: How) -> None:
    data = _sample(make, how)
    for rows_per_page in (1, 16):
        relation = _paged(data, rows_per_page)
        try:
            make(relation, data.spec, Budget(1))
        except BudgetError as error:
            require(str(error.needed_bytes) in str(error), f"the error does not say what is needed: {error}")
        else:
            raise BrokenLaw("it was built with one byte of memory")
        _exact(make, data, relation, [25], memory=tightest(make, relation, data.spec))


def bounded_output(make: Make, how: How) -> None:
    rows, tuples = 300, 300  # 90,000 pairs, more than a step may put out
    kind = _kind(make)
    ids, products = written(kind.relation, [1] * rows, kind.value), written(kind.stream, [1] * tuples, kind.value)
    relation = pa.table({"id": ids, "price": np.zeros(rows), "name": ["x"] * rows})
    stream = pa.table({"event": np.arange(tuples), "product": products, "note": ["y"] * tuples})
    spec = JoinSpec(stream.schema, (("product", "id"),), how, ("event",), ("price",) if how in ("inner", "left") else ())
    for rows_per_page in (16, rows):
        run = run_join(make, MemoryRelation(relation, "id", rows_per_page), spec, cut(stream, [tuples]))
        most = max(step.output.num_rows for step in run.steps)
        require(most <= OUTPUT_ROWS, f"a step put out {most} rows; more than {OUTPUT_ROWS} must wait for the next step")
        each = {"inner": rows, "left": rows, "semi": 1, "anti": 0}[how]
        counts = np.bincount(run.sequence, minlength=tuples)
        require(np.all(counts == each), f"every tuple has {each} rows to come; they came out {set(counts.tolist())} times")


def bounded_misses(make: Make, how: How) -> None:
    tuples = OUTPUT_ROWS + 10_000
    data = _sample(make, how)
    kind = _kind(make)
    absent = pa.repeat(pa.scalar(kind.value(1_000), kind.stream), tuples)
    nulls = pa.nulls(tuples, kind.stream)
    for keys in (absent, nulls):
        stream = pa.record_batch({"product": keys})
        spec = JoinSpec(stream.schema, (("product", "id"),), how, ("product",))
        join = make(_paged(data), spec, Budget("64m"))
        waiting = taken = join.offer(stream)
        for _ in range(100):
            if taken <= OUTPUT_ROWS or not waiting:
                break  # with a small window there is nothing to bound
            step = join.step()
            most = step.output.num_rows
            require(most <= OUTPUT_ROWS, f"a step put out {most} rows; more than {OUTPUT_ROWS} must wait for the next step")
            waiting -= step.counts.removed
        require(taken <= OUTPUT_ROWS or not waiting, f"{waiting} of {taken} tuples still wait after 100 steps")


def bounded_waits(make: Make, how: How) -> None:
    pages = MemoryRelation(_with_long_key(make, 20), "id", 4)
    placed = InPlace(_with_long_key(make, 20), "id", 4)
    beside = [_LONG - 6, _LONG]  # the second begins a page behind the first, and ends many pages behind it
    for spare_bytes in (0, 2_000, 6_000):
        _no_wait_too_long(make, how, pages, beside, spare_bytes)
    if getattr(make, "condition", None) is not None:
        return  # it knows no index, and waits do not depend on what is compared
    _no_wait_too_long(make, how, pages, beside, 2_000, wrapped=True)
    for relation, hot in ((pages, [_LONG - 6]), (pages, [None]), (placed, [_LONG - 6])):
        _no_wait_too_long(make, how, relation, hot, 60_000)  # more than a step puts out
    counts = [1_000 if key == _LONG else 240 - key for key in _keys_with_long(90)]
    by_count = DiskIndexed(_with_long_key(make, 90), "id", 4, counts, hot_keys=60)
    for hot in ([_LONG, 12], [*range(0, 80, 8)]):  # known to the index, and more pages than are read at once
        _no_wait_too_long(make, how, by_count, hot, 6_000)


def withdrawn(make: Make, how: How) -> None:
    given_back = 0
    for data in (_sample(make, how), _repeated(make, how)):
        spec = replace(data.spec, carry=("event",), returnable=True)
        wanted = expected(data.stream, data.relation, spec)
        for seed, relation in enumerate((_paged(data, 2), InPlace(data.relation, "id", 4))):
            smallest = tightest(make, relation, spec)
            for memory in (smallest, smallest + 2_000, smallest + 10_000, ROOMY):
                join = make(relation, spec, Budget(memory))
                stream = next(cut(data.stream, [data.stream.num_rows]))
                rows, count = run_withdrawing(join, spec.output_schema(relation), stream, seed + memory)
                given_back += count
                comparison = same_rows(rows, wanted)
                require(comparison, f"with tuples given back, the join (left) differs from the reference (right): {comparison}")
    require(given_back, "it never gave a tuple back")


def wrong_keys(make: Make, how: How) -> None:
    data = _sample(make, how)
    other = pa.array(range(data.stream.num_rows)) if pa.types.is_string(_kind(make).stream) else data.stream.column("note")
    stream = data.stream.set_column(1, "product", other)
    try:
        make(_paged(data), spec_of(stream, how), Budget(ROOMY))
    except SchemaError as error:
        require("product" in str(error), f"the error does not name the column: {error}")
    else:
        raise BrokenLaw(f"{other.type} was accepted as the key of a table whose key is {_kind(make).relation}")


LAWS: tuple[Law, ...] = (
    Law("exact", exact, "The output equals a plain join as a multiset, in budgets from the smallest to a large one."),
    Law("duplicates", duplicates, "Every pair of equal keys comes out, however often a key occurs on either side."),
    Law("frequency_order", frequency_order, "A relation whose wanted rows come first is joined like one sorted by key."),
    Law("null_keys", null_keys, "A null key matches nothing and is counted as null."),
    Law("absent_keys", absent_keys, "A key that the relation does not have leaves unmatched and is counted as absent."),
    Law("empty_stream", empty_stream, "An empty stream gives no rows and no reads."),
    Law("empty_relation", empty_relation, "With an empty relation every tuple leaves unmatched, without a read."),
    Law("one_row_relation", one_row_relation, "A relation of one row is joined like any other."),
    Law("paused_stream", paused_stream, "A stream that pauses, however the steps fall, gives the same rows."),
    Law("early_end", early_end, "When the stream ends with tuples waiting, all of them come out."),
    Law("any_cut", any_cut, "The rows do not depend on how the stream is cut into batches."),
    Law("key_types", key_types, "Keys of every type are equal by Spark's rules."),
    Law("composite_keys", composite_keys, "A key of several columns matches when all of them do, and none is null."),
    Law("colliding_codes", colliding_codes, "Keys with the same code are told apart by the real columns."),
    Law("index_free", index_free, "A relation without an index is joined exactly, or refused when the join is built."),
    Law("used_in_place", used_in_place, "Pages that can be used in place are joined exactly, once they were touched."),
    Law("stale_pages", stale_pages, "Pages are not used any more after the next read."),
    Law("nothing_carried", nothing_carried, "With no column to put out, the sequence numbers are still right."),
    Law("output_schema", output_schema, "Every step puts out the schema that the spec promises, rows or not."),
    Law("sequence_numbers", sequence_numbers, "Row i of the output belongs to stream tuple sequence[i]."),
    Law("entry_steps", entry_steps, "Each tuple that leaves has one entry step, between its offer and now."),
    Law("ledger", ledger, "The ledger balances after every step, and its totals are those of a plain join."),
    Law("honest_reads", honest_reads, "The pages counted are the pages that the relation was asked for."),
    Law("idle", idle, "With nothing waiting a step reads nothing and puts out nothing."),
    Law("failed_read", failed_read, "A failed read is an error and never a miss; going on loses and doubles nothing."),
    Law("failing_for_good", failing_for_good, "While no page can be read, no tuple leaves that might have matched."),
    Law("bounded_memory", bounded_memory, "What the join says it uses, and what it holds, never passes the budget."),
    Law("small_budget", small_budget, "A budget too small is refused with the bytes that would do, and they do."),
    Law("bounded_output", bounded_output, "A step puts out at most OUTPUT_ROWS rows, however many match."),
    Law("bounded_misses", bounded_misses, "A step puts out at most OUTPUT_ROWS rows, however many match nothing."),
    Law("bounded_waits", bounded_waits, "A tuple leaves after a bounded number of reads, whatever else keeps coming."),
    Law("withdrawn", withdrawn, "Tuples that are given back and offered again come out as if they had stayed."),
    Law("wrong_keys", wrong_keys, "Keys that can't be compared are refused when the join is built."),
)  # fmt: skip


_LONG = 156  # a key whose rows lie on many pages


def _keys_with_long(long_rows: int) -> list[int]:
    return [key for key in range(0, 240, 2) for _ in range(long_rows if key == _LONG else 1)]


def _with_long_key(make: Make, long_rows: int) -> pa.Table:
    keys = _keys_with_long(long_rows)
    return pa.table({"id": written(_kind(make).relation, keys, _kind(make).value), "price": np.arange(float(len(keys)))})


def _no_wait_too_long(
    make: Make, how: How, relation: MemoryRelation, hot: Sequence[int | None], spare_bytes: int, *, wrapped: bool = False
) -> None:
    """While these keys come all the time, other keys leave in time: keys on the last page, absent, on many pages, and null."""
    kind = _kind(make)
    stream = pa.record_batch({"product": written(kind.stream, hot, kind.value)})
    cold = pa.record_batch({"product": written(kind.stream, [200, 238, 101, 999, _LONG, None], kind.value)})
    spec = JoinSpec(stream.schema, (("product", "id"),), how, ("product",), ("price",) if how in ("inner", "left") else ())
    memory = tightest(make, relation, spec) + spare_bytes
    joins: list[SemiStreamJoin] = [make(relation, spec, Budget(memory))]
    if wrapped:
        again = JoinSpec(spec.output_schema(relation), spec.on, "semi", ("product",))
        both = [make(relation, one, Budget(memory)) for one in (spec, again)]
        joins = [Ordered(joins[0], ROOMY), Several(both)]
    for join in joins:
        check_waits(join, stream, cold, relation.rows - 120 + 1)


def _kind(make: Make) -> KeyType:
    """The type of the keys for this join: a condition may not be able to compare every type."""
    kind: KeyType = getattr(make, "kind", KEY_TYPES[0])
    return kind


def _sample(make: Make, how: How, *, stream_rows: int = 120) -> Sample:
    return sample(how, kind=_kind(make), stream_rows=stream_rows)


def _counted(make: Make, totals: StepCounts, absent: int) -> tuple[int, int]:
    """Tuples that were counted as absent, and as null. A join by a condition only counts `condition_false`; a join by an
    expression counts nulls there too. Then `absent` of these tuples are taken to be absent."""
    if getattr(make, "condition", None) is None:
        require(totals.condition_false == 0, f"{totals.condition_false} tuples failed a condition, and there is none")
        return totals.absent_keys, totals.null_keys
    require(totals.absent_keys == 0, f"{totals.absent_keys} keys were called absent, and nobody looked for a key")
    if getattr(make, "sees_nulls", True):
        return totals.condition_false, totals.null_keys
    return min(absent, totals.condition_false), totals.condition_false - min(absent, totals.condition_false)


def _repeated(make: Make, how: How) -> Sample:
    """Most keys are in the relation several times, and go on over the end of a page."""
    keys = [key for key in range(12) for _ in range(25 if key == 7 else 1 + key % 4)]  # most go on over a page's end
    kind = _kind(make)
    ids, products = written(kind.relation, keys, kind.value), written(kind.stream, [*range(12)] * 5, kind.value)
    relation = pa.table({"id": ids, "price": np.arange(float(len(keys))), "name": ["x"] * len(keys)})
    stream = pa.table({"event": np.arange(60), "product": products, "note": ["y"] * 60})
    return Sample(relation, stream, spec_of(stream, how))


def _paged(data: Sample, rows_per_page: int = 4) -> MemoryRelation:
    return MemoryRelation(data.relation, "id", rows_per_page)


def _budgets(make: Make, data: Sample, relation: Relation) -> tuple[int, ...]:
    """Budgets for one tuple and one page at a time, for some of both, and for all at once."""
    smallest = tightest(make, relation, data.spec)
    return (smallest, smallest + 2_000, smallest + 10_000, ROOMY)


def _snug(make: Make, relation: Relation, spec: JoinSpec) -> int:
    """A budget in which tuples wait, few pages are read at once, and both fill up."""
    return tightest(make, relation, spec) + 2_000


def _exact(
    make: Make, data: Sample, relation: Relation, sizes: list[int], *,
    memory: int | None = None, steps_per_batch: int | None = 1,
) -> Run:  # fmt: skip
    memory = _snug(make, relation, data.spec) if memory is None else memory
    batches = cut(data.stream, sizes)
    run = run_join(make, relation, data.spec, batches, memory=memory, steps_per_batch=steps_per_batch)
    _compare(run, expected(data.stream, data.relation, data.spec))
    require(run.ledger.waiting == 0, f"{run.ledger.waiting} tuples still wait at the end")
    return run


def _compare(run: Run, wanted: pa.Table) -> None:
    comparison = same_rows(run.numbered, wanted)
    require(comparison, f"the join (left) differs from the reference (right): {comparison}")


def _retried(make: Make, relation: FailingRelation, data: Sample) -> tuple[Run, int, bool]:
    """Run with failing reads, and step on after each failure. Returns what came out, how many errors, and whether the join went
    on to the end. A join may refuse to go on, with an error of its own."""
    errors = 0
    run = Run(data.spec.output_schema(relation))
    join = Watched(make(relation, data.spec, Budget(_snug(make, relation, data.spec))), run, 10_000)
    rest = next(cut(data.stream, [data.stream.num_rows]))
    while rest.num_rows or join.pending:
        rest = rest.slice(join.offer(rest.slice(0, 20)))
        try:
            step = join.step()
        except ReadFailed:
            errors += 1
            continue
        except BrokenLaw:
            raise
        except MillraceError:
            return run, errors + 1, False
        run.ledger.post(step.counts, join.pending)
    return run, errors, True


def _no_false_miss(make: Make, run: Run, wanted: pa.Table, data: Sample) -> None:
    """All rows that came out are right, and no more tuples were counted as absent than there are."""
    wrong = same_rows(run.numbered, wanted).only_left
    require(not wrong, f"after a failed read rows came out that are not in the reference: {wrong}")
    keys = set(comparable_keys(data.relation, ["id"]))
    absent = sum(key is not None and key not in keys for key in comparable_keys(data.stream, ["product"]))
    called = _counted(make, run.totals, absent)[0]
    require(called <= absent, f"{called} keys were called absent; {absent} are")
