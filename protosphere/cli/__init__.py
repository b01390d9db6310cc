"""The `protosphere` command: thin commands over the Python API."""
