"""What is asked: aggregates and expressions, and the records of either side that answer them."""
