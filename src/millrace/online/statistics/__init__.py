"""From what was joined to estimates, intervals and forecasts. Knows nothing of joins, tables or time."""
