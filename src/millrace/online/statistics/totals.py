"""What has been joined, as sums: the contract between the joins and the statistics.

f(a, b) is what a pair adds to the answer: the aggregated expression where the pair joins and passes the filters, else 0. K such
functions are kept at a time (say 1, v and v^2), for G groups. Two ways lead to the sums:

    rows that match, one by one   -> sums_of_matches(a, b, values)       any f
    moments per key               -> sums_of_keys(left, right)           f = u(a) v(b) on equal keys; no pair is made
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from millrace.core.arrays import FloatArray, Int64Array
from millrace.core.errors import ParameterError


@dataclass
class Sums:
    """What has been joined of one rectangle of pairs, for K functions f_k of a pair and G groups (G = 1 without GROUP BY).

    Formulas that take many rectangles at once (partitions, runs) take the same arrays with the rectangles as an axis in front.
    """

    t: FloatArray  # (G, K) sum of f over joined pairs
    sx: FloatArray  # (G, K, K) sum over rows a of X_a X_a', X_a = sum over b of f(a, b)
    sy: FloatArray  # (G, K, K) likewise over rows b
    q: FloatArray  # (G, K, K) sum over pairs of f f'
    pairs: Int64Array  # (G,) how many pairs matched

    @classmethod
    def zeros(cls, groups: int = 1, functions: int = 1) -> Sums:
        if groups < 1 or functions < 1:
            raise ParameterError(f"sums need at least one group and one function; got {groups} and {functions}")
        square = (groups, functions, functions)
        return cls(
            np.zeros((groups, functions)), np.zeros(square), np.zeros(square), np.zeros(square), np.zeros(groups, np.int64)
        )

    @property
    def groups(self) -> int:
        return int(self.t.shape[-2])

    @property
    def functions(self) -> int:
        return int(self.t.shape[-1])

    def __add__(self, other: Sums) -> Sums:
        """The sums of both. `t`, `q` and `pairs` always add, as long as no pair is in both. `sx` and `sy` add where no row of A
        and no row of B has matches in both: sets of keys that do not overlap, such as hash partitions."""
        self._check_shape(other)
        return Sums(
            self.t + other.t, self.sx + other.sx, self.sy + other.sy, self.q + other.q, self.pairs + other.pairs
        )  # fmt: skip

    def __iadd__(self, other: Sums) -> Sums:
        """As `+`, in place: where no row has matches in both."""
        self._check_shape(other)
        self.t += other.t
        self.sx += other.sx
        self.sy += other.sy
        self.q += other.q
        self.pairs += other.pairs
        return self

    def _check_shape(self, other: Sums) -> None:
        if self.t.shape != other.t.shape:
            raise ParameterError(
                f"sums of {self.t.shape} (groups, functions) cannot be added to sums of {other.t.shape}; "
                "use the same functions and groups for both"
            )


def stacked(parts: list[Sums]) -> Sums:
    """Many rectangles as one set of arrays, (rectangles, G, K) and so on."""
    if not parts:
        raise ParameterError("there is no rectangle to stack; give at least one")
    for part in parts[1:]:
        parts[0]._check_shape(part)
    return Sums(
        np.stack([part.t for part in parts]),
        np.stack([part.sx for part in parts]),
        np.stack([part.sy for part in parts]),
        np.stack([part.q for part in parts]),
        np.stack([part.pairs for part in parts]),
    )


@dataclass
class KeyMoments:
    """One side of an equi-join, key by key: what the rows of that side with one key (and one group) come to.

    Rows of the two sides' arrays belong together: position i is the same key on both sides (all zero where a side lacks it).
    """

    rows: Int64Array  # (C,) how many rows
    first: FloatArray  # (C, K) sum of u_k
    second: FloatArray  # (C, K, K) sum of u_k u_l

    @classmethod
    def of(cls, cell: npt.ArrayLike, values: npt.ArrayLike, cells: int) -> KeyMoments:
        """From rows: the cell (key number, or key and group) of each, and its values, (rows, K) or (rows,)."""
        at = np.asarray(cell, np.int64)
        u = _columns(values)
        if len(at) != len(u):
            raise ParameterError(f"each row needs a cell and values; got {len(at)} cells and {len(u)} rows of values")
        if len(at) and not (at.min() >= 0 and at.max() < cells):
            raise ParameterError(f"cells go from 0 to {cells - 1}; got {at.min()} to {at.max()}")
        k = u.shape[1]
        first = _by_cell(u, at, cells)
        second = np.empty((cells, k, k))
        for i in range(k):
            for j in range(i + 1):
                second[:, i, j] = second[:, j, i] = np.bincount(at, u[:, i] * u[:, j], cells)
        return cls(np.bincount(at, minlength=cells).astype(np.int64), first, second)


def sums_of_keys(left: KeyMoments, right: KeyMoments, group: Int64Array | None = None, groups: int = 1) -> Sums:
    """The sums of f_k = u_k(a) v_k(b) on equal keys: t = sum UV, sx = sum U2 V V', sy = sum V2 U U', q = sum U2 V2 over cells.

    With GROUP BY a cell is a key and a group: a key that occurs in several groups is in as many cells, and `group` says
    which. Right where each row is in one group: groups by a column of one side, the other side's moments repeated; or by
    columns of both sides, a cell for each combination.
    """
    if left.first.shape != right.first.shape:
        raise ParameterError(
            f"both sides need moments of the same keys and functions; got {left.first.shape} and {right.first.shape}"
        )
    cells = len(left.first)
    at = np.zeros(cells, np.int64) if group is None else _checked_groups(group, groups, cells)
    u, v = left.first, right.first
    return Sums(
        _by_group(u * v, at, groups),
        _by_group(left.second * (v[:, :, None] * v[:, None, :]), at, groups),
        _by_group(right.second * (u[:, :, None] * u[:, None, :]), at, groups),
        _by_group(left.second * right.second, at, groups),
        np.bincount(at, left.rows * right.rows, groups).astype(np.int64),
    )


def sums_of_matches(
    a: npt.ArrayLike, b: npt.ArrayLike, values: npt.ArrayLike, group: npt.ArrayLike | None = None, groups: int = 1
) -> Sums:
    """The sums of matches that have been made: row numbers of A and of B, values (matches, K) or (matches,), group numbers."""
    of_a, of_b = np.asarray(a, np.int64), np.asarray(b, np.int64)
    f = _columns(values)
    if not len(of_a) == len(of_b) == len(f):
        raise ParameterError(
            f"each match needs a row of A, a row of B and values; got {len(of_a)}, {len(of_b)} and {len(f)}"
        )  # fmt: skip
    at = np.zeros(len(f), np.int64) if group is None else _checked_groups(np.asarray(group), groups, len(f))
    return Sums(
        _by_group(f, at, groups),
        _squares_of_rows(of_a, f, at, groups),
        _squares_of_rows(of_b, f, at, groups),
        _by_group(f[:, :, None] * f[:, None, :], at, groups),
        np.bincount(at, minlength=groups).astype(np.int64),
    )


def sums_of_blocks(
    block_a: npt.ArrayLike, block_b: npt.ArrayLike, values: npt.ArrayLike, group: npt.ArrayLike | None = None, groups: int = 1
) -> Sums:
    """As `sums_of_matches` with each block of rows as one row: for inputs in which whole blocks come in random order.

    The formulas then take numbers of blocks for n, m, N and M. `pairs` still counts matches of rows.
    """
    of_a, of_b = np.asarray(block_a, np.int64), np.asarray(block_b, np.int64)
    sums = sums_of_matches(of_a, of_b, values, group, groups)
    at = np.zeros(len(of_a), np.int64) if group is None else np.asarray(group, np.int64)
    columns = int(of_b.max(initial=0)) + 1
    sums.q = _squares_of_rows(of_a * columns + of_b, _columns(values), at, groups)
    return sums


def row_totals(rows: npt.ArrayLike, values: npt.ArrayLike, group: npt.ArrayLike | None = None) -> tuple[FloatArray, Int64Array]:
    """X_a of every row and group that has a match: totals (rows, K), and the group of each."""
    f = _columns(values)
    of = np.asarray(rows, np.int64)
    at = np.zeros(len(of), np.int64) if group is None else np.asarray(group, np.int64)
    if len(of) == 0:
        return np.zeros((0, f.shape[1])), np.zeros(0, np.int64)
    order = np.lexsort((of, at))
    of, at, f = of[order], at[order], f[order]
    new = np.flatnonzero(np.concatenate(([True], (of[1:] != of[:-1]) | (at[1:] != at[:-1]))))
    totals: FloatArray = np.add.reduceat(f, new, axis=0)
    return totals, at[new]


def _columns(values: npt.ArrayLike) -> FloatArray:
    """Values as (rows, K)."""
    f = np.asarray(values, np.float64)
    return f[:, None] if f.ndim == 1 else f


def _squares_of_rows(rows: Int64Array, f: FloatArray, group: Int64Array, groups: int) -> FloatArray:
    totals, at = row_totals(rows, f, group)
    return _by_group(totals[:, :, None] * totals[:, None, :], at, groups)


def _by_group(values: FloatArray, group: Int64Array, groups: int) -> FloatArray:
    """Sums over the first axis, by group."""
    if groups == 1:
        return values.sum(axis=0, keepdims=True)
    flat = values.reshape(len(values), math.prod(values.shape[1:]))
    return _by_cell(flat, group, groups).reshape(groups, *values.shape[1:])


def _by_cell(columns: FloatArray, at: Int64Array, cells: int) -> FloatArray:
    """Sums of each column by cell, (cells, columns)."""
    sums = np.empty((cells, columns.shape[1]))
    for i in range(columns.shape[1]):
        sums[:, i] = np.bincount(at, columns[:, i], cells)
    return sums


def _checked_groups(group: Int64Array, groups: int, count: int) -> Int64Array:
    if len(group) != count:
        raise ParameterError(f"there are {count} values and {len(group)} group numbers; give one for each")
    if count and not (group.min() >= 0 and group.max() < groups):
        raise ParameterError(f"group numbers go from 0 to {groups - 1}; got {group.min()} to {group.max()}")
    return group.astype(np.int64, copy=False)
