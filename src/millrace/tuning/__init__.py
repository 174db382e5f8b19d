"""Which join, with which sizes, at which rate: forecasts, tuners and the choice behind strategy="auto"."""
