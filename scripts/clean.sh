#!/usr/bin/env bash
# Removes what was built here: the target directory, the test database, the images.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$root"

scripts/setup/test-postgres.sh stop
if have docker && docker version >/dev/null 2>&1; then
    docker image ls --format '{{.Repository}}:{{.Tag}}' | grep -E '^kandev(-base)?/' | xargs -r docker image rm >/dev/null
fi
cargo clean
