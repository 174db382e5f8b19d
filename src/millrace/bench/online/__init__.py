"""`millrace bench online`: the joins of online aggregation on virtual devices."""
