"""The room for Grafana dashboards generated from the metric declaration. Nothing is generated yet."""
