#!/bin/sh
# Registers every public key in /keys at the SuperLink. One that is registered already is left as it is.
set -eu
. /opt/protosphere/deploy/docker/connection.sh

for key in /keys/*.pub; do
    [ -e "$key" ] || { echo "no public key in /keys; the service \`credentials\` puts them there" >&2; exit 1; }
    if answer=$(flwr supernode register "$key" sites --format json 2>&1); then
        case $answer in
            *'"success": true'*) echo "$(basename "$key" .pub): registered"; continue ;;
        esac
    fi
    case $answer in
        *"already in use"*) echo "$(basename "$key" .pub): registered already" ;;
        *) echo "$(basename "$key" .pub) could not be registered: $answer" >&2; exit 1 ;;
    esac
done
