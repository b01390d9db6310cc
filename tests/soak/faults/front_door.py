"""`protosphere`, for an app in another folder: `python -m tests.soak.faults.front_door FOLDER run ...`."""

import sys
from functools import partial
from pathlib import Path

from cli.main import app
from experiments.runtime import launch

if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))
    launch.launch = partial(launch.launch, app=folder)
    app()
