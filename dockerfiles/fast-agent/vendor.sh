#!/bin/sh
# Fills vendor/ with fast-agent.
set -eu
cd "$(dirname "$0")"
mkdir -p vendor
python3 -m pip install --quiet --no-warn-conflicts --root-user-action=ignore --target vendor/lib -r requirements.txt
