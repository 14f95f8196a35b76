"""A recorded session as input: for tests, bug reports and demonstrations."""
