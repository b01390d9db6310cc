"""`protosphere`, for an app in another folder: `python -m tests.soak.faults.front_door FOLDER run ...`."""

import sys
from functools import partial
from pathlib import Path

from protosphere.cli.main import app
from protosphere.launch import flower

if __name__ == "__main__":
    folder = Path(sys.argv.pop(1))
    # a SuperLink that was killed does not come back to the run
    flower.STATUS_PATIENCE = 10.0
    flower.launch = partial(flower.launch, app=folder)
    app()
