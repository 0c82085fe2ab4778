"""The built-in evaluator: rule files over the embedded store, with the states and moments of Prometheus' own."""
