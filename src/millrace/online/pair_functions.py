"""What is summed over the pairs of a join: K functions f_k of a pair, and the group that a pair belongs to.

`Products` is the fast path: f_k(a, b) = u_k(a) v_k(b) on equal keys, from sums per key; no pair is made. `Pairs` is the
general path: the matches are made, in portions, and handed to a function.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError

Factor = tuple[int, ...]  # words of a record, multiplied; () is 1. (1, 1) is the square of word 1


@dataclass(frozen=True)
class Products:
    """f_k(a, b) = left[k](a) right[k](b). Words that take part are doubles, a group is a word with a code from 0 on.

    The group of a pair is group of a x `groups_b` + group of b. The answer is in doubles, added up in the order of the join:
    integers are exact up to 2^53. NaN and infinities go into the sums of the keys that match, as IEEE says and as SQL engines
    do; those of rows without a match do not matter. A null value is 0 in its word; who counts only rows with a value brings
    a word that is 1 or 0.
    """

    left: tuple[Factor, ...]
    right: tuple[Factor, ...]
    group_a: int | None = None
    groups_a: int = 1
    group_b: int | None = None
    groups_b: int = 1

    def __post_init__(self) -> None:
        if not self.left or len(self.left) != len(self.right):
            raise ParameterError(f"a function needs a factor on each side; got {len(self.left)} and {len(self.right)}")
        for word, groups in ((self.group_a, self.groups_a), (self.group_b, self.groups_b)):
            if groups < 1 or (word is None and groups != 1):
                raise ParameterError(f"{groups} groups need a word that says which; give group_a or group_b")

    @property
    def functions(self) -> int:
        return len(self.left)

    @property
    def groups(self) -> int:
        return self.groups_a * self.groups_b


Evaluate = Callable[[Int64Array, Int64Array], tuple[FloatArray, "Int64Array | None"]]
Sink = Callable[[Int64Array, Int64Array], None]


@dataclass(frozen=True)
class Pairs:
    """Any function of a pair. `evaluate(a, b)` is given matches, records of A and of B row by row, and returns their values
    (matches, functions) and their groups (matches,), or None for one group.

    Where key codes are hashes, `same_a` and `same_b` name the words that must agree for keys to be equal. `sink`, if there is
    one, is given every pair exactly once; `evaluate` may see a pair again, when a partition is joined again.
    """

    evaluate: Evaluate
    functions: int
    groups: int = 1
    same_a: tuple[int, ...] = ()
    same_b: tuple[int, ...] = ()
    sink: Sink | None = None

    def __post_init__(self) -> None:
        if self.functions < 1 or self.groups < 1 or len(self.same_a) != len(self.same_b):
            raise ParameterError(
                "pairs need one function or more, one group or more, and as many words to compare on either side; got "
                f"{self.functions}, {self.groups}, {self.same_a}, {self.same_b}"
            )


Functions = Products | Pairs
