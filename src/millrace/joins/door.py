"""When a join takes no new tuples: tuples without a match must not fill the output for ever."""

from __future__ import annotations

from millrace.joins.emit import Emitter


class Door:
    """Begins the steps of a join, and says when no tuple may come in.

    Left and anti joins also put out tuples without a match. Tuples that are known to have no match go out first. Thousands of
    null keys in every batch would fill each output, and tuples that wait for a page would wait for ever. So the door is shut
    after a step that has less than half of its output left for other tuples. Tuples inside then leave, until a step has room.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self.shut = False  # an empty join takes tuples all the same

    def begin(self) -> None:
        room = self._emitter.room
        self._emitter.begin()
        self.shut = 2 * self._emitter.room < room
