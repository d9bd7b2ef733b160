#!/bin/sh
# Fills vendor/ with fast-agent. Arguments go to `pip install`, to choose another Python or platform than the one it
# runs on.
set -eu
cd "$(dirname "$0")"
mkdir -p vendor
python3 -m pip install --quiet --no-warn-conflicts --root-user-action=ignore --target vendor/lib -r requirements.txt "$@"
