"""Receivers: where batches come from. One package per type; see otelprof/component.py for the contract."""
