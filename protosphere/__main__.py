"""`python -m protosphere`: the command line."""

import sys

from protosphere.cli.main import app

if __name__ == "__main__":
    # as run folders and help texts name it
    sys.argv[0] = "protosphere"
    app(prog_name="protosphere")
