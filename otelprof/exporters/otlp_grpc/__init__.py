"""The exporter `otlp_grpc`: profiles and traces to an OTLP receiver over gRPC."""
