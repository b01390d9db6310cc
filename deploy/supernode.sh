#!/bin/sh
# Starts one site's SuperNode, in the foreground, until SIGTERM. Its data and its model stay on this machine.
set -eu
# where it is set, `cd` says where it went
unset CDPATH

usage() {
    cat <<'END'
usage: deploy/supernode.sh --superlink HOST:PORT --partition I --of N --ca FILE --key FILE [option ...]

  --superlink HOST:PORT    address for SuperNodes: gRPC with Flower 1.39, HTTPS with 1.40 and newer
  --partition I            number of this site, 0 to N - 1; it stays the same for the whole run
  --of N                   number of sites
  --ca FILE                ca.crt of the federation
  --key FILE               this site's private key (deploy/credentials.py node), registered at the SuperLink
  --insecure               instead of --ca and --key: no TLS and no authentication, for a trial on one machine
  --data PATH              this site's samples: a folder or a file (.npz, .csv, .parquet). Without it the site uses its
                           share of the run's data set. Tables and arrays need a classes.txt in their folder, with one
                           class per line, the same at all sites
  --label-column NAME      column of the classes, if it has none of the usual names; also --text-column NAME for texts
                           and --group-column NAME for groups such as patients. A run cannot choose other columns
  --model NAME             architecture of this site; without it, the run's setting `models` decides
  --strategy FILE          file of your own method, if the run uses one; the same at all sites
  --device NAME            auto, cpu, cuda, cuda:N, mps or xpu; without it, the run's setting `device` decides
  --domain NAME            domain of this site's samples, for accuracy by domain
  --name NAME              name shown beside the site's number, at most 60 characters (default: its domain)
  --privacy                take part only in runs with `privacy`
  --privacy-epsilon E      with --privacy-delta D: the most that may ever be spent on this site's samples. Without both
                           the site takes part in no release (docs/privacy.md)
  --encoder NAME           local path of the run's public encoder, such as hf:/srv/dinov2-small
  --port PORT              port for Flower's processes on this machine (default 9094; different for each SuperNode)
  --allow-app FILE         run only the apps whose digests this file lists (`protosphere app-hash` prints a digest).
                           Without it, whoever may start runs chooses the code that runs here
  --state FOLDER           models, decoded data, privacy ledger (default $PROTOSPHERE_HOME, or ~/.protosphere)
END
}

refuse() {
    echo "deploy/supernode.sh: $1" >&2
    exit 2
}

# an entry of --node-config; quotes or line ends in a value would start another one
say() {
    case $2 in
        *'"'* | *\\* | *'
'*) refuse "the value of --$1 may hold no quote, backslash or line end" ;;
    esac
    config="$config $1=\"$2\""
}

# an entry of --node-config that is a path, with what follows a file of code, as in mine.py:NAME. Flower's processes run
# elsewhere: it must not depend on the working directory
say_path() {
    place=$3 rest=
    case $3 in *.py:*) place=${3%%.py:*}.py rest=:${3#*.py:} ;; esac
    [ -e "$place" ] || refuse "--$1 $place does not exist"
    if [ -d "$place" ]; then
        say "$2" "$(cd "$place" && pwd)"
    else
        say "$2" "$(cd "$(dirname "$place")" && pwd)/${place##*/}$rest"
    fi
}

