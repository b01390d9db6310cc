#!/usr/bin/env bash
# The exact versions of an image, anew: constraints.txt of both Flowers, and what differs in a file of each. Needs docker
# and the network.
set -euo pipefail
cd "$(dirname "$0")"

new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT

for flower in 1.39 1.42; do
  docker run --rm -v "$PWD/../..:/src:ro" --env "FLOWER=$flower" python:3.11-slim-bookworm sh -c 'python3 -m venv /tmp/v &&
    /tmp/v/bin/pip install --quiet /src "flwr[simulation]==$FLOWER.*" hatchling editables &&
    /tmp/v/bin/pip freeze --all --exclude pip --exclude protosphere' >"$new/$flower"
done
{
  echo "# The exact versions in the image; deploy/docker/pins.sh renews them." \
    "Made by pip freeze on Linux, $(uname -m | tr _ -), Python 3.11."
  grep -Fxf "$new/1.39" "$new/1.42"
} >constraints.txt
for flower in 1.39 1.42; do
  grep -vFxf constraints.txt "$new/$flower" >"constraints-flower-$flower.txt"
done
