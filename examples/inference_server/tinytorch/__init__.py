"""A framework of the shape of PyTorch, as small as it can be: Python operators over a C++ dispatcher."""
