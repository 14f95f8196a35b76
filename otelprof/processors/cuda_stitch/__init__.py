"""Launches and GPU activity become samples and spans: kernels hang under the CPU stack that launched them."""
