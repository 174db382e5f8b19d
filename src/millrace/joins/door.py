"""When a join takes no tuple: outputs must not fill with tuples that match nothing, or nobody else gets on."""

from __future__ import annotations

from millrace.joins.emit import Emitter


class Door:
    """Begins the steps of a join, and says when no tuple may come in.

    Where a tuple without a match is put out too (left, anti), those that are known to have none go out first. Thousands of
    null keys in every batch would fill each output, step after step, and whoever waits for a page would wait for ever. So
    after a step that has less than half of its output left for all others, the door is shut: what is inside leaves, and a
    step comes soon that has.
    """

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self.shut = False  # an empty join takes tuples all the same

    def begin(self) -> None:
        room = self._emitter.room
        self._emitter.begin()
        self.shut = 2 * self._emitter.room < room
