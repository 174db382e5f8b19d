"""`millrace bench shedding`: joins under twice the load that they can serve."""
