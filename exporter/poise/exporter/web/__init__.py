"""Who may read the exporter, and through what: TLS, client certificates, basic auth, rate limit and headers from a web configuration file.

The format is that of Prometheus' exporter-toolkit, so that one file serves all exporters of a machine. Nothing here knows a page.
"""
