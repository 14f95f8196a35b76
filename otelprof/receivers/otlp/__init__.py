"""The receiver `otlp`: profiles of other agents and applications, over gRPC and HTTP, into our pipelines."""
