#!/bin/sh
# Makes what is missing of the keys and certificates, each in the volume of the service that needs it.
# usage: deploy/docker/credentials.sh SITES
set -eu
umask 022

volumes=/volumes
make() { python /opt/protosphere/deploy/credentials.py "$@"; }

# of each pair the public half is written last: where it is there, the other one is, too
authority=$volumes/authority-keys
if [ ! -e $authority/ca.crt ]; then
    rm -f $authority/ca.key
    make authority $authority
fi

superlink=$volumes/superlink-keys
if [ ! -e $superlink/superlink.crt ]; then
    rm -f $authority/superlink.key $authority/superlink.crt
    make superlink $authority superlink
    mv -f $authority/superlink.key $superlink/
    mv -f $authority/superlink.crt $superlink/
fi

for place in superlink operator; do
    cp $authority/ca.crt "$volumes/$place-keys/"
done
for site in $(seq 0 $(($1 - 1))); do
    keys=$volumes/site-$site-keys
    if [ ! -e "$keys/node.pub" ]; then
        rm -f "$keys/node"
        make node "$keys/node"
    fi
    cp $authority/ca.crt "$keys/"
    cp "$keys/node.pub" "$volumes/operator-keys/site-$site.pub"
done
