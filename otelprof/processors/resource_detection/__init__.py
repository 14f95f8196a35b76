"""Who produced a row, in OpenTelemetry's words: service, host, container, Kubernetes, GPU."""
