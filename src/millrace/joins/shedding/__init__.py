"""Load shedding: what a join can't serve while the stream is too fast waits outside, and comes back later."""
