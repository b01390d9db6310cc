#!/bin/sh
# Starts the SuperLink, in the foreground, until SIGTERM: gRPC with TLS, and only nodes whose key is registered.
set -eu
# where it is set, `cd` says where it went
unset CDPATH

usage() {
    cat <<'END'
usage: deploy/superlink.sh --credentials FOLDER [option ...]

  --credentials FOLDER  holds ca.crt, superlink.crt, superlink.key (deploy/credentials.py makes them)
  --insecure            instead: no TLS and no node authentication, for a trial on one machine
  --fleet ADDRESS       where SuperNodes call, host:port (default 0.0.0.0:9092; with --insecure 127.0.0.1:9092)
  --host ADDRESS        where `flwr run` calls (default 127.0.0.1). Whoever reaches it may start any app on all sites
  --port PORT           the same (default 8000)
  --state FOLDER        database, results, checkpoints (default $PROTOSPHERE_HOME, or ~/.protosphere): this user's alone
  --umask MASK          what others may not do with files that runs write elsewhere (default 077: nothing)
END
}

refuse() {
    echo "deploy/superlink.sh: $1" >&2
    exit 2
}

credentials='' insecure='' fleet='' host=127.0.0.1 port=8000 mask=077
state=${PROTOSPHERE_HOME:-${HOME:+$HOME/.protosphere}}
while [ $# -gt 0 ]; do
    case $1 in
        --insecure) insecure=yes; shift; continue ;;
        -h | --help) usage; exit 0 ;;
        --credentials | --fleet | --host | --port | --state | --umask) [ $# -gt 1 ] || refuse "$1 wants a value" ;;
        *) usage >&2; refuse "unknown option $1" ;;
    esac
    case $1 in
        --credentials) credentials=$2 ;;
        --fleet) fleet=$2 ;;
        --host) host=$2 ;;
        --port) port=$2 ;;
        --state) state=$2 ;;
        --umask) mask=$2 ;;
    esac
    shift 2
done

if [ -n "$credentials" ]; then
    [ -z "$insecure" ] || refuse "--credentials and --insecure exclude each other"
    for file in ca.crt superlink.crt superlink.key; do
        [ -r "$credentials/$file" ] || refuse "$credentials/$file cannot be read; make it with deploy/credentials.py"
    done
    credentials=$(cd "$credentials" && pwd)
    set -- --ssl-ca-certfile "$credentials/ca.crt" --ssl-certfile "$credentials/superlink.crt" \
        --ssl-keyfile "$credentials/superlink.key" --enable-supernode-auth
else
    [ -n "$insecure" ] || refuse "give --credentials FOLDER (or --insecure for a trial on one machine)"
    set -- --insecure
    # whoever reaches it may take part
    : "${fleet:=127.0.0.1:9092}"
fi

root=$(cd "$(dirname "$0")/.." && pwd)
[ ! -d "$root/.venv/bin" ] || PATH=$root/.venv/bin:$PATH
command -v flower-superlink >/dev/null ||
    refuse "there is no flower-superlink in $root/.venv/bin or on the PATH; install Protosphere with pip"
# where Flower is, Python is beside it
python=$(dirname "$(command -v flower-superlink)")/python
[ -z "$credentials" ] || [ ! -x "$python" ] || "$python" "$root/deploy/credentials.py" check "$credentials" || exit 2
[ -n "$state" ] || refuse "neither PROTOSPHERE_HOME nor HOME says where to keep state; give --state FOLDER"
case $mask in
    0[0-7][0-7] | 0[0-7][0-7][0-7]) umask "$mask" ;;
    *) refuse "--umask wants an octal mask such as 027, not '$mask'" ;;
esac
# Flower's processes import from their working directory first: an empty one holds nothing that could hide the app
mkdir -p "$state/empty" "$state/flwr"
state=$(cd "$state" && pwd)
chmod 700 "$state" || echo "deploy/superlink.sh: $state belongs to another user; see who can read it" >&2
cd "$state/empty"
export PATH PROTOSPHERE_HOME="$state" FLWR_HOME="$state/flwr" PYTHONUNBUFFERED=1
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# its database is kept clear of messages, which tell of the sites' rows
exec python3 "$root/deploy/swept.py" "$state/superlink.db" \
    flower-superlink "$@" --host "$host" --port "$port" --fleet-api-address "${fleet:-0.0.0.0:9092}" \
    --database "$state/superlink.db" --disable-runtime-dependency-installation
