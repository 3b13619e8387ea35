"""Many machines: what their agents report, by the HTTP API of Prometheus."""
