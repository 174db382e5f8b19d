"""Tables to estimate from, read in random order."""
