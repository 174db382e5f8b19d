"""CSWEEPJOIN: SWEEPJOIN with a front stage that answers keys which come often.

Our own: the front stage of Naeem, Dobbie, Lutteroth, Weber (Skewed Distributions in Semi-Stream Joins: How Much Can Caching
Help?) before SWEEPJOIN.

The loop:
    1. front stage: look each stream tuple up in the hot rows; a hit is put out at once, a miss goes to the window, until the
       window is full;
    2. back stage: one step of SWEEPJOIN (see `sweepjoin`): read the next wanted pages, look the tuples up that wait for them;
    3. a row that `threshold` or more waiting tuples met comes into the front stage. If it is full, the row takes the place of
       one that comes more seldom, or stays out.

Memory:

    stream --> [ hot rows: key -> all rows of the key ] --- hit ---> output
                     | miss         ^ rows of keys that came often
                     v              |
               [ SWEEPJOIN: buckets by page, disk buffer ] --> output

Needs an index on the join key. Serves equality. A tuple that is not answered in front waits as long as in SWEEPJOIN. SWEEPJOIN
already reads a hot page once for all tuples that wait for it, so the front stage saves reads only as far as hot keys share no
page, and frees the window for others.
"""

from __future__ import annotations

from millrace.joins.cached import CachedJoin
from millrace.joins.sweepjoin import SweepJoin


class CSweepJoin(CachedJoin):
    """SWEEPJOIN behind a front stage.

    >>> import pyarrow as pa
    >>> from millrace.core.budget import Budget
    >>> from millrace.core.protocols import JoinSpec
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = CSweepJoin(products, spec, Budget("256k"))
    >>> join.offer(sales), join.step().counts.pages_read, join.offer(sales), join.step().counts.front_hits
    (2, 1, 2, 2)
    """

    back_class = SweepJoin