superlink='' partition='' of='' ca='' key='' insecure='' data='' model='' device='' domain='' name='' port=9094
label='' text='' group='' strategy='' privacy='' epsilon='' delta='' encoder='' allowed=''
state=${PROTOSPHERE_HOME:-${HOME:+$HOME/.protosphere}}
while [ $# -gt 0 ]; do
    case $1 in
        --insecure) insecure=yes; shift; continue ;;
        --privacy) privacy=required; shift; continue ;;
        -h | --help) usage; exit 0 ;;
        --superlink | --partition | --of | --ca | --key | --data | --model | --device | --domain | --name | \
            --label-column | --text-column | --group-column | --strategy | --port | --state | --privacy-epsilon | \
            --privacy-delta | --encoder | --allow-app)
            [ $# -gt 1 ] || refuse "$1 wants a value" ;;
        *) usage >&2; refuse "unknown option $1" ;;
    esac
    case $1 in
        --superlink) superlink=$2 ;;
        --partition) partition=$2 ;;
        --of) of=$2 ;;
        --ca) ca=$2 ;;
        --key) key=$2 ;;
        --data) data=$2 ;;
        --model) model=$2 ;;
        --device) device=$2 ;;
        --domain) domain=$2 ;;
        --name) name=$2 ;;
        --label-column) label=$2 ;;
        --text-column) text=$2 ;;
        --group-column) group=$2 ;;
        --strategy) strategy=$2 ;;
        --privacy-epsilon) epsilon=$2 ;;
        --privacy-delta) delta=$2 ;;
        --encoder) encoder=$2 ;;
        --port) port=$2 ;;
        --state) state=$2 ;;
        --allow-app) allowed=$2 ;;
    esac
    shift 2
done

[ -n "$superlink" ] || { usage >&2; refuse "--superlink HOST:PORT is missing"; }
for number in "partition $partition" "of $of"; do
    case ${number#* } in
        '' | *[!0-9]* | 0?*) refuse "--${number%% *} wants a whole number, not '${number#* }'" ;;
    esac
done
[ "$partition" -lt "$of" ] || refuse "--partition is $partition, but the $of clients are 0 to $((of - 1))"
config="partition-id=$partition num-partitions=$of"
[ -z "$data" ] || say_path data data-path "$data"
[ -n "$data" ] || [ -z "$label$text$group" ] ||
    refuse "--label-column, --text-column and --group-column name columns of the tables at --data"
[ -z "$label" ] || say label-column "$label"
[ -z "$strategy" ] || say_path strategy strategy-file "$strategy"
[ -z "$text" ] || say text-column "$text"
[ -z "$group" ] || say group-column "$group"
case $model in
    '') ;;
    *.py | *.py:*) say_path model model "$model" ;;
    *) say model "$model" ;;
esac
[ -z "$device" ] || say device "$device"
[ -z "$domain" ] || say domain "$domain"
# characters, where a shell counts bytes: of UTF-8 all bytes but those that go on with one
[ $(($(printf %s "$name" | LC_ALL=C tr -d '\200-\277' | wc -c))) -le 60 ] || refuse "--name $name is longer than 60 characters; give a shorter one"
[ -z "$name" ] || say name "$name"
[ -z "$privacy" ] || say privacy "$privacy"
# a folder for transformers, or a file
case $encoder in
    hf:/*) place=${encoder#hf:} place=${place%%\?*} ;;
    /*) place=$encoder
        case $place in *.py:*) place=${place%%.py:*}.py ;; esac ;;
    *) place= ;;
esac
[ -z "$place" ] || [ -e "$place" ] || refuse "--encoder $encoder: $place does not exist"
[ -z "$encoder" ] || say encoder "$encoder"
[ -n "$epsilon" ] && [ -n "$delta" ] || [ -z "$epsilon$delta" ] ||
    refuse "a limit has two parts: give --privacy-epsilon and --privacy-delta"
for limit in "privacy-epsilon $epsilon" "privacy-delta $delta"; do
    [ -n "${limit#* }" ] || continue
    # numbers as TOML writes them, since that is how Flower reads an entry
    number=${limit#* }
    printf '%s\n' "$number" | grep -Eq '^(0|[1-9][0-9]*)(\.[0-9]+)?(e-?[0-9]+)?$' &&
        printf '%s\n' "${number%%e*}" | grep -q '[1-9]' ||
        refuse "--${limit%% *} wants a number above 0, not '${limit#* }'"
    config="$config ${limit%% *}=${limit#* }"
done

if [ -n "$insecure" ]; then
    [ -z "$ca$key" ] || refuse "--insecure goes without --ca and --key"
    set -- --insecure
else
    [ -n "$ca" ] && [ -n "$key" ] || refuse "give --ca FILE and --key FILE (or --insecure for a trial on one machine)"
    [ -r "$ca" ] || refuse "--ca $ca cannot be read"
    [ -r "$key" ] || refuse "--key $key cannot be read; make it with deploy/credentials.py"
    set -- --root-certificates "$(cd "$(dirname "$ca")" && pwd)/$(basename "$ca")" \
        --auth-supernode-private-key "$(cd "$(dirname "$key")" && pwd)/$(basename "$key")"
fi

if [ -n "$allowed" ]; then
    [ -r "$allowed" ] || refuse "--allow-app $allowed cannot be read"
    allowed="$(cd "$(dirname "$allowed")" && pwd)/${allowed##*/}"
