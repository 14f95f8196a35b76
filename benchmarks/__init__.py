"""Figures, each measured beside a floor or a peer in the same run: `make bench`, or `python -m benchmarks [NAME …]`."""
