#!/bin/sh
# Starts the SuperLink, in the foreground, until SIGTERM: TLS, and only nodes whose key is registered. SuperNodes call by
# gRPC (Flower 1.39) at a port of their own, or by HTTPS (1.40 and newer) at the port from which runs are started: that
# one stays on loopback, and nginx lets SuperNodes through (deploy/nginx/protosphere-gate.conf).
set -eu
# where it is set, `cd` says where it went
unset CDPATH

usage() {
    cat <<'END'
usage: deploy/superlink.sh --credentials FOLDER [option ...]

  --credentials FOLDER  folder with ca.crt, superlink.crt and superlink.key (deploy/credentials.py makes them)
  --insecure            instead of --credentials: no TLS and no node authentication, for a trial on one machine
  --fleet ADDRESS       Flower 1.39 only: host:port for SuperNodes (default 0.0.0.0:9092; with --insecure
                        127.0.0.1:9092). With Flower 1.40 and newer SuperNodes call nginx, which calls --port
  --host ADDRESS        address for `flwr run` (default 127.0.0.1; with Flower 1.40 and newer loopback only). Whoever
                        reaches it may start any app on all sites
  --port PORT           port for `flwr run` (default 8000)
  --state FOLDER        database, results, checkpoints (default $PROTOSPHERE_HOME, or ~/.protosphere); only this user
                        can read it
  --umask MASK          permissions that runs withhold from files in a `results-dir` elsewhere (default 077: all)
END
}

refuse() {
    echo "deploy/superlink.sh: $1" >&2
    exit 2
}

nginx="nginx stands before a SuperLink of Flower 1.40 and newer (deploy/nginx/protosphere-gate.conf, docs/deployment.md)"
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
fi

root=$(cd "$(dirname "$0")/.." && pwd)
# PROTOSPHERE_BIN names the bin of another environment than .venv
bin=${PROTOSPHERE_BIN:-$root/.venv/bin}
[ ! -d "$bin" ] || PATH=$bin:$PATH
command -v flower-superlink >/dev/null ||
    refuse "there is no flower-superlink in $bin or on the PATH; install Protosphere with pip"
# where Flower is, Python is beside it
python=$(dirname "$(command -v flower-superlink)")/python
[ -x "$python" ] || python=python3
transport=$("$python" -P -m protosphere.core.flower 2>&1) || refuse "$(printf '%s\n' "$transport" | tail -n 1)"
if [ "$transport" = http ]; then
    [ -z "$fleet" ] || refuse "--fleet is for Flower 1.39: $nginx"
    case $host in
        127.* | localhost | ::1 | '[::1]') ;;
        *) refuse "--host $host would let everybody who reaches it start code on all sites; leave it on loopback: $nginx" ;;
    esac
fi
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
# Flower's processes call each other at this machine, where no proxy is asked
no_proxy=${no_proxy:-${NO_PROXY:-}}
no_proxy=${no_proxy:+$no_proxy,}127.0.0.1,localhost
NO_PROXY=$no_proxy
export PATH no_proxy NO_PROXY PROTOSPHERE_HOME="$state" FLWR_HOME="$state/flwr" PYTHONUNBUFFERED=1
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
set -- flower-superlink "$@" --host "$host" --port "$port" --database "$state/superlink.db"
if [ "$transport" = grpc ]; then
    # without keys, whoever reaches it may take part
    : "${fleet:=$([ -n "$insecure" ] && echo 127.0.0.1 || echo 0.0.0.0):9092}"
    set -- "$@" --fleet-api-address "$fleet"
fi
# what listens everywhere is called on loopback
case $host in
    0.0.0.0) inside=127.0.0.1 ;;
    :: | '[::]') inside='[::1]' ;;
    *:*) inside="[$host]" ;;
    *) inside=$host ;;
esac
# the SuperExec beside it starts the ServerApp of each run
set -- "$@" :: "$python" -P "$root/deploy/executor.py" -- --runtime-api-address "$inside:$port"
if [ -n "$credentials" ]; then set -- "$@" --root-certificates "$credentials/ca.crt"; else set -- "$@" --insecure; fi

# its database is kept clear of messages, which tell of the sites' samples; so it is no other SuperLink's as long as this
# process or a watcher of its children lives
command -v flock >/dev/null || refuse "there is no flock on the PATH; install util-linux"
exec 9>"$state/superlink.db.lock"
flock -n 9 || refuse "another SuperLink has $state/superlink.db; give each a --state of its own"
exec "$python" -P "$root/deploy/with_superexec.py" --database "$state/superlink.db" "$state" "$@"
