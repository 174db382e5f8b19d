"""The time of a micro-batch as a column. It decides which version of a table the batch sees."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F


def zero() -> Column:
    """The number 0, as an expression that Spark can't compute before a task runs."""
    return F.spark_partition_id().bitwiseAND(0)


def batch_time(place: Column) -> Column:
    """The time of the micro-batch; `place` is `zero()` or a column of it.

    Spark writes a plain timestamp into the code that it generates. It then has to compile and warm up this code in every
    micro-batch, which takes longer than the join of a small micro-batch. The function of a `zip_with` is interpreted, so its
    timestamp stays out of the code. Of all interpreted functions, `zip_with` costs least for each row. The place in the array
    is not known beforehand, so Spark can't fold the time into a constant.
    """
    one = F.array(F.lit(0))
    return F.zip_with(one, one, lambda _, __: F.current_timestamp())[place]
