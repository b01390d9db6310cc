#!/bin/sh
# Runs the app on the sites and waits for its end; all that is given goes to `protosphere run`. Last it prints where the
# report lies on the machine that runs the containers, whose folder of results RESULTS_HERE names.
# The exit code is that of `protosphere run`: 0 only when the run was completed.
set -eu
. /opt/protosphere/deploy/docker/connection.sh

outcome=/tmp/outcome.json
protosphere run --superlink sites --clients "${SITES:?how many sites take part}" --results /results \
    --outcome "$outcome" "$@" &
run=$!
trap 'kill -TERM "$run"' TERM INT HUP
code=0
wait "$run" || code=$?
# a signal ends `wait`, and not the run, which stops by itself
while kill -0 "$run" 2>/dev/null; do
    code=0
    wait "$run" || code=$?
done
folder=$(python -c 'import json, sys; print(json.load(open(sys.argv[1])).get("folder") or "")' "$outcome" 2>/dev/null) || folder=
if [ -e "$folder/report.html" ]; then
    echo "on this machine: ${RESULTS_HERE:-./results}/$(basename "$folder")/report.html"
fi
exit "$code"
