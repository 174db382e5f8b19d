"""Enrich a stream of sales on the way into a warehouse: a surrogate key for the product id, the supplier and the total.

+-------+-------------+-----------+--------+-----+
|sale_id|surrogate_key|supplier_id|quantity|total|
+-------+-------------+-----------+--------+-----+
|     10|         A-17|        700|       3|  7.5|
|     11|         C-88|        700|       8|  6.0|
|     12|         NULL|       NULL|       1| NULL|
|     13|         NULL|       NULL|       2| NULL|
|     14|         A-17|        700|       1|  2.5|
+-------+-------------+-----------+--------+-----+

5 in, 3 joined, 1 unknown, 1 without a key
"""

import tempfile

from pyspark.sql import SparkSession

import millrace as mr

spark = SparkSession.builder.master("local[*]").getOrCreate()
folder = tempfile.mkdtemp(prefix="millrace-quickstart-")

# The table: built once, and again when the data has changed.
products = spark.createDataFrame(
    [(1, "A-17", 2.50, 700), (2, "B-04", 9.99, 300), (3, "C-88", 0.75, 700)],
    "product_id long, surrogate_key string, sale_price double, supplier_id int",
)
table = mr.MasterTable.build(products, key="product_id", path=f"{folder}/products")

# The stream: any source will do; here it is Parquet files that land in a folder.
sales = "sale_id long, product_id long, quantity int"
spark.createDataFrame([(10, 1, 3), (11, 3, 8), (12, 9, 1), (13, None, 2), (14, 1, 1)], sales).write.parquet(f"{folder}/sales")
stream = spark.readStream.schema(sales).parquet(f"{folder}/sales")

# One call adds columns of the table, with at most 64 MiB for each task.
added = ["surrogate_key", "supplier_id", "sale_price"]
enriched = mr.enrich(stream, table, on="product_id", how="left", columns=added, memory="64m")

facts = enriched.selectExpr("sale_id", "surrogate_key", "supplier_id", "quantity", "quantity * sale_price AS total")
writer = facts.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
query = writer.trigger(availableNow=True).start(f"{folder}/warehouse")
query.awaitTermination()

spark.read.parquet(f"{folder}/warehouse").orderBy("sale_id").show()
for report in mr.reports(query):
    counts = report.counts
    print(f"{report.rows_in} in, {report.matched} joined, {counts.absent_keys} unknown, {counts.null_keys} without a key")
