"""The exporter `pyroscope`: profiles to Grafana Pyroscope, as OTLP over HTTP in the form that Pyroscope reads best."""
