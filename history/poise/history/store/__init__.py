"""The embedded store: an hour of every series in memory, the rest in one SQLite file, readable by the PromQL engine."""
