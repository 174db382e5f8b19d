"""`millrace bench follow`."""
