"""A run from its first report to the exact answer."""
