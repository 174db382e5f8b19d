"""The pieces of a join at one moment: plain arrays that never change, and that can be sent to another process.

    Pieces (the join's own) --snapshot--> PiecesSnapshot --> totals --> aggregates --> intervals
                                             |    ^
                                       to_bytes  from_bytes

Arrays of sums lie group by group in memory, however a snapshot was made. So sums over pieces are added up in the same order,
and estimates are equal to the last digit, on both sides of a wire.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from millrace.core.arrays import BoolArray, FloatArray, Int64Array
from millrace.core.errors import ParameterError
from millrace.online.statistics.totals import Sums

Kind = Literal["partitions", "samples", "rectangles", "counts"]
SUMS = ("t", "sx", "sy", "q", "pairs")
COUNTS = ("rows_a", "rows_b", "own_a", "own_b", "total_a", "total_b", "first_a", "first_b")
_CERTAIN = "certain_"


@dataclass(frozen=True)
class PiecesSnapshot:
    """What had been joined at a moment, with one row per piece; `protocol.Pieces` says what each kind of piece means."""

    kind: Kind
    t: FloatArray  # (P, G, K), and so on: as in `Sums`, with the P pieces in front
    sx: FloatArray
    sy: FloatArray
    q: FloatArray
    pairs: Int64Array
    rows_a: Int64Array  # (P,) rows of A read, all partitions together, when a partition was last joined
    rows_b: Int64Array
    own_a: Int64Array  # rows of A in the piece
    own_b: Int64Array
    total_a: Int64Array  # rows of A that the partition will have
    total_b: Int64Array
    first_a: Int64Array  # the first of a rectangle's rows, counted as they were read
    first_b: Int64Array
    exact: BoolArray
    certain: Sums  # pairs that are in no piece and need no estimate

    def __post_init__(self) -> None:
        for name in (*SUMS, *COUNTS, "exact"):
            getattr(self, name).flags.writeable = False
        for name in SUMS:
            getattr(self.certain, name).flags.writeable = False

    def __len__(self) -> int:
        return len(self.exact)

    @property
    def sums(self) -> Sums:
        """All pieces, as an axis in front of the arrays."""
        return Sums(self.t, self.sx, self.sy, self.q, self.pairs)

    def select(self, groups: Int64Array) -> PiecesSnapshot:
        """Of some groups alone."""
        t, sx, sy, q, pairs = (by_group(getattr(self, name), groups) for name in SUMS)
        certain = Sums(*(getattr(self.certain, name)[groups] for name in SUMS))
        return replace(self, t=t, sx=sx, sy=sy, q=q, pairs=pairs, certain=certain)

    def with_sums(self, sums: Sums) -> PiecesSnapshot:
        """With other sums of the same pieces and groups."""
        if sums.sx.shape != self.sx.shape:
            raise ParameterError(f"sums of shape {sums.sx.shape} are not those of pieces of shape {self.sx.shape}")
        return replace(self, t=sums.t, sx=sums.sx, sy=sums.sy, q=sums.q, pairs=sums.pairs)

    def counting(self, function: int) -> PiecesSnapshot:
        """With those pairs alone for which a function, which is 1 or 0, is 1."""
        certain = replace(self.certain, pairs=_rounded(self.certain.t[..., function]))
        return replace(self, pairs=_rounded(self.t[..., function]), certain=certain)

    def to_bytes(self) -> bytes:
        """All of it, in NumPy's own format (npz), which holds numbers and texts only."""
        arrays: dict[str, Any] = {"kind": np.array(self.kind), "exact": self.exact}
        arrays |= {name: getattr(self, name) for name in COUNTS}
        arrays |= {name: np.swapaxes(getattr(self, name), 0, 1) for name in SUMS}
        arrays |= {_CERTAIN + name: getattr(self.certain, name) for name in SUMS}
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # nothing is pickled: there are no objects
        return buffer.getvalue()

    @classmethod
    def from_bytes(cls, content: bytes) -> PiecesSnapshot:
        """What `to_bytes` gave."""
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            plain = {name: found[name] for name in (*COUNTS, "exact")}
            sums = {name: np.swapaxes(found[name], 0, 1) for name in SUMS}
            certain = Sums(*(found[_CERTAIN + name] for name in SUMS))
            return cls(kind=cast(Kind, str(found["kind"])), **plain, **sums, certain=certain)


def by_group(array: npt.NDArray[Any], groups: Int64Array | None) -> npt.NDArray[Any]:
    """A copy of some groups, or of all, of an array (P, G, ...) that lies group by group in memory."""
    swapped = np.swapaxes(array, 0, 1)
    return np.swapaxes(np.array(swapped if groups is None else swapped[groups], order="C"), 0, 1)


def _rounded(values: FloatArray) -> Int64Array:
    return np.rint(values).astype(np.int64)
