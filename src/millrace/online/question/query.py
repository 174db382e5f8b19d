"""A question made ready: which functions of pairs are summed, what a record holds for them, how aggregates come of the sums.

An aggregate of v = sum of products u_j(a) w_j(b) rests on the totals of functions that are products themselves: whether v is
there, the u_j w_j, and for variances the u_j u_l w_j w_l. Equal ones are kept once. An aggregate that is no such sum, a
condition over both sides, or keys that are compared as texts take the general path, where pairs are made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.conditions import key_pairs
from millrace.core.errors import ParameterError, SchemaError
from millrace.online.pair_functions import Functions, Pairs, Products
from millrace.online.protocol import A, B
from millrace.online.question.aggregations import Aggregation
from millrace.online.question.evaluate import doubles, evaluate, is_number, plain_type, type_of
from millrace.online.question.expressions import Expression, Names, Term, conjuncts, products
from millrace.online.question.records import same_words
from millrace.online.question.sides import Side, Word, key_types
from millrace.online.statistics.aggregates import functions_needed
from millrace.online.statistics.estimators import Totals
from millrace.online.tables.sources import Source

MOST_FUNCTIONS = 24
MOST_TERMS = 4
MOST_GROUPS = 10_000
Factor = tuple[int, ...]  # words of a side
Part = tuple[tuple[int, float], ...]  # functions, and how often each counts


@dataclass(frozen=True)
class Room:
    """What is not known before the rows have been seen: groups of either side, how long texts are, and whether an infinity or
    NaN may meet a null (`odd`)."""

    groups: tuple[int, int] = (1, 1)
    text_bytes: int = 16
    odd: bool = False

    def most(self, other: Room) -> Room:
        """Room for both."""
        a, b = (max(pair) for pair in zip(self.groups, other.groups, strict=True))
        return Room((a, b), max(self.text_bytes, other.text_bytes), self.odd or other.odd)


@dataclass(frozen=True)
class Output:
    """An aggregate, from totals of functions: `parts` are the functions, and how often each counts, that make c, s and ss."""

    label: str
    aggregate: str
    parts: tuple[Part, ...]
    shift: float = 0.0
    count: int | None = None  # the function that counts its values; None: all pairs have one

    def of(self, totals: Totals) -> Totals:
        """Its own totals. Functions that do not count are left out, so that an infinite one does no harm."""
        count = len(self.parts)
        groups = len(totals.value)
        value = np.zeros((groups, count))
        for i, part in enumerate(self.parts):
            for k, weight in part:
                value[:, i] += weight * totals.value[:, k]
        covariance, *added = (self._squares(each) for each in (totals.covariance, *totals.added))
        return Totals(value, covariance, totals.pairs, totals.exact, totals.degrees, added=tuple(added))

    def _squares(self, covariance: FloatArray) -> FloatArray:
        """Of the functions (G, K, K), as one of its own totals."""
        count = len(self.parts)
        found = np.zeros((len(covariance), count, count))
        for i, part in enumerate(self.parts):
            for j, other in enumerate(self.parts):
                for k, weight in part:
                    for m, times in other:
                        found[:, i, j] += weight * times * covariance[:, k, m]
        return found

    def gradient(self, slope: FloatArray, functions: int) -> FloatArray:
        """A slope in c, s and ss (G, 3) as one in the functions (G, K)."""
        spread = np.zeros((len(slope), functions))
        for i, part in enumerate(self.parts):
            for k, weight in part:
                spread[:, k] += weight * slope[:, i]
        return spread


@dataclass(frozen=True)
class OfPair:
    """A function of a pair that is no product: an expression to a power (0: whether it is there)."""

    expression: Expression
    power: int


class Question:
    """What was asked, checked against the columns of both sides. Knows nothing of the rows yet."""

    def __init__(
        self,
        sources: tuple[Source, Source],
        on: Any,
        aggregations: Mapping[str, Aggregation],
        group_by: Any = None,
        where: Any = None,
    ) -> None:
        self.schemas = (sources[A].schema, sources[B].schema)
        self.pairs = _keys(on, self.schemas)
        kinds = [tuple(plain_type(self.schemas[side].field(pair[side]).type) for side in (A, B)) for pair in self.pairs]
        self.codec, self.key_types = key_types(self.pairs, kinds)
        self.names = names = Names(self.schemas, self.pairs)
        if not aggregations:
            raise ParameterError(
                "nothing is asked for; give an aggregate by name, such as revenue=mr.sum_('x * y') or n=mr.count()"
            )
        self.aggregations = dict(aggregations)
        self.values = {label: self._value(label, each) for label, each in self.aggregations.items() if each.text is not None}
        self.groups, self.group_order = _group_columns(group_by, names, self.schemas)
        self.conditions = self._conditions(where)

    def _value(self, label: str, aggregation: Aggregation) -> Expression:
        assert aggregation.text is not None
        expression = self.names.parse(aggregation.text, label)
        kind = type_of(expression, self.schemas)
        if aggregation.name != "COUNT" and not is_number(kind):
            raise SchemaError(
                f"{label}: {aggregation.name} of {aggregation.text!r}, which is {kind}; choose a numeric column or cast it"
            )
        return expression

    def _conditions(self, where: Any) -> list[Expression]:
        texts = [] if where is None else [where] if isinstance(where, str) else list(where)
        found = [part for text in texts for part in conjuncts(self.names.parse(text, "where"))]
        for condition in found:
            kind = type_of(condition, self.schemas)
            if not pa.types.is_boolean(kind):
                raise SchemaError(f"where {condition.text!r} is {kind}, not a condition; compare it with something")
        return found

    def filters(self, side: int) -> list[Expression]:
        """Conditions on one side; those without any column go with A."""
        return [each for each in self.conditions if each.sides == {side} or (side == A and not each.sides)]

    @property
    def pair_conditions(self) -> list[Expression]:
        return [each for each in self.conditions if len(each.sides) == 2]

    def key(self, side: int) -> list[str]:
        return [pair[side] for pair in self.pairs]

    def columns(self, side: int) -> list[str]:
        """All that is read of a side."""
        named = [name for each in (*self.values.values(), *self.conditions) for name in each.columns(side)]
        return list(dict.fromkeys([*self.key(side), *named, *self.groups[side]]))


def _keys(on: Any, schemas: tuple[pa.Schema, pa.Schema]) -> list[tuple[str, str]]:
    try:
        given = key_pairs(on)
    except ParameterError:
        raise ParameterError(f"on must be a column, a list, or a pair or dict of left -> right columns; got {on!r}") from None
    names = Names(schemas, [])
    return [(names.find(mine, A)[1], names.find(theirs, B)[1]) for mine, theirs in given]


Places = list[tuple[int, int]]  # side, and which of its columns


def _group_columns(
    group_by: Any, names: Names, schemas: tuple[pa.Schema, pa.Schema]
) -> tuple[tuple[list[str], list[str]], Places]:
    given = [] if group_by is None else [group_by] if isinstance(group_by, str) else list(group_by)
    sides: tuple[list[str], list[str]] = ([], [])
    order: Places = []
    for text in given:
        expression = names.parse(text, "group_by")
        columns = [(side, name) for side in (A, B) for name in expression.columns(side)]
        if len(columns) != 1 or expression.node.key != "column":
            raise ParameterError(f"group_by takes columns of either side; got {text!r}")
        side, name = columns[0]
        kind = plain_type(schemas[side].field(name).type)
        if pa.types.is_nested(kind):
            raise SchemaError(f"can't group by {text!r}, which is {kind}; choose a column of single values")
        order.append((side, len(sides[side])))
        sides[side].append(name)
    return sides, order


@dataclass
class _Functions:
    """Functions as they are asked for, each once."""

    words: tuple[list[Word], list[Word]] = field(default_factory=lambda: ([], []))
    functions: list[tuple[Factor, Factor] | OfPair] = field(default_factory=list)

    def word(self, side: int, word: Word) -> int:
        keys = [each.key for each in self.words[side]]
        if word.key not in keys:
            self.words[side].append(word)
            return len(keys)
        return keys.index(word.key)

    def product(self, left: Factor, right: Factor) -> int:
        function = (tuple(sorted(left)), tuple(sorted(right)))
        if function not in self.functions:
            self.functions.append(function)
        return self.functions.index(function)

    def of_pair(self, expression: Expression, power: int) -> int:
        for number, each in enumerate(self.functions):
            if isinstance(each, OfPair) and (each.expression.key, each.power) == (expression.key, power):
                return number
        self.functions.append(OfPair(expression, power))
        return len(self.functions) - 1


class Query:
    """A question with room for so many groups, ready to be joined. `pilots`: guesses at means, by label.

    A query never changes: what is known of the rows as they come is with a `Recorder` of each side.
    """

    def __init__(
        self,
        question: Question,
        sources: tuple[Source, Source],
        room: Room,
        pilots: Mapping[str, float],
        seeds: tuple[int | None, int | None],
    ) -> None:
        self.question, self.room = question, room
        self._null_free: dict[tuple[int, str], bool] = {}
        self._sources = sources
        self._made = _Functions()
        # null is 0 in a product, and with an infinity or NaN that would be NaN: then values are worked out for each pair
        terms = {
            label: None if room.odd and len(value.sides) > 1 else products(value) for label, value in question.values.items()
        }
        self.general = bool(question.pair_conditions or question.key_types) or any(
            each is None or len(each) > MOST_TERMS for each in terms.values()
        )
        # pairs that pass all conditions; in the general path there may be others
        self.kept = self._made.product((), ()) if self.general else None
        self.outputs = tuple(
            self._output(label, each, terms.get(label), pilots.get(label, 0.0)) for label, each in question.aggregations.items()
        )
        if len(self._made.functions) > MOST_FUNCTIONS:
            raise ParameterError(
                f"these aggregates need {len(self._made.functions)} sums per group, and {MOST_FUNCTIONS} is the limit; "
                "ask for fewer at a time"
            )
        self.sides: tuple[Side, Side] = (self._side(A, seeds[A]), self._side(B, seeds[B]))
        self.functions = self._functions()

    # --- functions of the aggregates

    def _output(self, label: str, aggregation: Aggregation, terms: tuple[Term, ...] | None, pilot: float) -> Output:
        name, needed = aggregation.name, functions_needed(aggregation.name)
        if aggregation.text is None:
            return Output(label, name, (((self._made.product((), ()), 1.0),),))
        value = self.question.values[label]
        if terms is None or len(terms) > MOST_TERMS:
            made: list[Part] = [((self._made.of_pair(value, power), 1.0),) for power in range(needed)]
            return Output(label, name, ((), made[1]) if name == "SUM" else tuple(made), count=made[0][0][0])
        shift = pilot if len(terms) == 1 and None in terms[0] and needed == 3 else 0.0
        return self._of_terms(Output(label, name, (), shift), terms)

    def _of_terms(self, output: Output, terms: tuple[Term, ...]) -> Output:
        name, shift = output.aggregate, output.shift
        needs = tuple(tuple(_distinct(term[side] for term in terms)) for side in (A, B))
        there = tuple(self._there(side, needs[side]) for side in (A, B))
        needed = functions_needed(name)
        # SUM does not depend on the count, but is null where there is no value
        counted = self._made.product(*there) if name != "SUM" or there != ((), ()) else None
        first: Part = ((counted, 1.0),) if counted is not None and name != "SUM" else ()
        output = replace(output, count=counted if there != ((), ()) else None)
        if needed == 1:
            return replace(output, parts=(first,))
        factors = [
            tuple(
                there[side] if (each := term[side]) is None else (self._made.word(side, Word(each, needs[side], shift)),)
                for side in (A, B)
            )
            for term in terms
        ]
        sums: Part = tuple((self._made.product(left, right), 1.0) for left, right in factors)
        if needed == 2:
            return replace(output, parts=(first, sums))
        squares: list[tuple[int, float]] = []
        for i, one in enumerate(factors):
            for j, other in enumerate(factors[: i + 1]):
                left, right = (self._both(side, one[side], other[side]) for side in (A, B))
                squares.append((self._made.product(left, right), 1.0 if i == j else 2.0))
        return replace(output, parts=(first, sums, tuple(squares)))

    def _there(self, side: int, needs: Sequence[Expression]) -> Factor:
        """A factor that is 1 where all of these are there."""
        unsure = tuple(each for each in needs if not each.without_nulls(self._is_null_free))
        return (self._made.word(side, Word(None, unsure)),) if unsure else ()

    def _both(self, side: int, one: Factor, other: Factor) -> Factor:
        """The product of two factors; 1-or-0 words count once, and not at all beside a value, which is 0 where they are."""
        values = tuple(word for word in one + other if self._made.words[side][word].expression is not None)
        return values or tuple(set(one + other))

    def _is_null_free(self, side: int, column: str) -> bool:
        if (side, column) not in self._null_free:
            self._null_free[side, column] = self._sources[side].null_free(column)
        return self._null_free[side, column]

    # --- records of the sides

    def _side(self, side: int, seed: int | None) -> Side:
        question = self.question
        return Side(
            side, question.codec, question.key(side), filters=question.filters(side), words=tuple(self._made.words[side]),
            columns=self._fields(side), group_columns=question.groups[side], most_groups=self.room.groups[side],
            text_bytes=self.room.text_bytes, shuffle=seed, finite=self._must_be_finite(side),
        )  # fmt: skip

    def _must_be_finite(self, side: int) -> bool:
        """A value that is not finite may be multiplied with a null of the other side."""
        if self.room.odd or not any(len(value.sides) > 1 for value in self.question.values.values()):
            return False
        needs = [need for word in self._made.words[1 - side] for need in word.needs]
        return not all(need.without_nulls(self._is_null_free) for need in needs)

    def _fields(self, side: int) -> list[pa.Field]:
        """Columns that pairs need: of conditions and expressions over both sides, and keys that are compared."""
        question = self.question
        expressions = [
            *question.pair_conditions,
            *(each.expression for each in self._made.functions if isinstance(each, OfPair)),
        ]
        names = dict.fromkeys(name for each in expressions for name in each.columns(side))
        fields = {name: plain_type(question.schemas[side].field(name).type) for name in names}
        for name, kind in zip(question.key(side), question.key_types, strict=False):
            fields[name] = kind
        return [pa.field(name, kind) for name, kind in fields.items()]

    # --- what the join is given

    def _functions(self) -> Functions:
        a, b = self.sides
        groups = self.room.groups
        if not self.general:
            factors = [each for each in self._made.functions if not isinstance(each, OfPair)]
            left = tuple(tuple(a.place(word) for word in one) for one, _ in factors)
            right = tuple(tuple(b.place(word) for word in other) for _, other in factors)
            return Products(left, right, a.group_place, groups[A], b.group_place, groups[B])
        same: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        if self.question.key_types:
            same = same_words(a.records, b.records, self.question.pairs)
        return Pairs(self._evaluate, len(self._made.functions), groups[A] * groups[B], *same)

    def _evaluate(self, a: Int64Array, b: Int64Array) -> tuple[FloatArray, Int64Array | None]:
        words, rows = (a, b), len(a)
        decoded: dict[int, pa.RecordBatch] = {}

        def column(side: int, name: str) -> pa.Array:
            if side not in decoded:
                decoded[side] = self.sides[side].records.decode(words[side])
            return decoded[side].column(name)

        found = np.empty((rows, len(self._made.functions)))
        values: dict[str, pa.Array] = {}
        for number, each in enumerate(self._made.functions):
            if isinstance(each, OfPair):
                if each.expression.key not in values:
                    values[each.expression.key] = evaluate(each.expression, column, rows)
                found[:, number] = _power(values[each.expression.key], each.power)
            else:
                found[:, number] = 1.0
                for side in (A, B):
                    for word in each[side]:
                        found[:, number] *= words[side].view(np.float64)[:, self.sides[side].place(word)]
        for condition in self.question.pair_conditions:
            holds = pc.fill_null(evaluate(condition, column, rows), False).to_numpy(zero_copy_only=False)
            found[~holds] = 0.0
        return found, self._groups(words)

    def _groups(self, words: tuple[Int64Array, Int64Array]) -> Int64Array | None:
        one, other = (side.group_place for side in self.sides)
        if one is None and other is None:
            return None
        first = np.zeros(len(words[A]), np.int64) if one is None else words[A][:, one]
        return first * self.room.groups[B] + (0 if other is None else words[B][:, other])

    def group_key(self, number: int, seen: tuple[Sequence[Any], Sequence[Any]]) -> Any:
        """What a group is called: a value, or several in the order of group_by. `seen`: the groups of either side."""
        one, other = divmod(number, self.room.groups[B])
        parts = (seen[A][one], seen[B][other])
        key = tuple(parts[side][place] for side, place in self.question.group_order)
        return key[0] if len(key) == 1 else key


def _power(values: pa.Array, power: int) -> FloatArray:
    there = values.is_valid().to_numpy(zero_copy_only=False)
    if power == 0:
        return there.astype(np.float64)
    column = doubles(values)
    numbers: FloatArray = (column.fill_null(0.0) if column.null_count else column).to_numpy(zero_copy_only=False)
    return numbers**power


def _distinct(expressions: Any) -> list[Expression]:
    found: dict[str, Expression] = {}
    for each in expressions:
        if each is not None:
            found.setdefault(each.key, each)
    return list(found.values())
