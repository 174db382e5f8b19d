"""The commands. Each command imports what it needs when it runs, so that `millrace --help` is quick and needs no Spark."""
