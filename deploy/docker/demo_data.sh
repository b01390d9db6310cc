#!/bin/sh
# Deals handwritten digits to the sites' data volumes, once. A site with data of its own mounts them instead.
# usage: deploy/docker/demo_data.sh SITES
set -eu

missing=''
for site in $(seq 0 $(($1 - 1))); do
    [ -e "/volumes/site-$site-data/.complete" ] || missing=yes
done
[ -n "$missing" ] || exit 0

python - "$1" <<'END'
import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from deploy.demo_data import write_sites

with TemporaryDirectory() as scratch:
    for source in write_sites(Path(scratch), sites=int(sys.argv[1])):
        target = Path("/volumes", f"{source.name}-data")
        if not (target / ".complete").exists():
            shutil.copytree(source, target, dirs_exist_ok=True)
            (target / ".complete").touch()
        print(target)
END
