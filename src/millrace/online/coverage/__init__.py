"""Whether intervals hold as often as they promise."""
