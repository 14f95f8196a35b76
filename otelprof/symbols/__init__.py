"""Names for addresses and code objects: ELF files, native symbols, Python code, CUDA kernels."""
