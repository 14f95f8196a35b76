"""The exporter `otlp_grpc`: profiles and traces to an OTLP receiver over gRPC."""

import os

# gRPC's C core writes a line to standard error for each failed handshake; what failed is in the error that we get, and we
# say it once. The variable is read when grpc is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
