#!/usr/bin/env bash
# The exact versions of an image, anew: deploy/docker/pins.sh 1.42, or 1.39. Needs docker and the network.
set -euo pipefail
cd "$(dirname "$0")/../.."
flower=${1:?which Flower, such as 1.42}
file=deploy/docker/constraints-flower-$flower.txt

new=$(mktemp)
trap 'rm -f "$new"' EXIT

docker run --rm -v "$PWD:/src:ro" --env "FLOWER=$flower" python:3.11-slim-bookworm sh -c 'python3 -m venv /tmp/v &&
  /tmp/v/bin/pip install --quiet /src "flwr[simulation]==$FLOWER.*" hatchling editables &&
  echo "# The exact versions in the image; deploy/docker/pins.sh renews them." \
    "Made by pip freeze on Linux, $(uname -m | tr _ -), Python 3.11." &&
  /tmp/v/bin/pip freeze --all --exclude pip --exclude protosphere' >"$new"
cat "$new" >"$file"
