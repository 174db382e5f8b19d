"""The Spark host: the only layer that imports pyspark."""
