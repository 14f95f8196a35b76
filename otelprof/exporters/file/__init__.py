"""The exporter `file`: OTLP requests in files, for looking at, for tests and for replaying elsewhere."""
