#!/bin/sh
# Tells whether a container's service is well, by its exit code: healthy.sh superlink, or healthy.sh site. It reads the
# kernel's tables of connections (addresses and ports in hexadecimal): no Python is started, and no call is logged.
set -eu

listens='0A'
is_connected='01'
# here and at the other end of a line of /proc/net/tcp, and the line's state
has() { cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -Eq "^ *[0-9]+: [0-9A-F]+:$1 [0-9A-F]+:$2 $3 "; }
refuse() {
    echo "$1" >&2
    exit 1
}

port() { printf '%04X' "$1"; }
control=$(port 8000) fleet=$(port 9092) runtime=$(port 9094)
case $1 in
    superlink)
        has "$control" 0000 $listens || refuse "nobody listens on port 8000: the SuperLink is not up"
        has "$fleet" 0000 $listens || refuse "nobody listens on port 9092, where sites call: look at the service \`gate\`" ;;
    site)
        has "$runtime" 0000 $listens || refuse "nobody listens on port 9094: the SuperNode is not up"
        has '[0-9A-F]{4}' "$fleet" $is_connected ||
            refuse "no connection to the SuperLink's port 9092; is it up, and is this site's key registered?" ;;
    *) refuse "usage: healthy.sh superlink|site" ;;
esac
