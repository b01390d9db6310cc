"""Where the contract suite and the golden runs compute: `make cuda-check` sets it, everybody else has a CPU."""

import os

DEVICE = os.environ.get("PROTOSPHERE_TEST_DEVICE", "cpu")
PRECISION = os.environ.get("PROTOSPHERE_TEST_PRECISION", "float32")
PLACE = {"device": DEVICE, "precision": PRECISION}
