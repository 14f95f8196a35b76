"""What is inside a process: its interpreter and how to walk it, its OpenTelemetry context, its CUDA driver."""
