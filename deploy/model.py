"""Ends with one sentence and exit code 2 where a site's `--model` is none that it could train."""

import sys

from protosphere.core.errors import ModelError
from protosphere.models import check_model

if __name__ == "__main__":
    try:
        check_model(sys.argv[1])
    except ModelError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
