"""Workload generators: which keys a stream carries, when its tuples arrive, and both as Arrow batches.

>>> from millrace.streams import SteadyArrivals, Workload, ZipfKeys
>>> next(Workload(ZipfKeys(domain=1000), SteadyArrivals(per_step=5))).num_rows
5
"""

from millrace.streams.keys import KeyDistribution, TemporalLocalityKeys, UniformKeys, ZipfKeys
from millrace.streams.timing import Arrivals, BurstyArrivals, PausedArrivals, SteadyArrivals
from millrace.streams.workload import Payload, Workload

__all__ = [
    "Arrivals",
    "BurstyArrivals",
    "KeyDistribution",
    "PausedArrivals",
    "Payload",
    "SteadyArrivals",
    "TemporalLocalityKeys",
    "UniformKeys",
    "Workload",
    "ZipfKeys",
]
