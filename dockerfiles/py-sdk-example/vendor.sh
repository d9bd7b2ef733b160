#!/bin/sh
# Fills vendor/ with the SDK and its example agent, which only its source distribution has.
set -eu
cd "$(dirname "$0")"
mkdir -p vendor
python3 -m pip install --quiet --no-warn-conflicts --root-user-action=ignore --target vendor/lib -r requirements.txt
python3 -m pip download --quiet --no-deps --no-binary :all: --dest vendor/src -r requirements.txt
tar -xzf vendor/src/*.tar.gz -C vendor/src --strip-components=2 --wildcards '*/examples/agent.py'
mv vendor/src/agent.py vendor/agent.py
rm -r vendor/src
