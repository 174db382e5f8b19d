"""`millrace bench enrich` and its relatives: a stream enriched on Spark."""
