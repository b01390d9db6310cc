"""Ends with one sentence and exit code 2 where a site's `--model` is none that it could train, or its machine has no
such `--device`; "" of what it does not say."""

import sys

from protosphere.core.devices import device_of
from protosphere.core.errors import ModelError, SettingError
from protosphere.core.settings import device_name
from protosphere.models import check_model


def check(model: str, device: str) -> None:
    """Raises: ModelError, SettingError, ValueError: which of the two cannot be, and why."""
    if model:
        try:
            check_model(model)
        except ModelError as error:
            raise ModelError(f"--model: {error}") from None
    if device:
        try:
            device_name(device)
        except ValueError as error:
            raise SettingError(f"--device {device!r} {error}.") from None
        device_of(device, "--device is")


if __name__ == "__main__":
    try:
        check(*sys.argv[1:])
    except (ModelError, SettingError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)
