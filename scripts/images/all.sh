#!/usr/bin/env bash
# Every image of dockerfiles/, and the server's.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
cd "$root"

scripts/setup/engine.sh
scripts/build-mock-image.sh
scripts/images/build.sh augment-agent codex-acp fast-agent kimi-code py-sdk-example shell-agent ts-sdk-example
scripts/images/server.sh
