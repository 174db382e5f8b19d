"""CHYBRIDJOIN: HYBRIDJOIN with a front stage that answers keys which come often.

Naeem, Dobbie, Lutteroth, Weber: Skewed Distributions in Semi-Stream Joins: How Much Can Caching Help?, section 3.2 and
Algorithms 1 and 3.

The loop:
    1. front stage: look each stream tuple up in the hot rows; a hit is put out at once, a miss goes to the window, until the
       window is full;
    2. back stage: one step of HYBRIDJOIN (see `hybridjoin`): read the partition of the oldest waiting tuple, probe, let the
       tuples go that wait for it;
    3. a row that `threshold` or more waiting tuples met comes into the front stage. If it is full, the row takes the place of
       one that comes more seldom, or stays out.

Memory:

    stream --> [ hot rows: key -> all rows of the key ] --- hit ---> output
                     | miss         ^ rows of keys that came often
                     v              |
               [ HYBRIDJOIN: queue, hash table, disk buffer ] --> output

Needs an index on the join key. Serves equality. A tuple that is not answered in front waits as long as in HYBRIDJOIN.

Differs from the paper:
    - Free slots are counted, where the paper's w is set to zero with slots still free. A key that is cached already is not
      inserted twice.
    - A row takes the place of another only if it comes more often; the paper overwrites the least frequent row whatever its
      frequency. Frequencies are hits, and old hits count less.
    - Where keys repeat in R, a key is answered in front only if all of its rows are there.
    - Keys that R does not have are cached too, unless the index shows that at once.
    - The threshold has a rule, which the paper leaves open: see `front_stage`. The share of the memory follows what it earns:
      see `cached`.
"""

from __future__ import annotations

from millrace.joins.cached import CachedJoin
from millrace.joins.hybridjoin import HybridJoin


class CHybridJoin(CachedJoin):
    """HYBRIDJOIN behind a front stage.

    >>> import pyarrow as pa
    >>> from millrace.core.budget import Budget
    >>> from millrace.core.protocols import JoinSpec
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 1, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = CHybridJoin(products, spec, Budget("256k"), buffer_pages=1)
    >>> join.offer(sales), join.step().output.to_pydict(), join.step().output.to_pydict()
    (3, {'product': [3, 3], 'price': [30, 30]}, {'product': [1], 'price': [10]})
    >>> join.offer(sales), join.step().counts.front_hits, products.reads
    (3, 2, [(2, 1), (0, 1), (0, 1)])
    """

    back_class = HybridJoin
