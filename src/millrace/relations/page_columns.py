"""The columns of a table version as they lie in its pages, and what copies them out."""

from __future__ import annotations

from collections.abc import Sequence

from millrace.relations.folder import TableVersion
from millrace.relations.layout import PageLayout
from millrace.relations.row_records import Unpacker


class PageColumns:
    """The columns of one version; runs and look-ups of it share them. One unpacker serves all who want the same columns."""

    def __init__(self, version: TableVersion, null_flags: int) -> None:
        self.schema = version.schema
        self.code_column = version.code_column  # the key, where it is its own code: in no record
        self.layout = PageLayout(version.stored_schema, self.code_column)
        self._with_nulls = {column.name for column in self.layout.packed if null_flags & column.null_flag}
        self._unpackers: dict[tuple[str, ...], Unpacker] = {}

    def split(self, columns: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns that are in records, and the others."""
        packed = tuple(name for name in columns if name in self.layout.by_name)
        return packed, tuple(name for name in columns if name not in self.layout.by_name)

    def unpacker(self, packed: tuple[str, ...]) -> Unpacker:
        """For columns that are in records."""
        if packed not in self._unpackers:
            columns = [self.layout.by_name[name] for name in packed]
            self._unpackers[packed] = Unpacker(columns, self.layout, self._with_nulls)
        return self._unpackers[packed]