fi

root=$(cd "$(dirname "$0")/.." && pwd)
# PROTOSPHERE_BIN names the bin of another environment than .venv
bin=${PROTOSPHERE_BIN:-$root/.venv/bin}
[ ! -d "$bin" ] || PATH=$bin:$PATH
command -v flower-supernode >/dev/null ||
    refuse "there is no flower-supernode in $bin or on the PATH; install Protosphere with pip"
# where Flower is, Python is beside it
python=$(dirname "$(command -v flower-supernode)")/python
[ -x "$python" ] || refuse "there is no $python, which flower-supernode runs in; install Protosphere with pip"
answer=$("$python" -P -m protosphere.core.flower 2>&1) || refuse "$(printf '%s\n' "$answer" | tail -n 1)"
if [ -n "$model$device" ]; then
    # what a site could never train is refused here, and not in the middle of a run
    answer=$("$python" -P -c '
import sys
from protosphere.core.settings import device_name
model, device = sys.argv[1:]
try:
    # PyTorch takes seconds to load, and a CPU is always there
    if device and device_name(device) != "cpu":
        from protosphere.core.devices import device_of
        device_of(device, "--device is")
    if model:
        from protosphere.models import check_model
        check_model(model)
except Exception as error:
    sys.exit(f"--model {model!r} --device {device!r}: {error}")
' "$model" "$device" 2>&1) || refuse "$(printf '%s\n' "$answer" | tail -n 1)"
fi
[ -n "$state" ] || refuse "neither PROTOSPHERE_HOME nor HOME says where to keep state; give --state FOLDER"
# Flower's processes import from their working directory first: an empty one holds nothing that could hide the app
# what is trained and decoded here is this user's alone
umask 077
mkdir -p "$state/empty" "$state/flwr"
state=$(cd "$state" && pwd)
chmod 700 "$state" || echo "deploy/supernode.sh: $state belongs to another user; see who can read it" >&2
cd "$state/empty"
# Flower's processes call each other at this machine, where no proxy is asked
no_proxy=${no_proxy:-${NO_PROXY:-}}
no_proxy=${no_proxy:+$no_proxy,}127.0.0.1,localhost
NO_PROXY=$no_proxy
export PATH no_proxy NO_PROXY PROTOSPHERE_HOME="$state" FLWR_HOME="$state/flwr" PYTHONUNBUFFERED=1
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
# each message is a new process: it reads what the first has compiled of the app
unset PYTHONDONTWRITEBYTECODE
set -- "$python" -P "$root/deploy/supernode.py" "$@" --superlink "$superlink" --host 127.0.0.1 --port "$port" --node-config "$config" \
    :: "$python" -P "$root/deploy/executor.py"
if [ -n "$allowed" ]; then
    set -- "$@" --allow-app "$allowed"
else
    echo "deploy/supernode.sh: whoever may start runs at the SuperLink chooses the code that runs here (--allow-app)"
fi
exec "$python" -P "$root/deploy/with_superexec.py" "$state" "$@" -- --insecure --runtime-api-address "127.0.0.1:$port"
