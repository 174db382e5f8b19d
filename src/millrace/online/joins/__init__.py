"""The joins of online aggregation, one file for each."""
