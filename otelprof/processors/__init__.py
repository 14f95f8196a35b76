"""Processors: what changes batches on their way. One package per type; see otelprof/component.py for the contract."""
