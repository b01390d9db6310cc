"""The `protosphere` command: thin commands, each over one function of the floor below."""
