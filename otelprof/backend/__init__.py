"""The reference backend: OTLP in, a store, a Pyroscope-compatible query API, the page."""
