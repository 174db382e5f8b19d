"""Online aggregation: joins of two finite inputs larger than memory that report while they run and end exact."""
