"""CMESHJOIN: MESHJOIN with a front stage that answers keys which come often.

Naeem, Dobbie, Lutteroth, Weber: Skewed Distributions in Semi-Stream Joins: How Much Can Caching Help?, section 3.1.

The loop:
    1. front stage: look each stream tuple up in the hot rows; a hit is put out at once, a miss goes to the window, until the
       window has taken what it may take for this read;
    2. back stage: one step of MESHJOIN (see `meshjoin`): read b pages, probe, let the oldest chunk go;
    3. a row that `threshold` or more waiting tuples met comes into the front stage. If it is full, the row takes the place of
       one that comes more seldom, or stays out.

Memory:

    stream --> [ hot rows: key -> all rows of the key ] --- hit ---> output
                     | miss         ^ rows of keys that came often
                     v              |
               [ MESHJOIN: queue, hash table, disk buffer ] --> output

Needs no index. Serves equality. A tuple that is not answered in front waits for one pass over R, as in MESHJOIN.

Differs from the paper:
    - A key that is cached no longer reaches the window, so its frequency comes from its hits; the paper's algorithm writes it
      down once. Hits are counted, and old hits count less.
    - Where keys repeat in R, all rows of a key are collected over a pass before the key is answered in front: the printed front
      stage would lose rows.
    - Keys that R does not have are cached too. Without that each of their tuples would wait for a whole pass.
    - The threshold has a rule, which the paper leaves open: see `front_stage`. The share of the memory follows what it earns:
      see `cached`.
    - If R grows, the front stage is emptied.
"""

from __future__ import annotations

from millrace.joins.cached import CachedJoin
from millrace.joins.meshjoin import MeshJoin


class CMeshJoin(CachedJoin):
    """MESHJOIN behind a front stage.

    >>> import pyarrow as pa
    >>> from millrace.core.budget import Budget
    >>> from millrace.core.protocols import JoinSpec
    >>> from millrace.relations.memory import MemoryRelation
    >>> products = MemoryRelation(pa.table({"id": [1, 2, 3], "price": [10, 20, 30]}), "id", rows_per_page=1)
    >>> sales = pa.record_batch({"product": [3, 3]})
    >>> spec = JoinSpec(sales.schema, (("product", "id"),), "inner", ("product",), ("price",))
    >>> join = CMeshJoin(products, spec, Budget("256k"), buffer_pages=3)
    >>> join.offer(sales), join.step().counts.pages_read, join.offer(sales), join.step().counts.front_hits
    (2, 3, 2, 2)
    """

    back_class = MeshJoin
