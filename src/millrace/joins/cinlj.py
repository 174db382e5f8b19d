"""CINLJ: the index nested loop join with a front stage that answers keys which come often.

Naeem, Dobbie, Lutteroth, Weber: Skewed Distributions in Semi-Stream Joins: How Much Can Caching Help?, section 3.3.

The loop:
    1. front stage: look each stream tuple up in the hot rows; a hit is put out at once, a miss goes on;
    2. count the key of the miss among the recent keys;
    3. back stage: one step of INLJ (see `inlj`): look the key up in the index, read its page, put out the match;
    4. a row whose key came `threshold` times or more of late comes into the front stage. If it is full, the row takes the place
       of one that comes more seldom, or stays out.

Memory:

    stream --> [ hot rows: key -> all rows of the key ] --- hit ---> output
                     | miss --> [ recent keys: how often ]
                     v
               [ INLJ: tuples of this step, disk buffer or buffer pool ] --> output

Needs an index on the join key. Serves equality. A tuple that is not answered in front waits as long as in INLJ.

Differs from the paper:
    - Recent keys are counted and not kept: see `recent_keys`. The paper gives no size; here it is a sixteenth of the front
      stage.
    - Where keys repeat in R, a key is answered in front only if all of its rows are there.
    - The threshold has a rule, which the paper leaves open: see `front_stage`.
    - INLJ needs little memory, and more would not make it faster. So the front stage has three quarters of the memory, unless
      `cache_share` says otherwise. The paper gives all cached joins the same share, about 0.15.
"""

from __future__ import annotations

from millrace.joins.cached import CachedJoin
from millrace.joins.inlj import IndexNestedLoopJoin


class CachedIndexNestedLoopJoin(CachedJoin):
    """INLJ behind a front stage.

    >>> import pyarrow as pa
    >>> from millrace.core.budget import Budget
    >>> from millrace.core.protocols import JoinSpec
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = CachedIndexNestedLoopJoin(products, spec, Budget("256k"), threshold=2)
    >>> [(join.offer(sales), join.step().counts.front_hits)[1] for _ in range(4)], products.reads
    ([0, 0, 1, 1], [(2, 1), (2, 1)])
    """

    back_class = IndexNestedLoopJoin
    counts_recent_keys = True
    shares = (0.75,)
    learned = 0.965  # measured: keys that share a counter take places of better ones
