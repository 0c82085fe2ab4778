"""Prometheus' HTTP API over a `Querier`, so that Grafana and promtool use one node without a Prometheus."""
