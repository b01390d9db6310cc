"""What the server that trials are forked from has loaded: the program and its libraries. Nothing of it begins a thread
of Python's, or takes a GPU."""

import gc
import importlib
import pkgutil
import signal
from contextlib import suppress

from protosphere.core.startup import uncollected

ROOMS = ("core", "prototypes", "wire", "record", "data", "models", "strategies", "client_app", "server_app", "launch")
# what a run loads late
LIBRARIES = (
    "pandas",
    "pyarrow.parquet",
    "pyarrow.pandas_compat",
    "scipy.optimize",
    "safetensors.torch",
    "torch.nested._internal.nested_tensor",
)
# torchvision brings torch's compiler, whose objects make every process' end long
LATE = "protosphere.models.vision"

# a terminal's Ctrl-C is for the comparison
signal.signal(signal.SIGINT, signal.SIG_IGN)
with uncollected():
    for _room in ROOMS:
        _package = importlib.import_module(f"protosphere.{_room}")
        for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
            # without what an extra would have brought
            with suppress(ImportError):
                if _module.name != LATE:
                    importlib.import_module(_module.name)
    for _library in LIBRARIES:
        importlib.import_module(_library)
    # all trials of a comparison run this code: its versions, and git's answer, are asked for once
    importlib.import_module("protosphere.record.summary").versions()
# garbage is searched for among each run's own objects alone, and no page of these is copied for it
gc.freeze()
