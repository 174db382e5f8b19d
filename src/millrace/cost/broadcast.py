"""Broadcast: seconds of a micro-batch with Spark's own broadcast hash join, and the bytes of a table that is sent.

The join is Spark's; the equations are ours. Nothing stays between micro-batches, so each reads the table again, builds the
hash table once, and sends it to every executor.

    c_batch(n) = c_table + n c_P + m v c_o
    c_table    = c_J + (R c_R + B c_B) / k + R c_H
    B          = R w ; w = 8 (1 + columns) + texts + h

    n     rows of the stream in one task                 c_J   a Spark job more in the micro-batch
    R     rows of the table                              c_R   a row read in a Python worker and given to the JVM
    w, B  bytes of a row in Spark's form, of all rows    c_B   a byte of it
    k     tasks that read the table at the same time     c_H   a row put into the hash table, by one thread of the driver
    m, v  matches of the rows, and bytes of each         c_P   a row of the stream read by Spark and looked up
    h     what the hash table takes for a row            c_o   a byte of a match

Assumptions: the network costs nothing, pages of the table lie in the page cache, and rows of one task are joined by one core.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

SLOT_BYTES = 8  # of a value in Spark's form of a row
HASH_BYTES = 72  # h: where a row is, its length, the next row of its key, and a hash table that is half full
_PART_BYTES = 8 << 20  # of the table that one task reads: less is not worth a task more


@dataclass(frozen=True)
class BroadcastCosts:
    """Seconds, as measured once on two cores. No calibration measures them: they are scaled like Spark's other costs."""

    job: float = 0.11
    read_row: float = 4e-7
    byte: float = 1e-9
    hash_row: float = 6e-7
    row: float = 1.6e-7
    found_byte: float = 5e-10

    def scaled(self, batch: float, row: float) -> BroadcastCosts:
        """For a machine on which a micro-batch, and a row, take so many times what they took where this was measured.

        >>> costs = BroadcastCosts().scaled(batch=2, row=3)
        >>> costs.job / BroadcastCosts.job, round(costs.row / BroadcastCosts.row, 9)
        (2.0, 3.0)
        """
        changed = {name: row * getattr(self, name) for name in ("read_row", "byte", "hash_row", "row", "found_byte")}
        return replace(self, job=batch * self.job, **changed)


@dataclass(frozen=True)
class SentTable:
    """A table that is sent to every executor, as far as it is known beforehand."""

    rows: int  # R
    row_bytes: int  # w
    limit_bytes: int  # most that may be sent
    parts: int = 1  # tasks that read it

    @property
    def bytes(self) -> int:
        """B."""
        return self.rows * self.row_bytes

    def seconds(self, costs: BroadcastCosts, cores: int) -> float:
        """c_table: what a micro-batch takes before its first row is joined."""
        k = max(1, min(self.parts, cores))
        return costs.job + (self.rows * costs.read_row + self.bytes * costs.byte) / k + self.rows * costs.hash_row


def parts_for(bytes_sent: int, pages: int, cores: int) -> int:
    """Tasks that read a table.

    >>> parts_for(1 << 20, 100, 4), parts_for(1 << 30, 100, 4), parts_for(1 << 30, 2, 4), parts_for(0, 0, 4)
    (1, 4, 2, 1)
    """
    return max(1, min(cores, pages, -(-bytes_sent // _PART_BYTES)))


def spark_row_bytes(columns: int, variable_bytes: float) -> int:
    """w: a row of so many columns, whose texts and the like take so many bytes, in a hash table of Spark.

    >>> spark_row_bytes(3, 0), spark_row_bytes(3, 12.5)
    (104, 117)
    """
    flags = SLOT_BYTES * -(-max(1, columns) // 64)  # which values are null
    return int(flags + SLOT_BYTES * columns + variable_bytes + HASH_BYTES + 0.5)


def probe_seconds(costs: BroadcastCosts, rows: float, found_bytes: float) -> float:
    """n c_P + m v c_o, for the rows of one task. `found_bytes`: of the matches of one row."""
    return rows * (costs.row + found_bytes * costs.found_byte)
