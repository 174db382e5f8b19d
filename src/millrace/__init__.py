"""millrace joins fast streams with tables too big for memory, and answers big joins early, on Spark."""

__version__ = "0.1.0"
