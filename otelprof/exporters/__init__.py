"""Exporters: how batches leave. One package per type; see otelprof/component.py for the contract."""
