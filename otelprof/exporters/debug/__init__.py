"""The exporter `debug`: what passes through the pipeline, in the log."""
