"""The comparison of shapes: the same workload on each, one after the other, and the article's table of what came of it."""
