"""Exporters: they take batches out of the agent. otlp_grpc, otlp_http, file, debug.

What the two that send share is here: `settings` (the Collector's keys), `sender` (queue, retries, counting) and
`answers` (what a try to send came to).
"""
