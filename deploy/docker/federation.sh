#!/bin/sh
# Runs the app on the sites and waits for its end; all that is given goes to `protosphere run`, whose exit code is this
# one's: 0 only when the run was completed.
set -eu
. /opt/protosphere/deploy/docker/connection.sh
exec protosphere run --on superlink:sites --clients "${SITES:?how many sites take part}" --results /results "$@"
