"""otelprof: an OpenTelemetry-native continuous profiler for Python and CUDA."""

__version__ = "0.1.0"
