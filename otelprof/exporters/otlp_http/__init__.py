"""The exporter `otlp_http`: profiles and traces to an OTLP receiver over HTTP."""
