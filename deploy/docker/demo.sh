#!/bin/sh
# Builds the image, runs the federation of docker-compose.yml once under a name of its own, and takes down all that it
# started, however it ends. Without a Docker engine it says so and fails; with SKIP_WITHOUT_DOCKER=yes it says so and ends
# with 0.
set -eu
cd "$(dirname "$0")/../.."

if ! answer=$(docker info 2>&1); then
    reason="no Docker engine answers here ($(printf '%s\n' "$answer" | tail -n 1))"
    if [ -n "${SKIP_WITHOUT_DOCKER:-}" ]; then
        echo "skipped: $reason"
        exit 0
    fi
    echo "deploy/docker/demo.sh: $reason; start one, or set SKIP_WITHOUT_DOCKER=yes to pass over this demo" >&2
    exit 1
fi
if docker compose version >/dev/null 2>&1; then
    compose() { docker compose "$@"; }
elif command -v docker-compose >/dev/null; then
    compose() { docker-compose "$@"; }
else
    echo "deploy/docker/demo.sh: there is a Docker engine, but neither \`docker compose\` nor docker-compose" >&2
    exit 1
fi

follower=''
name=protosphere-demo-$$
results=$PWD/results/docker-demo-$(date -u +%Y%m%d-%H%M%S)-$$
export COMPOSE_PROJECT_NAME="$name" RESULTS="$results"

left() {
    docker ps --all --quiet --filter "label=com.docker.compose.project=$name"
    docker volume ls --quiet --filter "label=com.docker.compose.project=$name"
    docker network ls --quiet --filter "label=com.docker.compose.project=$name"
}

clean() {
    status=$?
    trap '' INT TERM HUP
    trap - EXIT
    [ -z "$follower" ] || kill "$follower" 2>/dev/null || true
    [ "$status" -eq 0 ] || compose logs --no-color --tail 40 || true
    echo "taking everything down"
    compose down --volumes --remove-orphans --timeout 20 >/dev/null 2>&1 || true
    # what is in the making when a signal comes may appear only after that
    if [ -n "$(left)" ]; then
        sleep 3
        compose down --volumes --remove-orphans --timeout 5 || true
    fi
    # a folder that no run has written to says nothing
    rmdir "$results" 2>/dev/null || true
    if [ -n "$(left)" ]; then
        echo "deploy/docker/demo.sh: some of it is still there; see docker ps -a --filter label=com.docker.compose.project=$name" >&2
        [ "$status" -ne 0 ] || status=1
    fi
    exit "$status"
}
trap clean EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# made by us, it belongs to us
mkdir -p "$results"
echo "building the image (the first time it takes minutes)"
# only what is needed of its own words: a step of the Dockerfile, or a package that is fetched
compose build credentials
echo "starting the SuperLink and three sites"
compose up --detach
federation=$(compose ps --all --quiet federation)
# in the background, since a shell hears of no signal while it waits for a command in the foreground
docker logs --follow "$federation" &
follower=$!
wait "$follower"
code=$(docker wait "$federation")
# what the containers wrote is theirs until then
compose run --rm --no-deps handover
if [ "$code" -ne 0 ]; then
    echo "deploy/docker/demo.sh: the service \`federation\` ended with exit code $code" >&2
    exit 1
fi
echo "results: $results"
for report in "$results"/*/report.html; do
    echo "report: $report"
done
