"""The extension `file_storage`: a directory in which exporters keep what waits."""
